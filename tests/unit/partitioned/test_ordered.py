"""Lanes: a message at a time in each partition. First the pure lane, then the pool that obeys it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq.consumer.handlers import GiveUp, Requeue
from nsq.errors import AlreadyResponded, ConfigError, InvalidMessage
from nsq.log import Logger
from nsq.message import Message
from nsq.partitioned.ordered import (
    Decision,
    Do,
    Lane,
    Order,
    OrderedPool,
    Position,
    Stuck,
)
from nsq.threads.owner import Owner
from tests.fakes.messages import Delegate
from tests.fakes.threads import PATIENCE, Running

NOW = 1000.0
TIMEOUT = 60.0


class Delivery(Message):
    """The delivery of message ``number``, which has the offset 100 × ``number``."""

    __slots__ = ("internal_id", "offset")

    internal_id: int
    offset: int

    def __repr__(self) -> str:
        return f"<{self.internal_id}>"


def delivery(number: int, *, delegate: Any = None, now: float = NOW, attempts: int = 1) -> Delivery:
    message_id = number.to_bytes(16, "big")
    message = Delivery(delegate or Delegate(), now, now + TIMEOUT, 0, attempts, message_id, b"body")
    message.internal_id, message.offset = number, 100 * number
    return message


def handle(message: Message) -> list[Order]:
    return [Order(Do.HANDLE, message)]


class World:
    """A lane, and handlers that do as the test says."""

    def __init__(self, **options: Any) -> None:
        self.closing: set[Message] = set()
        self.lane = Lane(3, closing=lambda message: message in self.closing, **options)
        self.now = NOW

    def deliver(self, message: Message) -> list[Order]:
        return self.lane.delivered(message, self.now)

    def begin(self, message: Message) -> None:
        self.lane.begin(message)

    def succeed(self, message: Message) -> list[Order]:
        """As the pool does it: the handler ends, then its message is answered."""
        return [*self.lane.ended(message, self.now), *self.lane.finished(message, self.now)]

    def fail(self, message: Message, delay: float, error: Exception | None = None) -> list[Order]:
        self.lane.failed(message, error, self.now)
        return [*self.lane.ended(message, self.now), *self.lane.requeued(message, delay, self.now)]

    def finish(self, *messages: Message) -> None:
        for message in messages:
            self.deliver(message)
            self.begin(message)
            self.succeed(message)

    def after(self, seconds: float) -> list[Order]:
        self.now += seconds
        return self.lane.clock(self.now) if self.lane.due(self.now) else []


@pytest.fixture
def world() -> World:
    return World()


class TestOneAtATime:
    def test_the_next_message_waits_until_the_one_before_is_finished(self, world: World) -> None:
        first, second = delivery(1), delivery(2)
        assert world.deliver(first) == handle(first)
        assert world.deliver(second) == []
        world.begin(first)
        assert world.succeed(first) == handle(second)

    def test_a_message_that_is_finished_early_holds_the_lane_until_its_handler_ends(
        self, world: World
    ) -> None:
        first, second = delivery(1), delivery(2)
        world.deliver(first)
        world.begin(first)
        assert world.lane.finished(first, NOW) == []
        assert world.deliver(second) == []
        assert world.lane.ended(first, NOW) == handle(second)

    def test_a_message_that_is_answered_later_holds_the_lane(self, world: World) -> None:
        first, second = delivery(1), delivery(2)
        world.deliver(first)
        world.begin(first)
        assert world.lane.ended(first, NOW) == []
        assert world.deliver(second) == []
        assert world.lane.finished(first, NOW) == handle(second)

    def test_a_message_that_is_never_answered_holds_the_lane_until_its_time_is_up(self, world: World) -> None:
        first, second = delivery(1), delivery(2, now=NOW + TIMEOUT)
        world.deliver(first)
        world.begin(first)
        world.lane.ended(first, NOW)
        assert world.lane.left_unanswered(NOW) is None
        assert world.lane.left_unanswered(NOW + TIMEOUT) is first
        world.deliver(second)
        assert world.lane.lost(first, NOW + TIMEOUT) == handle(second)

    def test_a_new_leaders_delivery_waits_for_the_handler_that_works_on_the_former_one(
        self, world: World
    ) -> None:
        former, again = delivery(1), delivery(1)
        world.deliver(former)
        world.begin(former)
        former.expires_at = -math.inf  # its connection is gone
        assert world.deliver(again) == []
        assert world.lane.ended(former, NOW) == []
        assert world.lane.lost(former, NOW) == handle(again)

    def test_a_message_that_timed_out_before_a_handler_began_it_makes_room(self, world: World) -> None:
        first, second = delivery(1), delivery(2)
        world.deliver(first)
        world.deliver(second)
        assert world.lane.lost(first, NOW) == handle(second)

    def test_waiting_messages_whose_connection_is_gone_are_dropped(self, world: World) -> None:
        first, gone, third = delivery(1), delivery(2), delivery(3)
        for message in (first, gone, third):
            world.deliver(message)
        gone.expires_at = -math.inf
        world.begin(first)
        assert world.succeed(first) == handle(third)


class TestRedeliveries:
    def test_the_message_finished_last_is_finished_again_without_a_handler(self, world: World) -> None:
        world.finish(delivery(1), delivery(2))
        again, third = delivery(2), delivery(3)
        assert world.deliver(again) == [Order(Do.FINISH, again)]
        assert world.deliver(third) == handle(third)
        assert (world.lane.repeated, world.lane.disorders) == (1, 0)

    def test_a_message_handled_without_its_connection_is_not_handled_again(self, world: World) -> None:
        former, again = delivery(1), delivery(1)
        world.deliver(former)
        world.begin(former)
        world.deliver(again)
        assert world.succeed(former) == [Order(Do.FINISH, again)]

    def test_a_late_answer_to_a_former_delivery_counts(self, world: World) -> None:
        former, again = delivery(1), delivery(1)
        world.deliver(former)
        world.lane.lost(former, NOW)
        world.lane.finished(former, NOW)
        assert world.deliver(again) == [Order(Do.FINISH, again)]

    def test_a_late_answer_does_not_set_the_lane_back(self, world: World) -> None:
        world.finish(delivery(1), delivery(2))
        world.lane.finished(delivery(1), NOW)
        assert world.lane.finished_last == Position(2, 200)

    def test_attempts_are_counted_here_over_connections(self, world: World) -> None:
        for attempt in (1, 2, 3):
            message = delivery(1)  # nsqd's count begins anew
            world.deliver(message)
            world.begin(message)
            assert message.attempts == attempt
            world.lane.ended(message, NOW)
            world.lane.lost(message, NOW)

    def test_attempts_begin_anew_with_the_next_message(self, world: World) -> None:
        world.finish(delivery(1))
        message = delivery(2, attempts=7)
        world.deliver(message)
        world.begin(message)
        assert message.attempts == 1


class TestOrder:
    @pytest.mark.parametrize(
        ("internal_id", "offset", "in_order"),
        [
            (6, 600, True),
            (8, 950, True),  # numbers and bytes may be skipped
            (5, 501, True),
            (4, 600, False),
            (6, 400, False),
            (4, 400, False),
        ],
    )
    def test_is_by_number_and_by_offset(
        self, world: World, internal_id: int, offset: int, in_order: bool
    ) -> None:
        world.finish(delivery(5))
        message = delivery(internal_id)
        message.offset = offset
        report = [] if in_order else [Order(Do.REPORT, message)]
        assert world.deliver(message) == [*report, *handle(message)]
        assert world.lane.disorders == len(report)

    def test_is_not_known_at_first(self, world: World) -> None:
        message = delivery(5)
        assert world.deliver(message) == handle(message)

    def test_a_channel_that_was_rewound_is_reported_once(self, world: World) -> None:
        world.finish(delivery(1), delivery(2), delivery(3))
        world.finish(delivery(1), delivery(2), delivery(3), delivery(4))
        assert world.lane.disorders == 1

    def test_a_message_out_of_order_that_fails_is_reported_once(self, world: World) -> None:
        world.finish(delivery(1), delivery(2))
        message = delivery(1)
        world.deliver(message)
        world.begin(message)
        world.fail(message, 0.0)
        again = delivery(1)
        world.lane.lost(message, NOW)
        assert world.deliver(again) == handle(again)
        assert world.lane.disorders == 1

    def test_can_stop_the_partition(self) -> None:
        world = World(stop_out_of_order=True)
        world.finish(delivery(1), delivery(2))
        message = delivery(1)
        assert world.deliver(message) == [Order(Do.REPORT, message), Order(Do.STOP, message)]
        assert world.lane.stopped
        assert world.after(10 * TIMEOUT) == []  # its time is up
        later = delivery(2, now=world.now)
        assert world.deliver(later) == [Order(Do.FINISH, later)]


class TestFailures:
    def test_the_same_message_comes_again_after_its_pause(self, world: World) -> None:
        message, following = delivery(1), delivery(2)
        world.deliver(message)
        world.begin(message)
        assert world.fail(message, 5.0) == []
        assert world.deliver(following) == []
        assert world.lane.next_due == NOW + 5.0
        assert world.after(4.9) == []
        assert world.after(0.2) == handle(message)
        world.begin(message)
        assert message.attempts == 2
        assert world.succeed(message) == handle(following)

    def test_without_a_pause_it_comes_again_at_once(self, world: World) -> None:
        message = delivery(1)
        world.deliver(message)
        world.begin(message)
        assert world.fail(message, 0.0) == handle(message)

    def test_the_pause_begins_when_the_handler_has_ended(self, world: World) -> None:
        message = delivery(1)
        world.deliver(message)
        world.begin(message)
        assert world.lane.requeued(message, 0.0, NOW) == []
        assert world.lane.ended(message, NOW) == handle(message)

    def test_the_pause_goes_on_after_a_reconnect(self, world: World) -> None:
        message, again = delivery(1), delivery(1)
        world.deliver(message)
        world.begin(message)
        world.fail(message, 5.0)
        message.expires_at = -math.inf
        assert world.after(1.0) == []
        assert world.deliver(again) == []
        assert world.after(4.0) == handle(again)
        world.begin(again)
        assert again.attempts == 2

    def test_a_message_that_is_lost_in_its_second_attempt_comes_again_at_once(self, world: World) -> None:
        message, again = delivery(1), delivery(1)
        world.deliver(message)
        world.begin(message)
        world.fail(message, 5.0)
        assert world.after(5.0) == handle(message)
        world.begin(message)
        world.lane.ended(message, world.now)
        world.lane.lost(message, world.now)
        assert world.deliver(again) == handle(again)

    def test_a_message_that_pauses_is_given_back_when_its_connection_closes(self, world: World) -> None:
        message = delivery(1)
        world.deliver(message)
        world.begin(message)
        world.fail(message, 5.0)
        world.closing.add(message)
        assert world.after(0.0) == [Order(Do.GIVE_BACK, message)]
        assert world.lane.current is None

    def test_a_message_that_waits_is_given_back_when_its_connection_closes(self, world: World) -> None:
        first, second = delivery(1), delivery(2)
        world.deliver(first)
        world.deliver(second)
        world.begin(first)
        world.closing.add(second)
        assert world.succeed(first) == [Order(Do.GIVE_BACK, second)]

    def test_a_stopped_lane_hands_out_nothing_more(self, world: World) -> None:
        message = delivery(1)
        world.deliver(message)
        world.begin(message)
        world.lane.stop()
        assert world.fail(message, 0.0) == []
        assert world.after(TIMEOUT / 2) == []
        world.closing.add(message)
        assert world.after(0.0) == [Order(Do.GIVE_BACK, message)]
        assert world.deliver(delivery(2)) == []

    def test_how_long_a_message_holds_up_its_partition(self, world: World) -> None:
        message, error = delivery(1), ValueError("x")
        world.deliver(message)
        world.begin(message)
        assert world.lane.failed(message, error, NOW) == Stuck(message, 1, 0.0, error)
        world.lane.ended(message, NOW)
        world.lane.requeued(message, 9.0, NOW)
        world.after(9.0)
        world.begin(message)
        assert world.lane.failed(message, None, world.now) == Stuck(message, 2, 9.0, None)

    def test_messages_that_wait_are_those_to_touch(self, world: World) -> None:
        first, second = delivery(1), delivery(2)
        world.deliver(first)
        assert world.lane.unbegun() == [first]
        world.begin(first)
        assert world.lane.unbegun() == []
        world.deliver(second)
        assert world.lane.unbegun() == [second]
        world.fail(first, 5.0)
        assert world.lane.unbegun() == [first, second]


class Partition(RuleBasedStateMachine):
    """An nsqd with one partition, connections that break, and handlers that do what they like."""

    @initialize()
    def begin(self) -> None:
        self.lane = Lane(0, closing=lambda message: False)
        self.now = NOW
        self.next = 1
        """The number of the message that nsqd delivers next."""
        self.in_flight: Delivery | None = None  # as nsqd sees it
        self.inbox: list[Message] = []
        self.handled: Message | None = None
        self.succeeded: list[int] = []

    def obey(self, orders: list[Order]) -> None:
        for order in orders:
            if order.do is Do.HANDLE:
                self.inbox.append(order.message)
            elif order.do in (Do.FINISH, Do.GIVE_BACK):
                self.answer(order.message, done=order.do is Do.FINISH)
            else:
                raise AssertionError(order)

    def answer(self, message: Message, *, done: bool) -> None:
        if message is self.in_flight:
            self.in_flight = None
            self.next += done

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def deliver(self) -> None:
        self.in_flight = message = delivery(self.next, now=self.now)
        self.obey(self.lane.delivered(message, self.now))

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def lose_the_connection(self) -> None:
        assert self.in_flight is not None
        self.in_flight.expires_at = -math.inf
        self.in_flight = None

    @precondition(lambda self: self.inbox and self.handled is None)
    @rule()
    def begin_to_handle(self) -> None:
        message = self.inbox.pop()
        if message.expires_at <= self.now:
            self.obey(self.lane.lost(message, self.now))
            return
        self.lane.begin(message)
        self.handled = message

    @precondition(lambda self: self.handled is not None)
    @rule(delay=st.sampled_from([None, 0.0, 5.0]))
    def end(self, delay: float | None) -> None:
        message, self.handled = self.handled, None
        assert isinstance(message, Delivery)
        self.obey(self.lane.ended(message, self.now))
        if delay is None:
            self.succeeded.append(message.internal_id)
            self.answer(message, done=True)
            self.obey(self.lane.finished(message, self.now))
        else:
            self.lane.failed(message, None, self.now)
            self.obey(self.lane.requeued(message, delay, self.now))

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.in_flight is not None:
            self.in_flight.expires_at = self.now + TIMEOUT  # touched
        if self.lane.due(self.now):
            self.obey(self.lane.clock(self.now))

    @invariant()
    def at_most_one_message_is_at_work(self) -> None:
        assert len(self.inbox) + (self.handled is not None) <= 1

    @invariant()
    def messages_succeed_once_and_in_order(self) -> None:
        assert self.succeeded == list(range(1, len(self.succeeded) + 1))

    def teardown(self) -> None:
        """Whatever has happened, the next messages get through."""
        for _ in range(20):
            if self.handled is not None:
                self.end(None)
            if self.inbox:
                self.begin_to_handle()
            if self.in_flight is None and self.handled is None:
                self.deliver()
            self.wait(5.0)
        if self.handled is not None:
            self.end(None)
        assert len(self.succeeded) >= 2
        self.messages_succeed_once_and_in_order()


TestAnyPartition = Partition.TestCase
TestAnyPartition.settings = settings(stateful_step_count=40)


class Nsqd:
    """A connection that takes notes. ``redeliver`` and ``lose`` are nsqd's."""

    address, topic = "10.0.0.1:4150", "orders"

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.session = SimpleNamespace(msg_timeout=TIMEOUT, max_msg_timeout=15 * TIMEOUT, closing=False)
        self.held: set[Message] = set()

    def _answer(self, message: Message, *note: Any) -> None:
        if message not in self.held:
            raise AlreadyResponded("not in flight")
        self.held.discard(message)
        self._notes.add(*note)

    def finish(self, message: Message) -> None:
        self._answer(message, "finish", message.internal_id)

    def requeue(self, message: Message, delay: float, backoff: bool) -> None:
        self._answer(message, "requeue", message.internal_id, delay, backoff)

    def touch(self, message: Message) -> None:
        message.expires_at += TIMEOUT
        self._notes.add("touch", message.internal_id)

    def holds(self, message: Message) -> bool:
        return message in self.held

    def time_out(self, message: Message) -> bool:
        dropped = message in self.held
        self.held.discard(message)
        return dropped

    def lose(self) -> None:
        for message in self.held:
            message.expires_at = -math.inf
        self.held.clear()


class Notes:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.all: list[tuple[Any, ...]] = []

    def add(self, *note: Any) -> None:
        with self._changed:
            self.all.append(note)
            self._changed.notify_all()

    def wait_for(self, *notes: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: all(note in self.all for note in notes), PATIENCE), self.all


class Site:
    """A pool, the owner that calls its ``turn``, and connections to its partitions."""

    def __init__(
        self, handler: Callable[[Message], Any], *, threads: int = 4, pause: float = 0.001, **options: Any
    ) -> None:
        self.notes = Notes()
        self._ended = False
        self._owner = Owner("nsq-test-owner", Logger("nsq.test"), turn=self._turn)
        self.wake = self._owner.wake
        self.pool = OrderedPool(
            "nsq-test",
            give_up=lambda message, error: self.notes.add("give up", message.internal_id),
            starved=lambda: False,
            pause=lambda attempts: pause,
            wake=self.wake,
            stop_partition=lambda partition: self.notes.add("stop", partition),
            requeued=lambda message: None,
            stuck=lambda message: self.notes.add("stuck", message.internal_id, message.attempts),
            disorder=lambda message: self.notes.add("out of order", message.internal_id),
            **options,
        )
        self.pool.add(handler, threads)
        self.pool.start()
        self._owner.start()

    def _turn(self) -> float | None:
        return None if self._ended else self.pool.turn(time.monotonic())

    def connect(self, partition: int = 0) -> Nsqd:
        nsqd: Any = Nsqd(self.notes)
        nsqd.delegate = self.pool.delegate(nsqd, partition)
        return nsqd  # type: ignore[no-any-return]

    def deliver(self, nsqd: Any, number: int) -> Delivery:
        message = delivery(number, delegate=nsqd.delegate, now=time.monotonic())
        nsqd.held.add(message)
        self.pool.put([message])
        return message

    def end(self) -> None:
        self._ended = True
        self.wake()
        assert self._owner.join(time.monotonic() + PATIENCE) == []
        assert self.pool.stop(time.monotonic() + PATIENCE) == []


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(*args: Any, **options: Any) -> Site:
        sites.append(Site(*args, **options))
        return sites[-1]

    yield make
    for each in sites:
        each.end()


Make = Callable[..., Site]


class Overlap:
    """A handler that counts how many of each partition's messages are at work at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working: dict[Any, int] = {}
        self.most = 0
        self.seen: list[int] = []

    def __call__(self, message: Message) -> None:
        lane = message._delegate.track.lane.partition  # type: ignore[attr-defined]
        with self._lock:
            self._working[lane] = self._working.get(lane, 0) + 1
            self.most = max(self.most, self._working[lane])
            self.seen.append(message.internal_id or 0)
        time.sleep(0)  # let other threads run
        with self._lock:
            self._working[lane] -= 1


class TestPool:
    def test_messages_of_a_partition_are_handled_one_after_the_other(self, site: Make) -> None:
        handler = Overlap()
        here = site(handler, threads=8)
        nsqd = here.connect()
        for number in range(1, 201):
            here.deliver(nsqd, number)
        here.notes.wait_for(("finish", 200))
        assert handler.seen == list(range(1, 201))
        assert handler.most == 1

    def test_partitions_are_handled_side_by_side(self, site: Make) -> None:
        together = threading.Barrier(4)
        here = site(lambda message: together.wait(PATIENCE), threads=4)
        for partition in range(4):
            here.deliver(here.connect(partition), 1 + partition)
        here.notes.wait_for(*[("finish", 1 + partition) for partition in range(4)])

    def test_a_message_that_fails_holds_up_its_partition_alone(self, site: Make) -> None:
        here = site(lambda message: message.internal_id != 1, pause=1000.0)
        bad, good = here.connect(0), here.connect(1)
        here.deliver(bad, 1)
        here.deliver(bad, 2)
        here.deliver(good, 11)
        here.deliver(good, 12)
        here.notes.wait_for(("finish", 11), ("finish", 12))
        assert here.notes.all == [("finish", 11), ("finish", 12)]
        [stuck, fine] = here.pool.partitions(time.monotonic())
        assert (stuck.stuck, stuck.attempts, stuck.stuck_at) == (True, 1, "<1>")
        assert not fine.stuck

    def test_a_failed_message_comes_again_until_it_succeeds(self, site: Make) -> None:
        tries: list[int] = []

        def handler(message: Message) -> None:
            tries.append(message.attempts)
            if len(tries) < 3:
                raise ValueError("not yet")

        here = site(handler)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))
        assert tries == [1, 2, 3]

    def test_a_second_delivery_waits_for_the_handler_of_the_first_and_is_finished_without_one(
        self, site: Make
    ) -> None:
        begun, go_on = threading.Event(), threading.Event()
        handled: list[Message] = []

        def handler(message: Message) -> None:
            handled.append(message)
            begun.set()
            go_on.wait(PATIENCE)

        here = site(handler)
        former, leader = here.connect(), here.connect()
        first = here.deliver(former, 1)
        assert begun.wait(PATIENCE)
        former.lose()
        here.deliver(leader, 1)
        go_on.set()
        here.notes.wait_for(("finish", 1))
        assert handled == [first]
        assert not leader.held

    def test_a_failure_without_its_connection_has_the_next_delivery_handled(self, site: Make) -> None:
        handled: list[Message] = []

        def handler(message: Message) -> None:
            handled.append(message)
            if len(handled) == 1:
                former.lose()
                raise ValueError("x")

        here = site(handler)
        former = here.connect()
        first = here.deliver(former, 1)
        second = here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))
        assert handled == [first, second]

    def test_a_message_may_be_answered_later_by_a_thread_of_the_program(self, site: Make) -> None:
        kept: list[Message] = []

        def handler(message: Message) -> None:
            if message.internal_id == 1:
                message.disable_auto_response()
                kept.append(message)

        here = site(handler)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        here.deliver(nsqd, 2)
        here.deliver(here.connect(1), 11)
        here.notes.wait_for(("finish", 11))
        assert ("finish", 2) not in here.notes.all
        Running(kept[0].finish).result()
        here.notes.wait_for(("finish", 1), ("finish", 2))

    def test_a_message_is_answered_once(self, site: Make) -> None:
        refused: list[str] = []

        def handler(message: Message) -> None:
            message.finish()
            assert message.responded
            for again in (message.finish, message.requeue):
                with pytest.raises(AlreadyResponded):
                    again()
            refused.append("both")

        here = site(handler)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        here.deliver(nsqd, 2)
        here.notes.wait_for(("finish", 2))
        assert refused == ["both"] * 2

    def test_a_requeue_needs_a_number(self, site: Make) -> None:
        found: list[str] = []

        def handler(message: Message) -> None:
            with pytest.raises(InvalidMessage, match="number of seconds"):
                message.requeue(math.nan)
            found.append("it")

        here = site(handler)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))
        assert found == ["it"]

    def test_messages_that_wait_are_touched_and_those_at_work_are_not(self, site: Make) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def handler(message: Message) -> None:
            begun.set()
            go_on.wait(PATIENCE)

        here = site(handler)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        here.deliver(nsqd, 2)
        assert begun.wait(PATIENCE)
        here.pool.turn(time.monotonic() + TIMEOUT * 0.4)
        assert here.notes.all == []
        here.pool.turn(time.monotonic() + TIMEOUT * 0.6)
        assert here.notes.all == [("touch", 2)]
        go_on.set()
        here.notes.wait_for(("finish", 2))

    def test_a_message_that_timed_out_in_the_inbox_is_not_handled(self, site: Make) -> None:
        handled: list[int | None] = []
        busy, go_on = threading.Event(), threading.Event()

        def handler(message: Message) -> None:
            handled.append(message.internal_id)
            busy.set()
            go_on.wait(PATIENCE)

        here = site(handler, threads=1)
        here.deliver(here.connect(0), 1)
        assert busy.wait(PATIENCE)
        late = here.deliver(nsqd := here.connect(1), 11)
        late.expires_at = 0.0
        here.deliver(nsqd, 12)
        go_on.set()
        here.notes.wait_for(("finish", 12))
        assert handled == [1, 12]

    def test_what_is_out_of_order_is_reported_and_handled(
        self, site: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        here = site(lambda message: None)
        nsqd = here.connect()
        for number in (5, 3, 4):
            here.deliver(nsqd, number)
        here.notes.wait_for(("out of order", 3), ("finish", 4))
        assert "out of order" in caplog.text
        assert here.pool.partitions(0.0)[0].order_errors == 1

    def test_a_batch_handler_is_refused(self, site: Make) -> None:
        with pytest.raises(ConfigError, match="add_handler"):
            site(lambda message: None).pool.add_batch(lambda messages: None, 10, 1.0, 1)


class TestStuckMessages:
    def test_are_reported_after_every_so_many_attempts(self, site: Make) -> None:
        def handler(message: Message) -> None:
            if message.attempts < 7:
                raise ValueError("not yet")

        here = site(handler, stuck_after=3)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))
        assert [note for note in here.notes.all if note[0] == "stuck"] == [("stuck", 1, 3), ("stuck", 1, 6)]

    @pytest.mark.parametrize(
        ("decision", "first", "logged"),
        [
            (0, ("finish", 1), ""),
            (0.01, ("finish", 1), ""),
            (None, ("finish", 1), ""),
            (Decision.SKIP, ("give up", 1), "skips it after 1 attempts"),
            (Decision.STOP, ("stop", 0), "stops partition 0"),
            (-1, ("finish", 1), "on_stuck returned -1"),
            ("again", ("finish", 1), "on_stuck returned 'again'"),
            (True, ("finish", 1), "on_stuck returned True"),
            (math.inf, ("finish", 1), "on_stuck returned inf"),
        ],
    )
    def test_are_the_users_to_decide_about(
        self,
        site: Make,
        caplog: pytest.LogCaptureFixture,
        decision: Any,
        first: tuple[Any, ...],
        logged: str,
    ) -> None:
        asked: list[Stuck] = []

        def decide(stuck: Stuck) -> Any:
            asked.append(stuck)
            return decision

        error = ValueError("x")

        def handler(message: Message) -> None:
            if message.attempts == 1:
                raise error

        here = site(handler, on_stuck=decide)
        message = here.deliver(here.connect(), 1)
        here.notes.wait_for(first)
        assert here.notes.all[0] == first
        assert [(each.message, each.attempts, each.error) for each in asked] == [(message, 1, error)]
        assert logged in caplog.text

    def test_are_asked_about_when_a_handler_returns_false(self, site: Make) -> None:
        asked: list[BaseException | None] = []

        def decide(stuck: Stuck) -> float:
            asked.append(stuck.error)
            return 0

        here = site(lambda message: message.attempts > 1, on_stuck=decide)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))
        assert asked == [None]

    def test_come_again_when_the_handler_says_and_the_user_is_not_asked(self, site: Make) -> None:
        def decide(stuck: Stuck) -> Decision:
            raise AssertionError("the handler has decided")

        def handler(message: Message) -> None:
            if message.attempts == 1:
                raise Requeue(0.01)

        here = site(handler, on_stuck=decide)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))

    def test_are_given_up_when_the_handler_says(self, site: Make) -> None:
        def handler(message: Message) -> None:
            if message.internal_id == 1:
                raise GiveUp("it is broken")

        here = site(handler)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        here.deliver(nsqd, 2)
        here.notes.wait_for(("give up", 1), ("finish", 1), ("finish", 2))

    def test_come_again_when_on_stuck_fails(self, site: Make, caplog: pytest.LogCaptureFixture) -> None:
        def decide(stuck: Stuck) -> float:
            raise LookupError("no idea")

        def handler(message: Message) -> None:
            if message.attempts == 1:
                raise ValueError("x")

        here = site(handler, on_stuck=decide)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))
        assert "on_stuck failed" in caplog.text

    def test_are_given_back_when_their_connection_closes(self, site: Make) -> None:
        here = site(lambda message: False, pause=1000.0)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        while not here.pool.partitions(0.0)[0].stuck:
            here.pool.turn(time.monotonic())
        nsqd.session.closing = True
        here.wake()
        here.notes.wait_for(("requeue", 1, 0.0, False))
