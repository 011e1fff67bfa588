"""A topic hands thousands of waiting messages to a channel in portions, between which other work runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise

import pytest

from nsq.daemons.nsqd.core.backlog import Batch, EphemeralBacklog, MemoryBacklog, Message, StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.deferred import DeferredInMemory
from nsq.daemons.nsqd.core.topic import Topic
from tests.fakes.clock import FakeClock

_numbers = itertools.count()

MANY = 5500


class Refusing(MemoryBacklog):
    """A disk that takes so many messages more."""

    room = 10**9

    def put(self, messages: list[Message]) -> None:
        if len(messages) > self.room:
            raise StorageFailed("no room")
        self.room -= len(messages)
        super().put(messages)


class Remembering(MemoryBacklog):
    """Knows what was taken and neither finished nor put back."""

    needs_finished = True

    def __init__(self) -> None:
        super().__init__()
        self.unfinished: dict[bytes, Message] = {}

    def take(self, limit: int) -> list[Message]:
        taken = super().take(limit)
        self.unfinished.update((each.id, each) for each in taken)
        return taken

    def finished(self, messages: list[Message]) -> None:
        for each in messages:
            del self.unfinished[each.id]


class Setup:
    """A topic with many messages and no channel."""

    def __init__(self, backlog: MemoryBacklog | None = None, many: int = MANY) -> None:
        self.clock = FakeClock()
        self.later: list[Callable[[], None]] = []
        backlog = Remembering() if backlog is None else backlog
        self.topic = Topic("t", backlog, self._make, self.later.append, self.clock.call_soon)
        self.topic.start()
        self.sent = 0
        self.put(many)

    def _make(self, topic_name: str, name: str) -> Channel:
        return Channel(
            topic_name,
            name,
            Refusing(),
            DeferredInMemory(),
            self.clock,
            wake=lambda channel: None,
            on_another_turn=self.clock.call_soon,
            chance=lambda limit: 0,
        )

    def put(self, count: int, due: float = 0.0) -> None:
        bodies = range(self.sent, self.sent + count)
        ids = [b"%016x" % next(_numbers) for _ in bodies]
        if due:
            for message_id, n in zip(ids, bodies, strict=True):
                self.topic.put_deferred([Message(message_id, b"%d" % n, 0, due)])
        else:
            self.topic.put(Batch(ids, [b"%d" % n for n in bodies], 0))
        self.sent += count

    def got(self, channel: Channel) -> list[int]:
        return [int(each.body) for each in channel.backlog.take(10**6)]


def everything(setup: Setup) -> list[int]:
    return list(range(setup.sent))


def test_a_release_hands_over_one_portion_a_turn() -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    depths = [channel.depth]
    while not setup.clock.idle:
        setup.clock.step()
        depths.append(channel.depth)
    assert depths == [1000, 2000, 3000, 4000, 5000, 5500]
    assert setup.topic.depth == 0
    assert setup.got(channel) == everything(setup)


def test_large_messages_come_in_smaller_portions() -> None:
    setup = Setup(many=0)
    for number in range(5):
        setup.topic.put(Batch([b"%016x" % number], [b"x" * 400_000], 0))
    channel = setup.topic.channel("one")
    depths = [channel.depth]
    while not setup.clock.idle:
        assert channel.depth + setup.topic.depth == 5
        setup.clock.step()
        depths.append(channel.depth)
    assert depths == [3, 5]  # a MiB a turn, and what it began


def test_many_channels_get_smaller_portions() -> None:
    setup = Setup(many=0)
    setup.topic.pause(True)
    channels = [setup.topic.channel(str(number)) for number in range(100)]
    setup.put(350)
    setup.topic.pause(False)
    depths = [channels[0].depth]
    while not setup.clock.idle:
        setup.clock.step()
        depths.append(channels[0].depth)
    assert depths == [50, 100, 150, 200, 250, 300, 350]
    assert {channel.depth for channel in channels} == {350}


def test_messages_published_during_a_release_come_last() -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    while not setup.clock.idle:
        setup.put(10)
        setup.clock.step()
    setup.put(10)
    assert setup.got(channel) == everything(setup)
    assert setup.topic.message_count == setup.sent


def test_more_than_200_channels_get_published_messages_one_after_the_other() -> None:
    setup = Setup(many=0)
    channels = [setup.topic.channel(str(number)) for number in range(450)]
    setup.put(250)
    setup.put(1, due=setup.clock.now() + 60)
    counts = [0]
    while setup.topic.depth:
        counts.append(sum(channel.depth + channel.deferred_count for channel in channels))
        setup.clock.step()
    assert max(after - before for before, after in pairwise(counts)) == 5_000
    assert {(channel.depth, channel.deferred_count) for channel in channels} == {(250, 1)}
    assert setup.got(channels[-1]) == list(range(250))


def test_a_stop_gives_all_channels_what_some_of_more_than_200_have_already() -> None:
    setup = Setup(many=0)
    channels = [setup.topic.channel(str(number)) for number in range(450)]
    setup.put(150)
    setup.clock.step()
    assert {channel.depth for channel in channels} == {0, 100}
    assert setup.topic.close() == []
    assert setup.topic.depth == 50
    assert {channel.depth for channel in channels} == {100}


@pytest.mark.parametrize(("count", "many", "published"), [(1, MANY, 2000), (100, 1000, 50), (450, 1000, 20)])
def test_publishers_that_wait_while_a_topic_is_crowded_do_not_stay_ahead(
    count: int, many: int, published: int
) -> None:
    setup = Setup(many=many)
    setup.topic.pause(True)
    channels = [setup.topic.channel(str(number)) for number in range(count)]
    setup.topic.pause(False)

    def publish() -> None:
        setup.put(published)
        again = setup.topic.when_caught_up if setup.topic.crowded else setup.clock.call_soon
        again(publish)

    publish()
    copies = [0]
    for _ in range(400):
        setup.clock.step()
        copies.append(sum(channel.depth for channel in channels))
    assert setup.topic.depth <= 2 * published + 200
    assert max(after - before for before, after in pairwise(copies)) <= 10_000 + published * count
    assert setup.got(channels[-1])[: many + 1000] == list(range(many + 1000))


@pytest.mark.parametrize("end", ["pause", "delete the channel"])
def test_publishers_do_not_wait_for_a_release_that_has_ended(end: str) -> None:
    setup = Setup()
    setup.topic.channel("one")
    setup.put(3000)
    assert setup.topic.crowded
    called: list[bool] = []
    setup.topic.when_caught_up(lambda: called.append(True))
    if end == "pause":
        setup.topic.pause(True)
    else:
        setup.topic.remove_channel("one")
    setup.clock.run_due()
    assert called == [True]
    assert not setup.topic.crowded


class TestAChannelThatComesMeanwhile:
    def test_a_late_channel_gets_messages_published_from_then_on(self) -> None:
        setup = Setup()
        first = setup.topic.channel("first")
        setup.put(7)
        second = setup.topic.channel("second")
        before = setup.sent
        setup.put(1200)
        setup.clock.step()
        third = setup.topic.channel("third")
        between = setup.sent
        setup.put(5)
        setup.clock.run_due()
        setup.put(1)
        assert setup.got(first) == everything(setup)
        assert setup.got(second) == everything(setup)[before:]
        assert setup.got(third) == everything(setup)[between:]

    def test_a_late_channel_of_an_ephemeral_topic_gets_messages_that_are_kept(self) -> None:
        setup = Setup(EphemeralBacklog(MANY))
        setup.topic.channel("first")
        setup.put(500)
        second = setup.topic.channel("second")
        before = setup.sent
        setup.put(800)  # there is room for 500
        setup.clock.run_due()
        assert setup.got(second) == list(range(before, before + 500))

    def test_a_late_channel_gets_the_rest_when_the_first_is_deleted(self) -> None:
        setup = Setup()
        setup.topic.channel("first")
        second = setup.topic.channel("second")
        setup.topic.remove_channel("first")
        setup.clock.run_due()
        assert setup.got(second) == everything(setup)[1000:]

    def test_a_late_channel_gets_messages_that_a_deleted_channel_refused(self) -> None:
        setup = Setup()
        first = setup.topic.channel("first")
        assert isinstance(first.backlog, Refusing)
        first.backlog.room = 0
        setup.clock.step()
        second = setup.topic.channel("second")
        setup.topic.remove_channel("first")
        setup.later.pop()()
        setup.clock.run_due()
        assert setup.got(second) == everything(setup)[1000:]

    def test_a_late_channel_gets_what_waits_after_a_pause(self) -> None:
        setup = Setup()
        setup.topic.channel("first")
        second = setup.topic.channel("second")
        setup.topic.pause(True)
        setup.clock.run_due()
        third = setup.topic.channel("third")
        setup.topic.pause(False)
        setup.clock.run_due()
        for channel in (second, third):
            assert setup.got(channel) == everything(setup)[1000:]


def test_a_pause_holds_the_rest_back() -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    setup.clock.step()
    setup.topic.pause(True)
    setup.clock.run_due()
    assert (channel.depth, setup.topic.depth) == (2000, 3500)
    setup.topic.pause(False)
    setup.clock.run_due()
    assert setup.got(channel) == everything(setup)


@pytest.mark.parametrize("settled", [False, True])
def test_a_pause_makes_a_release_no_faster(settled: bool) -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    for _ in range(10):
        setup.topic.pause(True)
        if settled:
            setup.clock.run_due()
        setup.topic.pause(False)
    before = channel.depth
    setup.clock.step()
    assert channel.depth <= before + 1000
    setup.clock.run_due()
    assert setup.got(channel) == everything(setup)


def test_the_rest_of_a_release_waits_for_the_next_channel() -> None:
    setup = Setup()
    setup.topic.channel("one")
    setup.topic.remove_channel("one")
    setup.clock.step()
    setup.put(3)
    assert setup.topic.depth == MANY - 1000 + 3
    channel = setup.topic.channel("two")
    setup.clock.run_due()
    assert setup.got(channel) == everything(setup)[1000:]


def test_emptying_ends_a_release() -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    setup.topic.empty()
    late = setup.topic.channel("two")
    setup.put(2)
    setup.clock.run_due()
    assert setup.topic.depth == 0
    assert setup.got(channel) == [*range(1000), MANY, MANY + 1]
    assert setup.got(late) == [MANY, MANY + 1]


def test_emptying_gives_all_channels_what_some_of_more_than_200_have_already() -> None:
    setup = Setup(many=0)
    channels = [setup.topic.channel(str(number)) for number in range(450)]
    setup.put(150)
    setup.clock.step()
    assert {channel.depth for channel in channels} == {0, 100}
    setup.topic.empty()
    assert {channel.depth for channel in channels} == {100}
    assert setup.topic.depth == 0
    setup.put(1)
    setup.clock.run_due()
    assert setup.got(channels[0]) == setup.got(channels[-1]) == [*range(100), 150]


def test_a_release_waits_for_a_disk_that_refuses() -> None:
    setup = Setup()
    channel = setup.topic.channel("one")
    assert isinstance(channel.backlog, Refusing)
    channel.backlog.room = 1500
    setup.clock.run_due()
    setup.put(3)
    assert (channel.depth, setup.topic.depth, len(setup.later)) == (2000, 3503, 1)
    channel.backlog.room = 10**9
    setup.later.pop()()
    setup.clock.run_due()
    assert setup.got(channel) == everything(setup)
    assert setup.later == []


def test_a_stop_leaves_the_rest_of_a_release_in_the_backlog() -> None:
    backlog = Remembering()
    setup = Setup(backlog)
    channel = setup.topic.channel("one")
    setup.clock.step()
    assert setup.topic.close() == []
    setup.clock.run_due()
    assert (channel.depth, setup.topic.depth) == (2000, 3500)
    assert backlog.unfinished == {}


def test_a_deleted_topic_is_left_alone() -> None:
    clock = FakeClock()
    broker = Broker(clock)
    broker.publish("t", [b"a"] * MANY)
    channel = broker.topic("t").channel("c")
    broker.delete_topic("t")
    broker.publish("t", [b"b"])
    clock.run_due()
    assert channel.depth == 0
    assert broker.topic("t").depth == 1


def test_two_topics_take_turns() -> None:
    clock = FakeClock()
    broker = Broker(clock)
    for name in "ab":
        broker.publish(name, [b"x"] * 3000)
    channels = [broker.topic(name).channel("c") for name in "ab"]
    seen = []
    while broker.topics["a"].depth or broker.topics["b"].depth:
        clock.step()
        seen.append([channel.depth for channel in channels])
    assert seen == [[2000, 1000], [2000, 2000], [3000, 2000], [3000, 3000]]
