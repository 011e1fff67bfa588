from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from nsq.daemons.nsqd.core.backlog import (
    Batch,
    EphemeralBacklog,
    MemoryBacklog,
    Message,
    PartlyStored,
    StorageFailed,
)
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.deferred import DeferredInMemory
from nsq.daemons.nsqd.core.topic import Topic
from tests.fakes.clock import FakeClock

_numbers = itertools.count()


def message(body: bytes, due: float = 0.0) -> Message:
    return Message(b"%016x" % next(_numbers), body, 0, due)


def batch(bodies: Sequence[bytes]) -> Batch:
    return Batch([b"%016x" % next(_numbers) for _ in bodies], list(bodies), 0)


class Setup:
    def __init__(self, *, started: bool = True, limit: int | None = None) -> None:
        self.clock = FakeClock(now=100.0)
        backlog = MemoryBacklog() if limit is None else EphemeralBacklog(limit)
        self.topic = Topic("t", backlog, self._make, self.clock.call_soon, self.clock.call_soon)
        if started:
            self.topic.start()

    def _make(self, topic_name: str, name: str) -> Channel:
        return Channel(
            topic_name,
            name,
            MemoryBacklog(),
            DeferredInMemory(),
            self.clock,
            wake=lambda channel: self.clock.call_soon(channel.pump),
            on_another_turn=self.clock.call_soon,
            chance=lambda limit: 0,
        )

    def put(self, *bodies: bytes) -> None:
        self.topic.put(batch(bodies))

    def waiting(self, channel: str) -> list[Message]:
        return self.topic.channels[channel].backlog.take(1000)


def bodies(messages: list[Message]) -> list[bytes]:
    return [each.body for each in messages]


def test_messages_wait_for_the_first_channel_which_gets_them_all() -> None:
    setup = Setup()
    setup.put(b"a", b"b")
    setup.topic.put_deferred([message(b"c", due=105.0)])
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


def test_a_deferred_message_that_waited_beyond_its_time_is_due_at_once() -> None:
    setup = Setup()
    setup.topic.put_deferred([message(b"a", due=105.0)])
    setup.clock.advance(60.0)
    channel = setup.topic.channel("one")
    setup.clock.run_due()
    assert (channel.depth, channel.deferred_count) == (1, 0)


def test_nothing_flows_before_the_topic_has_started() -> None:
    setup = Setup(started=False)
    setup.put(b"a")
    channels = [setup.topic.channel(name) for name in ("one", "two")]
    setup.put(b"b")
    assert setup.topic.depth == 2
    setup.topic.start()
    assert [channel.depth for channel in channels] == [2, 2]


def test_an_ephemeral_topic_bounds_its_deferred_messages_too() -> None:
    setup = Setup(limit=2)
    setup.put(b"a")
    for _ in range(3):
        setup.topic.put_deferred([message(b"b", due=105.0)])
    setup.put(b"c")
    assert setup.topic.depth == 2


class Full(MemoryBacklog):
    """A disk that takes so many messages more; ``lends`` says whether memory takes others."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1_000_000
        self.lends = False
        self.finished_call: Callable[[list[Message]], None] = lambda messages: None

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        if self.lends:
            self.finished_call = finished
            super().put([each for each in messages if not each.due])
        return self.lends

    def put(self, messages: list[Message]) -> None:
        if len(messages) > self.room:
            raise StorageFailed("no room")
        self.room -= len(messages)
        super().put(messages)


class FullDeferred(DeferredInMemory):
    """The same disk, for deferred messages."""

    def __init__(self, disk: Full) -> None:
        super().__init__()
        self.disk = disk

    def add(self, messages: list[Message]) -> None:
        if len(messages) > self.disk.room:
            raise StorageFailed("no room")
        self.disk.room -= len(messages)
        super().add(messages)


class Refusing(Setup):
    """Two channels, made while the topic was paused; the disk of the second refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[Callable[[], None]] = []
        self.topic = Topic("t", MemoryBacklog(), self._make, self.tries.append, self.clock.call_soon)
        self.topic.start()
        self.topic.pause(True)
        self.put(b"a", b"b")
        self.topic.put_deferred([message(b"later", due=150.0)])
        for name in ("willing", "full"):
            self.disk = Full()
            channel = self.topic.channel(name)
            channel.backlog, channel.deferred = self.disk, FullDeferred(self.disk)
        self.disk.room = 0

    def depths(self) -> tuple[int, list[int]]:
        channels = self.topic.channels.values()
        return self.topic.depth, [channel.depth + channel.deferred_count for channel in channels]

    def try_again(self) -> None:
        self.tries.pop()()


class TestWhereAChannelsDiskRefuses:
    def test_a_channel_gets_no_message_twice_from_its_topic(self) -> None:
        setup = Refusing()
        setup.disk.room = 2  # the deferred one does not fit
        setup.topic.pause(False)
        for _ in range(3):
            setup.try_again()
        assert setup.depths() == (3, [3, 2])
        setup.disk.room = 10
        setup.try_again()
        assert (setup.depths(), setup.tries) == ((0, [3, 3]), [])

    def test_messages_published_meanwhile_wait_behind_the_old_ones(self) -> None:
        setup = Refusing()
        setup.topic.pause(False)
        setup.put(b"c")
        setup.topic.put_deferred([message(b"later still", due=160.0)])
        assert setup.depths() == (5, [3, 0])
        setup.disk.room = 10
        setup.try_again()
        assert setup.depths() == (0, [5, 5])
        assert bodies(setup.waiting("full")) == [b"a", b"b", b"c"]

    def test_a_release_goes_on_without_a_deleted_channel(self) -> None:
        setup = Refusing()
        setup.topic.pause(False)
        setup.topic.remove_channel("full")
        setup.try_again()
        assert setup.depths() == (0, [3])

    def test_messages_of_a_deleted_only_channel_wait_for_the_next_channel(self) -> None:
        setup = Refusing()
        setup.topic.remove_channel("willing")
        setup.topic.pause(False)
        setup.topic.remove_channel("full")
        setup.try_again()
        assert setup.depths() == (3, [])
        setup.topic.channel("new")
        assert setup.depths() == (0, [3])

    def test_a_durable_topic_keeps_a_message_until_its_consumers_have_finished_it(self) -> None:
        setup = Refusing()
        kept: list[bytes] = []
        setup.topic.backlog.finished = lambda messages: kept.extend(bodies(messages))  # type: ignore[method-assign]
        setup.disk.lends = True
        setup.topic.pause(False)
        assert setup.depths() == (0, [3, 3])
        assert kept == []
        first, second = setup.waiting("full")
        setup.disk.finished_call([second])
        setup.disk.finished_call([first])
        assert kept == [b"b", b"a"]

    def test_a_stop_returns_the_refused_portion(self) -> None:
        setup = Refusing()
        setup.topic.pause(False)
        assert bodies(setup.topic.close()) == [b"a", b"b", b"later"]
        setup.try_again()
        assert setup.depths()[1] == [3, 0]

    @pytest.mark.parametrize("due", [0.0, 150.0], ids=["at once", "deferred"])
    def test_a_publisher_is_told_what_other_channels_have_got(self, due: float) -> None:
        setup = Refusing()
        setup.topic.empty()
        setup.topic.pause(False)

        def put() -> None:
            if due:
                setup.topic.put_deferred([message(b"x", due)])
            else:
                setup.put(b"x")

        with pytest.raises(PartlyStored, match=r"no room \(channel full; another has the messages\)"):
            put()
        assert setup.depths() == (0, [0, 1])
        # Now the full channel is asked first, so no other one gets what is refused.
        with pytest.raises(StorageFailed) as refused:
            put()
        assert type(refused.value) is StorageFailed
        assert setup.depths() == (0, [0, 1])
        assert setup.topic.message_count == 3
        setup.disk.room = 10
        put()
        assert setup.depths() == (0, [1, 2])

    def test_emptying_gives_all_channels_what_one_has_got_in_part(self) -> None:
        setup = Refusing()
        setup.disk.room = 2  # the deferred one does not fit
        willing, full = setup.topic.channels.values()
        setup.topic.channels = {"full": full, "willing": willing}
        setup.topic.pause(False)
        assert setup.depths() == (3, [2, 0])
        setup.disk.room = 10
        setup.topic.empty()
        assert setup.depths() == (0, [3, 3])
