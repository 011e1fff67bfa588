"""Delivery of messages by nsqd from publication to FIN, over real connections."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory, factory
from nsq.testing.v2 import Message
from nsq.wire import commands
from tests.integration.authority import Authority
from tests.integration.clients import (
    channel_stats,
    consumer,
    finish_all,
    publish,
    subscribe,
    topic_stats,
)
from tests.integration.patience import eventually

#: Long enough to be sure that nothing comes, short enough to be waited for often.
NOTHING = 0.15


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Nsqd]:
    """An nsqd without options; every test has a topic of its own."""
    with factory(Nsqd) as make:
        yield make()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Nsqd]:
    """An nsqd with a certificate."""
    with factory(Nsqd) as make:
        yield make(**authority.server_options)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Named after the test."""
    name = "".join(char if char.isalnum() else "_" for char in request.node.name)
    return name.removeprefix("test_")[-60:]


def messages(client: V2Client, count: int) -> list[Message]:
    return [client.expect_message() for _ in range(count)]


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def in_flight(nsqd: Nsqd, topic: str) -> int:
    channel = channel_stats(nsqd, topic)
    return int(channel["in_flight_count"]) if channel else 0


def until_in_flight(nsqd: Nsqd, topic: str, wanted: int) -> None:
    eventually(lambda: in_flight(nsqd, topic), lambda count: count == wanted)


def test_a_paused_topic_keeps_its_messages(nsqd: Nsqd, topic: str) -> None:
    with consumer(nsqd, topic, rdy=5) as client:
        assert nsqd.post(f"/topic/pause?topic={topic}").status == 200
        publish(nsqd, topic, bodies(3))
        client.expect_silence(NOTHING)
        paused = topic_stats(nsqd, topic)
        assert (paused["paused"], paused["depth"], paused["channels"][0]["depth"]) == (True, 3, 0)
        assert nsqd.post(f"/topic/unpause?topic={topic}").status == 200
        assert Counter(each.body for each in messages(client, 3)) == Counter(bodies(3))


def test_a_sample_rate_delivers_about_that_share(nsqd_factory: Factory[Nsqd], topic: str) -> None:
    nsqd = nsqd_factory(max_rdy_count=10_000)
    with consumer(nsqd, topic, rdy=10_000, sample_rate=30) as client:
        for _ in range(10):
            publish(nsqd, topic, [b"x"] * 1000)
        channel = eventually(
            lambda: channel_stats(nsqd, topic),
            lambda found: found and found["message_count"] == 10_000 and found["depth"] == 0,
        )
        kept = eventually(lambda: in_flight(nsqd, topic), lambda count: count > 0)
        assert 2500 < kept < 3700
        assert len({message.id for message in messages(client, kept)}) == kept
        client.expect_silence(NOTHING)
    assert channel["clients"][0]["sample_rate"] == 30


LAYERS = [(), ("snappy",), ("deflate",), ("tls_v1",), ("tls_v1", "snappy"), ("tls_v1", "deflate")]
SIZES = (1, 2, 100, 4095, 4096, 65535, 65536, 65537, 300_000, 1024 * 1024)


@pytest.mark.parametrize("layers", LAYERS, ids="+".join)
@pytest.mark.parametrize("kind", ["noise", "repetition"])
def test_bodies_of_every_size_arrive_as_they_were_sent_through_every_layer(
    authority: Authority, server: Nsqd, topic: str, layers: tuple[str, ...], kind: str
) -> None:
    sent = [
        os.urandom(size) if kind == "noise" else b"nsq" * (size // 3) + b"!" * (size % 3) for size in SIZES
    ]
    with V2Client(server.tcp_address) as client:
        granted = client.identify(**dict.fromkeys(layers, True))
        assert all(granted[layer] for layer in layers)
        if "tls_v1" in layers:
            client.start_tls(authority.client_context(), "127.0.0.1")
        if "snappy" in layers:
            client.start_snappy()
        if "deflate" in layers:
            client.start_deflate()
        for body in sent:
            client.send(commands.pub(topic, body))
            client.expect_ok()
        subscribe(client, topic, rdy=len(sent))
        received = messages(client, len(sent))
        finish_all(client, received)
        assert Counter(each.body for each in received) == Counter(sent)
        until_in_flight(server, topic, 0)


def test_an_ephemeral_topic_with_a_lasting_channel_stays(nsqd: Nsqd, topic: str) -> None:
    name = f"{topic}#ephemeral"
    with consumer(nsqd, name, "lasting"), consumer(nsqd, name, "tail#ephemeral"):
        pass
    found = eventually(
        lambda: topic_stats(nsqd, name),
        lambda found: [each["channel_name"] for each in found["channels"]] == ["lasting"],
    )
    assert found["channels"][0]["client_count"] == 0
    assert nsqd.post(f"/channel/delete?topic={topic}%23ephemeral&channel=lasting").status == 200
    eventually(lambda: topic_stats(nsqd, name), lambda found: not found)
