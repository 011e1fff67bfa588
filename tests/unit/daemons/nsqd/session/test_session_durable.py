"""A session of a durable nsqd: which replies wait until their messages are synced, and which do not."""

from __future__ import annotations

import pytest

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.patterns import Pattern
from nsq.daemons.nsqd.session.authorization import Grant, Rule
from nsq.wire import commands
from nsq.wire.frames import ErrorReply, RawMessage, Response
from tests.fakes.session import HEARTBEAT, OK, Client, FakeAuthority, FakeSyncNotifier, World


class Durable(World):
    def __init__(self, *, authority: FakeAuthority | None = None, **options: object) -> None:
        super().__init__(authority=authority, **options)
        self.notifier = FakeSyncNotifier()
        self.environment.sync_notifier = self.notifier

    def subscribed(self, topic: str = "t", rdy: int = 9) -> Client:
        client = self.client()
        client.send(commands.sub(topic, "c"))
        self.notifier.sync()
        assert client.frames() == [OK]
        client.send(commands.rdy(rdy))
        return client


PUBLICATIONS = [
    commands.pub("t", b"a"),
    commands.mpub("t", [b"a", b"b"]),
    commands.dpub("t", 1000, b"a"),
    commands.dpub("t", 0, b"a"),
    commands.sub("t", "c"),
]


@pytest.mark.parametrize("command", PUBLICATIONS, ids=lambda command: str(command[:6]))
def test_the_ok_waits_for_the_disk(command: bytes) -> None:
    world = Durable()
    client = world.client()
    client.send(command)
    assert client.frames() == []
    world.notifier.sync()
    assert client.frames() == [OK]
    assert world.notifier.waiters == 0


@pytest.mark.parametrize("command", PUBLICATIONS, ids=lambda command: str(command[:6]))
def test_a_failing_disk_ends_the_connection_and_refuses_a_sub(command: bytes) -> None:
    """A publish gets no reply: neither OK nor an error would be true."""
    world = Durable()
    client = world.client()
    client.send(command)
    world.notifier.sync(fails=True)
    refusal = [ErrorReply(b"E_SUB_FAILED SUB failed the channel could not be saved")]
    assert (client.frames(), client.link.finished) == (refusal if b"SUB" in command else [], True)


def test_commands_of_one_chunk_wait_for_one_sync_in_order() -> None:
    world = Durable()
    client = world.client()
    client.send(commands.pub("t", b"a") * 3, commands.sub("t", "c"), commands.rdy(9), b"CLS\n")
    assert world.notifier.waiters == 1
    assert client.frames() == []
    world.notifier.sync()
    found = client.frames()
    assert found[:5] == [OK] * 4 + [Response(b"CLOSE_WAIT")]


def test_messages_do_not_overtake_the_ok_they_follow() -> None:
    world = Durable()
    client = world.subscribed()
    client.send(commands.pub("t", b"a"))
    assert client.frames() == []
    world.notifier.sync()
    first, second = client.frames()
    assert (first, isinstance(second, RawMessage)) == (OK, True)


def test_a_message_is_delivered_and_answered_before_its_publish_is_synced() -> None:
    world = Durable()
    consumer, producer = world.subscribed(), world.client()
    producer.send(commands.pub("t", b"a"))
    (message,) = consumer.messages()
    consumer.send(commands.fin(message.id))
    assert producer.frames() == consumer.frames() == []
    world.notifier.sync()
    assert producer.frames() == [OK]


def test_heartbeats_do_not_wait() -> None:
    world = Durable()
    client = world.client()
    client.send(commands.pub("t", b"a"))
    world.clock.advance(31.0)
    assert client.frames() == [HEARTBEAT]
    world.notifier.sync()
    assert client.frames() == [OK]


@pytest.mark.parametrize("behind", [b"NONSENSE\n", commands.pub("bad*name", b"a")])
def test_a_fatal_error_behind_a_publication_comes_behind_its_ok(behind: bytes) -> None:
    world = Durable()
    client = world.client()
    client.send(commands.pub("t", b"a"), behind)
    assert (client.frames(), client.link.finished) == ([], False)
    world.notifier.sync()
    ok, error = client.frames()
    assert (ok, isinstance(error, ErrorReply), client.link.finished) == (OK, True, True)


def test_garbage_behind_a_publication_still_ends_the_connection() -> None:
    world = Durable()
    client = world.client()
    client.upgrade(["snappy"])
    client.send(commands.pub("t", b"a"))
    client.send_raw(b"garbage that is no snappy frame")
    assert not client.link.finished
    world.notifier.sync()
    assert client.link.finished


def test_a_refused_publication_is_answered_at_once() -> None:
    world = Durable()
    client = world.client()
    backlog = world.broker.topic("t").backlog

    def refuse(messages: object) -> None:
        raise StorageFailed("[Errno 28] No space left on device")

    backlog.put = refuse  # type: ignore[assignment, method-assign]
    assert client.refused(commands.pub("t", b"a")) == (
        b"E_PUB_FAILED PUB failed [Errno 28] No space left on device"
    )


def test_a_client_that_left_before_the_sync_does_no_harm() -> None:
    world = Durable()
    gone, other = world.client(), world.client()
    for client in (gone, other):
        client.send(commands.pub("t", b"a"))
    gone.drop()
    world.notifier.sync()
    assert other.frames() == [OK]


def test_layers_do_not_change_while_replies_are_held() -> None:
    world = Durable()
    client = world.client()
    client.send(commands.pub("t", b"a"), commands.identify(b'{"feature_negotiation":true,"snappy":true}'))
    world.notifier.sync()
    assert client.frames() == [OK, ErrorReply(b"E_INVALID cannot IDENTIFY in current state")]


def test_a_publish_delayed_by_the_auth_server_also_waits_for_the_disk() -> None:
    authority = FakeAuthority()
    world = Durable(authority=authority)
    client = world.client()
    everything = Rule(Pattern(""), (Pattern(""),), frozenset({"publish", "subscribe"}))
    client.send(commands.auth(b"secret"))
    authority.answer(Grant((everything,), world.clock.now() + 10.0))
    assert len(client.frames()) == 1
    world.clock.advance(11.0)
    client.send(commands.pub("t", b"a"), b"NONSENSE\n")
    authority.answer(Grant((everything,), world.clock.now() + 10.0))
    assert (client.frames(), client.link.finished, world.notifier.waiters) == ([], False, 1)
    world.notifier.sync()
    ok, error = client.frames()
    assert (ok, isinstance(error, ErrorReply), client.link.finished) == (OK, True, True)
