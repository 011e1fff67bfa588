from __future__ import annotations

import itertools

from nsq.daemons.nsqd.core.backlog import EphemeralBacklog, MemoryBacklog
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.message import Message
from nsq.daemons.nsqd.core.topic import Topic
from tests.unit.daemons.nsqd.clock import FakeClock

_numbers = itertools.count()


def message(body: bytes, due: float = 0.0) -> Message:
    return Message(b"%016x" % next(_numbers), body, 0, due)


class Setup:
    def __init__(self, *, started: bool = True, limit: int | None = None) -> None:
        self.clock = FakeClock(now=100.0)
        backlog = MemoryBacklog() if limit is None else EphemeralBacklog(limit)
        self.topic = Topic("t", backlog, self._make, self.clock.call_soon)
        if started:
            self.topic.start()

    def _make(self, topic_name: str, name: str) -> Channel:
        return Channel(
            topic_name,
            name,
            MemoryBacklog(),
            self.clock,
            wake=lambda channel: self.clock.call_soon(channel.pump),
            chance=lambda limit: 0,
        )

    def put(self, *bodies: bytes) -> None:
        self.topic.put([message(body) for body in bodies])

    def waiting(self, channel: str) -> list[Message]:
        return self.topic.channels[channel].backlog.take(1000)


def bodies(messages: list[Message]) -> list[bytes]:
    return [each.body for each in messages]


def test_messages_wait_for_the_first_channel_which_gets_them_all() -> None:
    setup = Setup()
    setup.put(b"a", b"b")
    setup.topic.put_deferred(message(b"c", due=105.0))
    assert (setup.topic.depth, setup.topic.message_count, setup.topic.message_bytes) == (3, 3, 3)
    channel = setup.topic.channel("one")
    assert setup.topic.depth == 0
    assert (channel.depth, channel.deferred_count, channel.message_count) == (2, 1, 3)
    setup.topic.channel("two")
    assert bodies(setup.waiting("two")) == []
    assert setup.topic.channel("one") is channel


def test_every_channel_gets_a_copy_of_its_own() -> None:
    setup = Setup()
    for name in ("one", "two", "three"):
        setup.topic.channel(name)
    setup.put(b"a", b"b")
    copies = [setup.waiting(name) for name in ("one", "two", "three")]
    assert [bodies(each) for each in copies] == [[b"a", b"b"]] * 3
    assert len({id(each) for batch in copies for each in batch}) == 6
    assert len({each.id for batch in copies for each in batch}) == 2


def test_deferred_messages_are_copied_too() -> None:
    setup = Setup()
    channels = [setup.topic.channel(name) for name in ("one", "two")]
    setup.topic.put_deferred(message(b"a", due=105.0))
    assert [channel.deferred_count for channel in channels] == [1, 1]
    setup.clock.advance(5.0)
    assert [channel.depth for channel in channels] == [1, 1]


def test_a_deferred_message_that_waited_beyond_its_time_is_due_at_once() -> None:
    setup = Setup()
    setup.topic.put_deferred(message(b"a", due=105.0))
    setup.clock.advance(60.0)
    channel = setup.topic.channel("one")
    setup.clock.settle()
    assert (channel.depth, channel.deferred_count) == (1, 0)


def test_a_paused_topic_keeps_its_messages_while_its_channels_go_on() -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    setup.put(b"a")
    setup.topic.pause(True)
    setup.put(b"b")
    setup.topic.put_deferred(message(b"c", due=101.0))
    setup.topic.channel("two")
    assert (setup.topic.depth, channel.depth) == (2, 1)
    setup.topic.pause(False)
    assert (setup.topic.depth, channel.depth, channel.deferred_count) == (0, 2, 1)
    assert bodies(setup.waiting("two")) == [b"b"]


def test_nothing_flows_before_the_topic_has_started() -> None:
    setup = Setup(started=False)
    setup.put(b"a")
    channels = [setup.topic.channel(name) for name in ("one", "two")]
    setup.put(b"b")
    assert setup.topic.depth == 2
    setup.topic.start()
    assert [channel.depth for channel in channels] == [2, 2]


def test_emptying_drops_what_waits_in_the_topic_only() -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    setup.put(b"a")
    setup.topic.pause(True)
    setup.put(b"b")
    setup.topic.put_deferred(message(b"c", due=105.0))
    setup.topic.empty()
    setup.topic.pause(False)
    assert (setup.topic.depth, channel.depth, channel.deferred_count) == (0, 1, 0)


def test_after_the_last_channel_messages_wait_again() -> None:
    setup = Setup()
    setup.topic.channel("one")
    assert setup.topic.remove_channel("one") is not None
    assert setup.topic.remove_channel("one") is None
    setup.put(b"a")
    assert setup.topic.depth == 1


def test_an_ephemeral_topic_bounds_what_waits_deferred_or_not() -> None:
    setup = Setup(limit=2)
    setup.put(b"a")
    for _ in range(3):
        setup.topic.put_deferred(message(b"b", due=105.0))
    setup.put(b"c")
    assert setup.topic.depth == 2
