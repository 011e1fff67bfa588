"""A lane: what happens to the messages of one partition, by example and by chance."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq.message import Message
from nsq.partitioned.lanes import Action, Do, Lane, Position, Stuck
from tests.fakes.deliveries import NOW, TIMEOUT, Delivery, delivery


def handle(message: Message) -> list[Action]:
    return [Action(Do.HANDLE, message)]


class World:
    """A lane, and handlers that do as the test says."""

    def __init__(self, **options: Any) -> None:
        self.closing: set[Message] = set()
        self.lane = Lane(3, closing=lambda message: message in self.closing, **options)
        self.now = NOW

    def deliver(self, message: Message) -> list[Action]:
        return self.lane.delivered(message, self.now)

    def begin(self, message: Message) -> None:
        self.lane.begin(message)

    def work_on(self, message: Message) -> None:
        self.deliver(message)
        self.begin(message)

    def succeed(self, message: Message) -> list[Action]:
        """As the pool does it: the handler ends, then its message is answered."""
        return [*self.lane.ended(message, self.now), *self.lane.finished(message, self.now)]

    def fail(self, message: Message, delay: float, error: Exception | None = None) -> list[Action]:
        self.lane.failed(message, error, self.now)
        return [*self.lane.ended(message, self.now), *self.lane.requeued(message, delay, self.now)]

    def finish(self, *messages: Message) -> None:
        for message in messages:
            self.work_on(message)
            self.succeed(message)

    def after(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.lane.clock(self.now) if self.lane.due(self.now) else []


@pytest.fixture
def world() -> World:
    return World()


class TestOneAtATime:
    def test_a_message_that_is_finished_early_holds_the_lane_until_its_handler_ends(
        self, world: World
    ) -> None:
        first, second = delivery(1), delivery(2)
        world.work_on(first)
        assert world.lane.finished(first, NOW) == []
        assert world.deliver(second) == []
        assert world.lane.ended(first, NOW) == handle(second)

    def test_a_message_that_is_never_answered_holds_the_lane_until_its_time_is_up(self, world: World) -> None:
        first, second = delivery(1), delivery(2, now=NOW + TIMEOUT)
        world.work_on(first)
        world.lane.ended(first, NOW)
        assert world.lane.left_unanswered(NOW) is None
        assert world.lane.left_unanswered(NOW + TIMEOUT) is first
        world.deliver(second)
        assert world.lane.lost(first, NOW + TIMEOUT) == handle(second)

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
        assert world.deliver(again) == [Action(Do.FINISH, again)]
        assert world.deliver(third) == handle(third)
        assert (world.lane.repeated, world.lane.disorders) == (1, 0)

    def test_a_late_answer_to_a_former_delivery_counts(self, world: World) -> None:
        former, again = delivery(1), delivery(1)
        world.deliver(former)
        world.lane.lost(former, NOW)
        world.lane.finished(former, NOW)
        assert world.deliver(again) == [Action(Do.FINISH, again)]

    def test_a_late_answer_does_not_set_the_lane_back(self, world: World) -> None:
        world.finish(delivery(1), delivery(2))
        world.lane.finished(delivery(1), NOW)
        assert world.lane.finished_last == Position(2, 200)

    def test_attempts_are_counted_here_over_connections(self, world: World) -> None:
        for attempt in (1, 2, 3):
            message = delivery(1)  # nsqd's count begins anew
            world.work_on(message)
            assert message.attempts == attempt
            world.lane.ended(message, NOW)
            world.lane.lost(message, NOW)

    def test_attempts_begin_anew_with_the_next_message(self, world: World) -> None:
        world.finish(delivery(1))
        message = delivery(2, attempts=7)
        world.work_on(message)
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
    def test_the_order_is_by_number_and_by_offset(
        self, world: World, internal_id: int, offset: int, in_order: bool
    ) -> None:
        world.finish(delivery(5))
        message = delivery(internal_id)
        message.offset = offset
        report = [] if in_order else [Action(Do.REPORT, message)]
        assert world.deliver(message) == [*report, *handle(message)]
        assert world.lane.disorders == len(report)

    def test_a_message_out_of_order_that_fails_is_reported_once(self, world: World) -> None:
        world.finish(delivery(1), delivery(2))
        message = delivery(1)
        world.work_on(message)
        world.fail(message, 0.0)
        again = delivery(1)
        world.lane.lost(message, NOW)
        assert world.deliver(again) == handle(again)
        assert world.lane.disorders == 1

    def test_a_message_out_of_order_can_stop_the_partition(self) -> None:
        world = World(stop_out_of_order=True)
        world.finish(delivery(1), delivery(2))
        message = delivery(1)
        assert world.deliver(message) == [Action(Do.REPORT, message), Action(Do.STOP, message)]
        assert world.lane.stopped
        assert world.after(10 * TIMEOUT) == []  # its time is up
        later = delivery(2, now=world.now)
        assert world.deliver(later) == [Action(Do.FINISH, later)]


class TestFailures:
    def test_the_same_message_comes_again_after_its_pause(self, world: World) -> None:
        message, following = delivery(1), delivery(2)
        world.work_on(message)
        assert world.fail(message, 5.0) == []
        assert world.deliver(following) == []
        assert world.lane.next_due == NOW + 5.0
        assert world.after(4.9) == []
        assert world.after(0.2) == handle(message)
        world.begin(message)
        assert message.attempts == 2
        assert world.succeed(message) == handle(following)

    def test_the_pause_begins_when_the_handler_has_ended(self, world: World) -> None:
        message = delivery(1)
        world.work_on(message)
        assert world.lane.requeued(message, 0.0, NOW) == []
        assert world.lane.ended(message, NOW) == handle(message)

    def test_the_pause_goes_on_after_a_reconnect(self, world: World) -> None:
        message, again = delivery(1), delivery(1)
        world.work_on(message)
        world.fail(message, 5.0)
        message.expires_at = -math.inf
        assert world.after(1.0) == []
        assert world.deliver(again) == []
        assert world.after(4.0) == handle(again)
        world.begin(again)
        assert again.attempts == 2

    def test_a_message_that_is_lost_in_its_second_attempt_comes_again_at_once(self, world: World) -> None:
        message, again = delivery(1), delivery(1)
        world.work_on(message)
        world.fail(message, 5.0)
        assert world.after(5.0) == handle(message)
        world.begin(message)
        world.lane.ended(message, world.now)
        world.lane.lost(message, world.now)
        assert world.deliver(again) == handle(again)

    def test_a_message_that_waits_is_given_back_when_its_connection_closes(self, world: World) -> None:
        first, second = delivery(1), delivery(2)
        world.deliver(first)
        world.deliver(second)
        world.begin(first)
        world.closing.add(second)
        assert world.succeed(first) == [Action(Do.GIVE_BACK, second)]

    def test_a_stopped_lane_hands_out_nothing_more(self, world: World) -> None:
        message = delivery(1)
        world.work_on(message)
        world.lane.stop()
        assert world.fail(message, 0.0) == []
        assert world.after(TIMEOUT / 2) == []
        world.closing.add(message)
        assert world.after(0.0) == [Action(Do.GIVE_BACK, message)]
        assert world.deliver(delivery(2)) == []

    def test_how_long_a_message_holds_up_its_partition(self, world: World) -> None:
        message, error = delivery(1), ValueError("x")
        world.work_on(message)
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

    def obey(self, orders: list[Action]) -> None:
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
