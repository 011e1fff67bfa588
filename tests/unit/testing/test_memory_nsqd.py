"""``MemoryNsqd``: what a test does with it and sees of it, and the bytes of a client."""

from __future__ import annotations

import json
import re
import threading

import pytest

from nsq.errors import ConfigError, ConnectionLost, DialFailed, InvalidMessage, InvalidName, UsageError
from nsq.testing import MemoryNsqd
from nsq.transport import Stream, Transport
from nsq.wire import commands
from tests.fakes.programs import run_python


def dial(nsqd: MemoryNsqd) -> Stream:
    stream = nsqd.connect(nsqd.tcp_address, timeout=1.0)
    stream.read_timeout = 0.0
    stream.write(commands.MAGIC_V2, 1.0)
    return stream


def ask(stream: Stream, command: bytes) -> bytes:
    """Return the first answer to a command: in memory it is there when the write returns."""
    stream.write(command, 1.0)
    return stream.read()[8:]


def subscribe(stream: Stream, topic: str = "orders", channel: str = "billing", rdy: int = 10) -> None:
    assert ask(stream, commands.sub(topic, channel)) == b"OK"
    stream.write(commands.rdy(rdy), 1.0)


def received(stream: Stream) -> list[bytes]:
    """Return the bodies of all messages that have come."""
    if not stream.readable():  # type: ignore[attr-defined]
        return []
    data, bodies = stream.read(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        bodies.append(data[34 : 4 + size])
        data = data[4 + size :]
    return bodies


# What a test does and sees.


def test_messages_wait_in_the_topic_then_in_its_channels(memory_nsqd: MemoryNsqd) -> None:
    nsqd = memory_nsqd
    assert (nsqd.depth("orders"), nsqd.bodies("orders")) == (0, [])
    nsqd.publish("orders", b"one", b"two")
    assert (nsqd.depth("orders"), nsqd.bodies("orders")) == (2, [b"one", b"two"])
    nsqd.create("orders", "billing")
    assert (nsqd.depth("orders"), nsqd.depth("orders", "billing")) == (0, 2)
    nsqd.create("orders", "mails")
    nsqd.publish("orders", b"three")
    assert nsqd.bodies("orders", "billing") == [b"one", b"two", b"three"]
    assert nsqd.bodies("orders", "mails") == [b"three"]
    for topic, channel, there in (("orders", "biling", "['billing', 'mails']"), ("oders", "billing", "none")):
        with pytest.raises(
            UsageError, match=re.escape(f"{topic} has no channel {channel!r}; it has {there}")
        ):
            nsqd.depth(topic, channel)


def test_the_statistics_are_those_of_nsqd(memory_nsqd: MemoryNsqd) -> None:
    client = dial(memory_nsqd)
    memory_nsqd.publish("orders", b"one", b"two")
    subscribe(client, rdy=1)
    found = memory_nsqd.stats()
    (topic,) = found["topics"]
    (channel,) = topic["channels"]
    assert (found["health"], topic["message_count"], topic["message_bytes"]) == ("OK", 2, 6)
    assert (channel["depth"], channel["in_flight_count"], channel["client_count"]) == (1, 1, 1)
    assert channel["clients"][0]["ready_count"] == 1


@pytest.mark.parametrize("body", [b"", b"x" * 11, "text", bytearray(b"x")])
def test_a_message_that_nsqd_refuses_is_refused(body: object) -> None:
    with MemoryNsqd(max_msg_size=10) as nsqd, pytest.raises(InvalidMessage, match="must be bytes, 1 to 10"):
        nsqd.publish("orders", body)  # type: ignore[arg-type]


def test_a_publish_of_nothing_is_a_mistake(memory_nsqd: MemoryNsqd) -> None:
    with pytest.raises(UsageError, match="at least one message"):
        memory_nsqd.publish("orders")
    assert memory_nsqd.stats()["topics"] == []


@pytest.mark.parametrize(("topic", "channel"), [("", ""), ("a b", ""), ("orders", "a/b")])
def test_names_are_checked(memory_nsqd: MemoryNsqd, topic: str, channel: str) -> None:
    for call in (memory_nsqd.create, memory_nsqd.depth, memory_nsqd.bodies):
        with pytest.raises(InvalidName):
            call(topic, channel)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"msg_timeuot": 1.0}, "no option is called 'msg_timeuot' (did you mean 'msg_timeout'?)"),
        ({"data_path": "/tmp"}, "a MemoryNsqd has no option 'data_path': use nsq.testing.Nsqd for it"),
        ({"msg_timeout": -1.0}, "--msg-timeout"),
    ],
)
def test_options_are_nsqds_and_checked(options: dict[str, object], error: str) -> None:
    with pytest.raises((UsageError, ConfigError)) as caught:
        MemoryNsqd(**options)
    assert error in str(caught.value)


def test_deferred_and_requeued_messages_come_when_the_test_says(memory_nsqd: MemoryNsqd) -> None:
    client, other = dial(memory_nsqd), dial(memory_nsqd)
    assert ask(client, commands.dpub("orders", 3_600_000, b"kept by the topic")) == b"OK"
    memory_nsqd.release_deferred()
    subscribe(other)
    assert received(other) == [b"kept by the topic"]
    assert ask(client, commands.dpub("orders", 3_600_000, b"later")) == b"OK"
    assert received(other) == []
    memory_nsqd.release_deferred()
    data = other.read()
    other.write(commands.req(data[18:34], 3_600_000), 1.0)
    assert received(other) == []
    memory_nsqd.release_deferred()
    assert received(other) == [b"later"]


# Clients.


def test_it_is_a_transport_to_all_of_its_process(memory_nsqd: MemoryNsqd) -> None:
    assert isinstance(memory_nsqd, Transport)
    with MemoryNsqd() as other:
        there = memory_nsqd.connect(other.tcp_address, timeout=1.0)
        there.read_timeout = 0.0
        assert ask(there, commands.MAGIC_V2 + commands.pub("orders", b"one")) == b"OK"
        assert (memory_nsqd.depth("orders"), other.depth("orders")) == (0, 1)
    for address in (other.tcp_address, "10.0.0.2:4150"):
        with pytest.raises(DialFailed, match=f"{address}: no MemoryNsqd has this address"):
            memory_nsqd.connect(address, timeout=1.0)


def test_what_a_client_may_do_is_what_nsqd_allows() -> None:
    with MemoryNsqd(max_rdy_count=7, max_msg_size=10) as nsqd:
        agreed = json.loads(ask(dial(nsqd), commands.identify(b'{"feature_negotiation": true}')))
        assert (agreed["max_rdy_count"], agreed["tls_v1"], agreed["auth_required"]) == (7, False, False)
        for command, error in (
            (b"NONSENSE\n", b"E_INVALID invalid command NONSENSE"),
            (commands.pub("orders", b"x" * 11), b"E_BAD_MESSAGE PUB message too big 11 > 10"),
            (commands.sub("a/b", "billing"), b'E_BAD_TOPIC SUB topic name "a/b" is not valid'),
        ):
            client = dial(nsqd)
            assert ask(client, command) == error
            assert client.read() == b""  # closed
            client.write(b"NOP\n", 1.0)  # as into a socket whose other end is closed


def test_a_bug_in_nsqd_costs_one_client_its_connection(
    memory_nsqd: MemoryNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = dial(memory_nsqd), dial(memory_nsqd)
    with monkeypatch.context() as patch:
        patch.setattr("nsq.daemons.nsqd.core.broker.Broker.publish", lambda *_: 1 / 0)
        client.write(commands.pub("orders", b"one"), 1.0)
    with pytest.raises(ConnectionLost, match="nsqd has failed"):
        client.read()
    assert "ZeroDivisionError" in memory_nsqd.log
    assert ask(other, commands.pub("orders", b"one")) == b"OK"


# Lifetime.


def test_a_restart_keeps_what_a_disk_would_keep(memory_nsqd: MemoryNsqd) -> None:
    nsqd, client = memory_nsqd, dial(memory_nsqd)
    nsqd.create("logs#ephemeral", "tail")
    nsqd.create("orders", "tail#ephemeral")
    nsqd.create("waiting")
    nsqd.publish("waiting", b"three")
    assert ask(client, commands.dpub("orders", 3_600_000, b"later")) == b"OK"
    subscribe(client, rdy=1)
    nsqd.publish("orders", b"one", b"two")
    assert received(client) == [b"one"]
    nsqd.restart()
    assert client.read() == b""
    found = {each["topic_name"]: each for each in nsqd.stats()["topics"]}
    assert sorted(found) == ["orders", "waiting"]
    (channel,) = found["orders"]["channels"]
    assert (channel["channel_name"], channel["depth"], channel["clients"]) == ("billing", 2, [])
    assert nsqd.bodies("waiting") == [b"three"]
    again = dial(nsqd)
    subscribe(again)
    assert sorted(received(again)) == [b"one", b"two"]
    nsqd.release_deferred()
    assert nsqd.stats()["topics"][0]["channels"][0]["deferred_count"] == 0


def test_a_stop_forgets_the_messages_and_refuses_dials(memory_nsqd: MemoryNsqd) -> None:
    nsqd = memory_nsqd
    nsqd.publish("orders", b"one")
    nsqd.stop()
    nsqd.stop()
    assert not nsqd.running
    with pytest.raises(DialFailed, match="Connection refused, it is stopped"):
        nsqd.connect(nsqd.tcp_address, timeout=1.0)
    with pytest.raises(UsageError, match="is stopped"):
        nsqd.publish("orders", b"one")
    nsqd.start()
    with pytest.raises(UsageError, match="is running already"):
        nsqd.start()
    assert (nsqd.stats()["topics"], nsqd.depth("orders")) == ([], 0)


def test_a_close_is_final_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with MemoryNsqd() as nsqd:
        assert threading.active_count() == before  # none before the first client
        clients = [dial(nsqd), dial(nsqd)]
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    nsqd.close()
    assert [client.read() for client in clients] == [b"", b""]
    for client in clients:
        client.close()
    for call in (nsqd.start, nsqd.restart, nsqd.stats):
        with pytest.raises(UsageError, match="is closed"):
            call()


def test_it_needs_no_aiohttp_and_starts_no_loop() -> None:
    program = """
import sys
sys.modules["aiohttp"] = sys.modules["uvloop"] = None  # an import fails
import asyncio, nsq
from nsq.testing import MemoryNsqd

asyncio.new_event_loop = None
with MemoryNsqd() as nsqd, nsq.Producer(nsqd.tcp_address, transport=nsqd) as producer:
    producer.publish("orders", b"one")
    print(nsqd.bodies("orders"))
"""
    assert run_python("-c", program).stdout.strip() == "[b'one']"
