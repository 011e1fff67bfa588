from __future__ import annotations

from collections.abc import Callable

import pytest

from nsq.daemons.nsqd.core.backlog import MAX_ATTEMPTS, MemoryBacklog, Message
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import (
    ANYWHERE,
    REGION_LOCAL,
    ZONE_LOCAL,
    Channel,
    Subscriber,
)
from nsq.daemons.nsqd.core.deferred import DeferredInMemory
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer

UNKNOWN = b"f" * 16


class Setup:
    """One channel and its clock; ``run_due`` makes it hand out waiting messages."""

    def __init__(self, *, max_consumers: int = 0, chance: Callable[[int], int] = lambda limit: 0) -> None:
        self.clock = FakeClock()
        self.pumps = 0
        self._number = 0
        self.channel = Channel(
            "t",
            "c",
            MemoryBacklog(),
            DeferredInMemory(),
            self.clock,
            wake=self._wake,
            on_another_turn=self.clock.call_soon,
            chance=chance,
            max_consumers=max_consumers,
        )

    def _wake(self, channel: Channel) -> None:
        self.clock.call_soon(self._pump)

    def _pump(self) -> None:
        self.pumps += 1
        self.channel.pump()

    def put(self, *bodies: bytes) -> None:
        self.channel.put([self._message(body) for body in bodies])

    def defer(self, body: bytes, delay: float) -> None:
        self.channel.put_deferred([self._message(body, self.clock.now() + delay)])

    def _message(self, body: bytes, due: float = 0.0) -> Message:
        self._number += 1
        return Message(b"%016x" % self._number, body, self.clock.time_ns(), due)

    def consumer(self, rdy: int, *, msg_timeout: float = 60.0, max_msg_timeout: float = 900.0) -> Consumer:
        return self.join(Consumer(rdy=rdy, msg_timeout=msg_timeout, max_msg_timeout=max_msg_timeout))

    def join(self, consumer: Consumer) -> Consumer:
        self.channel.subscribe(consumer.subscriber)
        self.run_due()
        return consumer

    def run_due(self) -> None:
        self.clock.run_due()


# Handing out


def test_finishing_many_messages_returns_those_that_are_not_in_flight() -> None:
    setup = Setup()
    consumer, other = setup.consumer(2), setup.consumer(1)
    setup.put(b"a", b"b", b"c", b"d")
    setup.run_due()
    mine, theirs = list(consumer.subscriber.in_flight), next(iter(other.subscriber.in_flight))
    failed = setup.channel.finish(consumer.subscriber, [mine[0], UNKNOWN, theirs, mine[1], mine[0]])
    assert [(message_id, str(reason)) for message_id, reason in failed] == [
        (UNKNOWN, "ID not in flight"),
        (theirs, "client does not own message"),
        (mine[0], "ID not in flight"),
    ]
    assert (consumer.subscriber.finish_count, other.subscriber.finish_count) == (2, 0)
    setup.run_due()
    assert len(consumer.held) == 1
    assert list(other.subscriber.in_flight) == [theirs]


def test_several_events_start_one_delivery() -> None:
    setup = Setup()
    setup.consumer(100)
    before = setup.pumps
    for _ in range(50):
        setup.put(b"x")
    setup.run_due()
    assert setup.pumps == before + 1


def test_a_busy_consumers_turns_are_shared_by_all_the_others() -> None:
    setup = Setup()
    consumers = [setup.consumer(0), setup.consumer(1000), setup.consumer(1000), setup.consumer(1000)]
    for _ in range(9):
        setup.put(b"x")
        setup.run_due()
    assert [len(consumer.delivered) for consumer in consumers] == [0, 3, 3, 3]


def test_a_consumer_gets_a_bounded_number_of_messages_at_a_time() -> None:
    setup = Setup()

    class Fills(Consumer):
        def deliver(self, messages: list[Message]) -> None:
            super().deliver(messages)
            self.full = True

    slow = setup.join(Fills(rdy=2500))
    setup.put(*[b"x"] * 1000)
    setup.run_due()
    assert len(slow.delivered) == 256
    assert setup.channel.depth == 744


def test_a_consumer_that_leaves_while_it_is_served_loses_nothing() -> None:
    """A connection can break in the very moment it is written to."""
    setup = Setup()

    class Breaks(Consumer):
        def deliver(self, messages: list[Message]) -> None:
            super().deliver(messages)
            setup.channel.unsubscribe(self.subscriber)

    broken = setup.join(Breaks(rdy=10))
    sound = setup.consumer(10)
    setup.put(b"a", b"b", b"c", b"d")
    setup.run_due()
    assert sorted(sound.held) == [b"a", b"b", b"c", b"d"]
    assert setup.channel.subscribers == [sound.subscriber]
    assert len(broken.delivered) == 2


def test_sampling_keeps_one_percent_more_than_asked_for() -> None:
    chances = iter([0, 25, 26, 99])
    setup = Setup(chance=lambda limit: next(chances))
    consumer = setup.join(Consumer(rdy=10, sample_rate=25))
    setup.put(b"a", b"b", b"c", b"d")
    setup.run_due()
    assert consumer.bodies == [b"a", b"b"]
    assert (setup.channel.depth, setup.channel.in_flight_count, sum(setup.channel.delivered)) == (0, 2, 2)


def test_a_batch_that_is_sampled_away_entirely_is_no_delivery() -> None:
    setup = Setup(chance=lambda limit: 99)
    consumer = setup.join(Consumer(rdy=10, sample_rate=1))
    setup.put(*[b"x"] * 200)
    setup.run_due()
    assert consumer.delivered == []
    assert setup.channel.depth == 0


# Pausing


# Time


def test_a_touch_can_shorten_the_timeout() -> None:
    """This happens only with a --msg-timeout above --max-msg-timeout."""
    setup = Setup()
    consumer = setup.consumer(1, msg_timeout=60.0, max_msg_timeout=10.0)
    setup.put(b"a")
    setup.run_due()
    consumer.subscriber.rdy = 0
    setup.channel.touch(consumer.subscriber, consumer.id_of(b"a"))
    setup.clock.advance(10.0)
    assert consumer.held == []


# Answers that come too late, or from the wrong one


# Coming and going


def test_closing_disconnects_every_consumer_once_and_stops_the_timers() -> None:
    setup = Setup()
    consumers = [setup.consumer(1) for _ in range(3)]
    setup.put(b"a")
    setup.run_due()
    setup.channel.close()
    setup.clock.advance(1000.0)
    assert [consumer.closed for consumer in consumers] == [1, 1, 1]
    assert setup.channel.subscribers == []
    assert setup.clock.idle


class Unreadable(MemoryBacklog):
    """Counts its messages, and cannot be read at the moment."""

    def take(self, limit: int) -> list[Message]:
        return []


def test_a_message_that_cannot_be_read_yet_delays_no_other() -> None:
    setup = Setup()
    setup.channel.backlog = Unreadable()
    setup.consumer(rdy=1)
    setup.consumer(rdy=1)
    setup.put(b"a")
    setup.clock.run_due()
    assert (setup.channel.depth, setup.channel.in_flight_count) == (1, 0)


def test_a_stop_returns_messages_in_flight_and_leaves_deferred_ones() -> None:
    setup = Setup()
    setup.consumer(rdy=1)
    setup.put(b"a", b"b")
    setup.defer(b"c", 5.0)
    setup.clock.run_due()
    assert [each.body for each in setup.channel.close()] == [b"a"]
    assert setup.channel.deferred_count == 1


def test_messages_delivered_after_an_empty_time_out_too() -> None:
    setup = Setup()
    consumer = setup.consumer(1, msg_timeout=10.0)
    setup.put(b"a")
    setup.clock.advance(1.0)
    setup.channel.empty()
    setup.put(b"b")
    setup.clock.advance(11.0)
    assert consumer.bodies == [b"a", b"b", b"b"]


def test_thousands_that_are_due_at_once_come_in_portions() -> None:
    class Recording(MemoryBacklog):
        def put_back(self, messages: list[Message]) -> None:
            portions.append(len(messages))
            super().put_back(messages)

    portions: list[int] = []
    setup = Setup()
    setup.channel.backlog = Recording()
    for number in range(2500):
        setup.defer(b"%04d" % number, 5.0)
    setup.clock.advance(5.0)
    assert portions == [1000, 1000, 500]
    assert [each.body for each in setup.channel.backlog.take(3000)] == [b"%04d" % n for n in range(2500)]


def test_attempts_stop_at_what_the_wire_can_hold() -> None:
    message = Message(b"i" * 16, b"", 0)
    message.attempts = MAX_ATTEMPTS - 1
    attempts = []
    for _ in range(3):
        Consumer().subscriber.hand_over([message], 0.0)
        attempts.append(message.attempts)
    assert attempts == [0xFFFF, 0xFFFF, 0xFFFF]


class Near:
    def __init__(self, *consumers: tuple[int, int]) -> None:
        """Consumers by locality and RDY."""
        self.clock = FakeClock()
        self.broker = Broker(self.clock)
        self.consumers = [Consumer(rdy=rdy) for _, rdy in consumers]
        for consumer, (locality, _) in zip(self.consumers, consumers, strict=True):
            consumer.subscriber.locality = locality
            self.channel: Channel = self.broker.subscribe("t", "c", consumer.subscriber)

    def publish(self, count: int) -> list[int]:
        """Publish; return how many messages each consumer has got so far."""
        self.broker.publish("t", [b"%d" % number for number in range(count)])
        self.clock.run_due()
        return [len(consumer.delivered) for consumer in self.consumers]


def test_the_nearest_consumer_with_room_gets_all_it_can_take() -> None:
    setup = Near((ANYWHERE, 10), (ZONE_LOCAL, 3), (REGION_LOCAL, 4))
    assert setup.publish(2) == [0, 2, 0]
    assert setup.publish(4) == [0, 3, 3]
    assert setup.publish(4) == [3, 3, 4]
    assert setup.channel.delivered == [3, 4, 3]
    assert sum(setup.channel.delivered) == 10


def test_equally_near_consumers_take_turns() -> None:
    setup = Near((ZONE_LOCAL, 100), (ANYWHERE, 100), (ZONE_LOCAL, 100))
    assert setup.publish(10) == [5, 0, 5]
    for _ in range(10):
        setup.publish(1)
    assert [len(consumer.delivered) for consumer in setup.consumers] == [10, 0, 10]


def test_room_that_comes_back_nearby_is_used_again() -> None:
    setup = Near((ZONE_LOCAL, 1), (ANYWHERE, 1))
    near, far = setup.consumers
    assert setup.publish(3) == [1, 1]
    assert not setup.channel.finish(far.subscriber, [far.delivered[0].id])
    assert not setup.channel.finish(near.subscriber, [near.delivered[0].id])
    setup.clock.run_due()
    assert [len(near.delivered), len(far.delivered)] == [2, 1]


# The work for one message does not grow with the number of subscribers, nor the output with their sizes


class CountingConsumer(Consumer):
    """Counts how often the channel asks whether it is full."""

    asked = 0

    @property  # type: ignore[override]
    def full(self) -> bool:
        CountingConsumer.asked += 1
        return False

    @full.setter
    def full(self, full: bool) -> None: ...


class CountedIds(dict[bytes, Message]):
    """Counts how often an id is looked up in it."""

    looked_up = 0

    def __contains__(self, message_id: object) -> bool:
        CountedIds.looked_up += 1
        return super().__contains__(message_id)


def test_a_message_visits_few_of_many_idle_subscribers() -> None:
    setup = Setup()
    for _ in range(1000):
        setup.channel.subscribe(CountingConsumer(rdy=1).subscriber)
    setup.run_due()
    CountingConsumer.asked = 0
    for _ in range(500):
        setup.put(b"a")
        setup.run_due()
    assert setup.channel.in_flight_count == 500
    assert CountingConsumer.asked < 5000


def test_a_bad_fin_visits_few_of_many_subscribers() -> None:
    setup = Setup()
    consumers = [setup.consumer(1) for _ in range(1000)]
    for consumer in consumers:
        consumer.subscriber.in_flight = CountedIds()
    CountedIds.looked_up = 0
    setup.channel.finish(consumers[0].subscriber, [UNKNOWN])
    assert CountedIds.looked_up <= 64


def test_a_due_message_visits_no_subscriber_that_has_none_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[Subscriber] = []
    take_expired = Subscriber.take_expired

    def counted(subscriber: Subscriber, now: float) -> list[Message]:
        visited.append(subscriber)
        return take_expired(subscriber, now)

    monkeypatch.setattr(Subscriber, "take_expired", counted)
    setup = Setup()
    for _ in range(100):
        setup.consumer(0)
    consumer = setup.consumer(1)
    setup.defer(b"a", 1.0)
    setup.clock.advance(1.0)
    assert consumer.held == [b"a"]
    assert not visited
    setup.clock.advance(60.0)
    assert visited == [consumer.subscriber]


class SlowConsumer(Consumer):
    """Is full once it has got anything."""

    def deliver(self, messages: list[Message]) -> None:
        super().deliver(messages)
        self.full = True


def test_a_consumer_that_reads_nothing_gets_few_large_messages() -> None:
    setup = Setup()
    bodies = [b"%d" % number + b"x" * 100_000 for number in range(10)]
    setup.put(*bodies)
    slow = SlowConsumer(rdy=100)
    setup.join(slow)
    assert slow.bodies == bodies[:3]
    assert setup.channel.depth == 7
    assert setup.consumer(100).bodies == bodies[3:]
