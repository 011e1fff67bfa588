"""The pool of handlers that obeys the lanes, with real threads and connections that take notes."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.config import Config
from nsq.consumer.decisions import GivenUp, GiveUp, Requeue
from nsq.consumer.reports import ConsumerHooks
from nsq.errors import AlreadyResponded, ConfigError, InvalidMessage, TopicNotExist
from nsq.log import Logger
from nsq.message import Message
from nsq.partitioned.lanes import Decision, Stuck
from nsq.partitioned.ordered import Ordered
from nsq.partitioned.subscription import Reading
from nsq.threads.owner import Owner
from tests.fakes.deliveries import TIMEOUT, Delivery, delivery
from tests.fakes.messages import Desk
from tests.fakes.threads import PATIENCE, Running


class Nsqd:
    """A connection that takes notes. ``redeliver`` and ``lose`` are nsqd's."""

    address, topic = "10.0.0.1:4150", "orders"

    def __init__(self, notes: Desk) -> None:
        self._notes = notes
        self.deliveries = SimpleNamespace(msg_timeout=TIMEOUT, max_msg_timeout=15 * TIMEOUT, closing=False)
        self.held: set[Message] = set()

    def _answer(self, message: Message, *note: Any) -> None:
        if message not in self.held:
            raise AlreadyResponded("not in flight")
        self.held.discard(message)
        self._notes.note(*note)

    def finish(self, message: Message, success: bool = True) -> None:
        self._answer(message, "finish", message.internal_id)

    def requeue(self, message: Message, delay: float, backoff: bool) -> None:
        self._answer(message, "requeue", message.internal_id, delay, backoff)

    def touch(self, message: Message) -> None:
        message.expires_at += TIMEOUT
        self._notes.note("touch", message.internal_id)

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


class Site:
    """A pool, the owner that calls its ``turn``, and connections to its partitions."""

    def __init__(
        self, handler: Callable[[Message], Any], *, threads: int = 4, pause: float = 0.001, **options: Any
    ) -> None:
        self.notes = Desk()
        self.cannot_give_up: Exception | None = None
        self.given_up: list[str] = []
        self._ended = False
        self._owner = Owner("nsq-test-owner", Logger("nsq.test"), turn=self._turn)
        self.wake = self._owner.wake
        hooks = ConsumerHooks()
        hooks.stuck = lambda message: self.notes.note(  # type: ignore[method-assign]
            "stuck", message.internal_id, message.attempts
        )
        hooks.out_of_order = lambda message: self.notes.note(  # type: ignore[method-assign]
            "out of order", message.internal_id
        )
        engine: Any = SimpleNamespace(
            config=Config(backoff_strategy=lambda attempts: pause),
            topic="orders",
            owner=self._owner,
            reporter=SimpleNamespace(hooks=hooks, tell=lambda hook, *args: hook(*args)),
        )
        self.ordered = Ordered(engine, Reading(ordered=True), **options)
        self.ordered.stop_partition = lambda partition: self.notes.note(  # type: ignore[method-assign]
            "stop", partition
        )
        self.pool = self.ordered.make_pool(
            name="nsq-test",
            give_up=lambda given_up: [self._give_up(*each) for each in given_up],
            starved=lambda: False,
        )
        self.pool.add(handler, threads)
        self.pool.start()
        self._owner.start()

    def _give_up(self, message: Message, given_up: GivenUp) -> None:
        if self.cannot_give_up is not None:
            raise self.cannot_give_up
        self.given_up.append(str(given_up))
        self.notes.note("give up", message.internal_id)

    def _turn(self) -> float | None:
        return None if self._ended else self.ordered.turn(time.monotonic())

    def connect(self, partition: int = 0) -> Nsqd:
        nsqd: Any = Nsqd(self.notes)
        nsqd.delegate = self.ordered.delegate(nsqd, partition)
        return nsqd  # type: ignore[no-any-return]

    def deliver(self, nsqd: Any, number: int) -> Delivery:
        message = delivery(number, delegate=nsqd.delegate, now=time.monotonic())
        nsqd.held.add(message)
        self.ordered.put([message])
        return message

    def wait_for_pause(self) -> None:
        """Wait until a handler has failed and its thread is idle again: the message is in its pause."""
        while not self.ordered.partitions(0.0)[0].stuck or self.pool.busy:
            self.ordered.turn(time.monotonic())

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


class TestPool:
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
        kept: queue.SimpleQueue[Message] = queue.SimpleQueue()

        def handler(message: Message) -> None:
            if message.internal_id == 1:
                message.disable_auto_response()
                kept.put(message)

        here = site(handler)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        here.deliver(nsqd, 2)
        here.deliver(here.connect(1), 11)
        here.notes.wait_for(("finish", 11))
        assert ("finish", 2) not in here.notes.notes
        Running(kept.get(timeout=PATIENCE).finish).result()
        here.notes.wait_for(("finish", 1), ("finish", 2))

    def test_a_message_is_answered_once(self, site: Make) -> None:
        def handler(message: Message) -> None:
            message.finish()
            assert message.responded
            for again in (message.finish, message.requeue):
                with pytest.raises(AlreadyResponded):
                    again()
            here.notes.note("refused both", message.internal_id)

        here = site(handler)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        here.deliver(nsqd, 2)
        here.notes.wait_for(("refused both", 1))
        here.notes.wait_for(("refused both", 2))

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
        here.ordered.turn(time.monotonic() + TIMEOUT * 0.4)
        assert here.notes.notes == []
        here.ordered.turn(time.monotonic() + TIMEOUT * 0.6)
        assert here.notes.notes == [("touch", 2)]
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

    def test_a_message_out_of_order_is_reported_and_handled(
        self, site: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        here = site(lambda message: None)
        nsqd = here.connect()
        for number in (5, 3, 4):
            here.deliver(nsqd, number)
        here.notes.wait_for(("out of order", 3), ("finish", 4))
        assert "out of order" in caplog.text
        assert here.ordered.partitions(0.0)[0].order_errors == 1

    def test_a_batch_handler_is_refused(self, site: Make) -> None:
        with pytest.raises(ConfigError, match="add_handler"):
            site(lambda message: None).pool.add_batch(lambda messages: None, 10, 1.0, 1)


class TestStuckMessages:
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
            (LookupError("no idea"), ("finish", 1), "on_stuck failed"),
        ],
    )
    def test_the_user_decides_about_a_message_that_fails(
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
            if isinstance(decision, Exception):
                raise decision
            return decision

        error = ValueError("x")

        def handler(message: Message) -> None:
            if message.attempts == 1:
                raise error

        here = site(handler, on_stuck=decide)
        message = here.deliver(here.connect(), 1)
        here.notes.wait_for(first)
        assert here.notes.notes[0] == first
        assert [(each.message, each.attempts, each.error) for each in asked] == [(message, 1, error)]
        assert logged in "\n".join([caplog.text, *here.given_up])

    def test_the_user_is_asked_when_a_handler_returns_false_too(self, site: Make) -> None:
        asked: list[BaseException | None] = []

        def decide(stuck: Stuck) -> float:
            asked.append(stuck.error)
            return 0

        here = site(lambda message: message.attempts > 1, on_stuck=decide)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))
        assert asked == [None]

    def test_a_handler_that_names_the_delay_has_decided_and_the_user_is_not_asked(self, site: Make) -> None:
        def decide(stuck: Stuck) -> Decision:
            raise AssertionError("the handler has decided")

        def handler(message: Message) -> None:
            if message.attempts == 1:
                raise Requeue(0.01)

        here = site(handler, on_stuck=decide)
        here.deliver(here.connect(), 1)
        here.notes.wait_for(("finish", 1))

    def test_a_message_that_comes_over_a_new_connection_in_its_pause_wakes_the_owner(
        self, site: Make
    ) -> None:
        here = site(lambda message: False, pause=1000.0)
        former = here.connect()
        here.deliver(former, 1)
        here.wait_for_pause()
        former.lose()
        here.ordered.turn(time.monotonic())
        here.ordered.wake = lambda: here.notes.note("wake")
        here.deliver(here.connect(), 1)
        assert here.notes.notes == [("wake",)]

    def test_a_message_in_its_pause_is_given_back_when_its_connection_closes(self, site: Make) -> None:
        here = site(lambda message: False, pause=1000.0)
        nsqd = here.connect()
        here.deliver(nsqd, 1)
        here.wait_for_pause()
        nsqd.deliveries.closing = True
        here.wake()
        here.notes.wait_for(("requeue", 1, 0.0, False))


@pytest.mark.parametrize("error", [GiveUp("no use"), ValueError("broken"), Requeue()])
def test_a_message_that_cannot_be_given_up_holds_up_its_partition_and_health_says_why(
    site: Make, error: Exception
) -> None:
    def handler(message: Message) -> None:
        raise error

    made = site(handler, pause=PATIENCE, on_stuck=lambda stuck: Decision.SKIP, stuck_after=1)
    made.cannot_give_up = TopicNotExist("E_TOPIC_NOT_EXIST dead")
    made.deliver(made.connect(), 1)
    made.wait_for_pause()
    (health,) = made.ordered.partitions(time.monotonic())
    assert (health.attempts, health.stuck) == (1, True)
    assert "E_TOPIC_NOT_EXIST dead" in health.error
    assert made.notes.notes == [("stuck", 1, 1)]
