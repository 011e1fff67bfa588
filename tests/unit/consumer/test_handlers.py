"""What handler threads do with messages that expired or failed too often, and what they log.

tests/behaviour tells the usual stories.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from nsq.connection.deliveries import TIMED_OUT
from nsq.consumer.handlers import HandlerPool, Requeue
from nsq.errors import ConfigError
from nsq.message import Message
from tests.fakes.messages import Desk
from tests.fakes.nsqd import id_of
from tests.fakes.threads import PATIENCE


@pytest.fixture
def desk() -> Desk:
    return Desk()


def pool_of(desk: Desk, **options: Any) -> HandlerPool:
    given = {"max_attempts": 5, "give_up": desk.give_up, "starved": lambda: desk.starved, **options}
    return HandlerPool("nsq-test", requeue_delay=lambda attempts, error: 90.0 * attempts, **given)


@pytest.fixture
def pool(desk: Desk) -> Iterator[HandlerPool]:
    pool = pool_of(desk)
    yield pool
    assert pool.stop(time.monotonic() + PATIENCE) == []


def work(pool: HandlerPool, *messages: Message) -> None:
    pool.start()
    pool.put(list(messages))


def batches_of(pool: HandlerPool, handler: Callable[[list[Message]], Any], **options: Any) -> None:
    pool.add_batch(handler, **{"size": 3, "wait": PATIENCE, "threads": 1, **options})


def adder(pool: HandlerPool, kind: str) -> Callable[..., None]:
    size = {"size": 1, "wait": 1.0} if kind == "add_batch" else {}
    return functools.partial(getattr(pool, kind), threads=1, **size)


@pytest.mark.parametrize(
    ("before", "attempts", "said"),
    [
        (lambda message: None, 2, "; again in 180 s\n"),
        (lambda message: None, 5, "; again in 450 s, then given up (max_attempts is 5)\n"),
        (lambda message: message.finish(), 1, "; no answer now: "),
        (lambda message: message.disable_auto_response(), 1, "; no answer now: "),
    ],
)
def test_the_log_says_when_a_failed_message_comes_again(
    pool: HandlerPool,
    desk: Desk,
    caplog: pytest.LogCaptureFixture,
    before: Callable[[Message], None],
    attempts: int,
    said: str,
) -> None:
    def handle(message: Message) -> None:
        if int(message.id) == 1:
            before(message)
            raise ValueError("x")

    pool.add(handle, 1)
    work(pool, desk.message(1, attempts=attempts), desk.message(2))
    desk.wait_for(("finish", 2))
    assert said in caplog.text


def test_expired_messages_are_swept_out_and_the_rest_stays_in_order(pool: HandlerPool, desk: Desk) -> None:
    messages = [desk.message(number, expires_at=10.0 * number) for number in range(4)]
    pool.put(messages)
    pool.inbox.put(None)
    pool.sweep(15.0)
    assert desk.notes == [("expired", 0), ("expired", 1)]
    assert [pool.inbox.get() for _ in range(3)] == [messages[2], messages[3], None]


def test_deliveries_that_no_handler_saw_are_no_attempts(pool: HandlerPool, desk: Desk) -> None:
    handled: list[Message] = []
    pool.add(handled.append, 1)
    late = [desk.message(1, attempts=attempts, expires_at=0.0) for attempts in (4, 5, 6)]
    work(pool, *late, desk.message(2, attempts=6), desk.message(1, attempts=8))
    desk.wait_for(("finish", 1), ("finish", 2))
    assert [(int(message.id), message.attempts) for message in handled] == [(1, 8)]
    assert pool.stop(time.monotonic() + PATIENCE) == []
    assert not pool.timed_out_unhandled  # it is finished


def test_a_late_success_does_not_forget_deliveries_that_no_handler_saw(pool: HandlerPool, desk: Desk) -> None:
    handled: list[int] = []
    pool.add(lambda message: handled.append(message.attempts), 1)
    desk.answered.add(id_of(1))  # an answer is refused: its time is up
    late = desk.message(1, attempts=1, expires_at=0.0)
    work(pool, late, *[desk.message(1, attempts=attempts) for attempts in (5, 6)], desk.message(2))
    desk.wait_for(("finish", 2))
    assert handled == [5, 6, 1]


def test_the_memory_of_deliveries_that_no_handler_saw_is_bounded(
    pool: HandlerPool, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq.consumer.handlers._MAX_TIMED_OUT_UNHANDLED", 2)
    for number in (1, 2, 1, 3):
        pool.expire(desk.message(number))
    counts = pool.timed_out_unhandled
    assert {int(message_id): count for (_, _, message_id), count in counts.items()} == {1: 2, 3: 1}


def test_the_pool_knows_the_messages_in_work(pool: HandlerPool, desk: Desk) -> None:
    entered, gate = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        entered.set()
        gate.wait(PATIENCE)

    pool.add(handle, 1)
    one, two = desk.message(1), desk.message(2)
    work(pool, one)
    assert entered.wait(PATIENCE)
    assert pool.in_work() == [one]
    gate.set()
    pool.put([two])
    desk.wait_for(("finish", 2))
    assert pool.stop(time.monotonic() + PATIENCE) == []
    assert pool.in_work() == []


def test_a_message_that_is_given_up_is_in_work(
    pool: HandlerPool, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Message]] = []
    monkeypatch.setattr(pool, "_give_up", lambda _: seen.append(pool.in_work()))
    pool.add(lambda message: None, 1)
    dead = desk.message(1, attempts=6)
    work(pool, dead)
    desk.wait_for(("finish", 1))
    assert seen == [[dead]]


def test_a_stop_hands_over_a_batch_that_is_not_full(pool: HandlerPool, desk: Desk) -> None:
    sizes: list[int] = []
    batches_of(pool, lambda messages: sizes.append(len(messages)), size=100)
    work(pool, *map(desk.message, range(2)))
    assert pool.stop(time.monotonic() + PATIENCE) == []
    assert sizes == [2]


def test_a_batch_does_not_wait_for_a_message_that_is_given_up(desk: Desk) -> None:
    handled = threading.Event()

    def give_up(_: object) -> None:
        assert handled.wait(PATIENCE)

    pool = pool_of(desk, give_up=give_up)
    batches_of(pool, lambda messages: handled.set(), size=2)
    work(pool, desk.message(1, attempts=6), desk.message(2))
    desk.wait_for(("finish", 2), ("finish", 1))
    assert pool.stop(time.monotonic() + PATIENCE) == []


def test_messages_of_a_batch_that_its_handler_answered_or_keeps_are_left_alone(
    pool: HandlerPool, desk: Desk
) -> None:
    def handle(messages: list[Message]) -> None:
        messages[0].requeue(1.0)
        messages[1].disable_auto_response()

    batches_of(pool, handle)
    work(pool, *map(desk.message, range(3)))
    desk.wait_for(("finish", 2))
    assert pool.stop(time.monotonic() + PATIENCE) == []
    assert desk.notes == [("requeue", 0, 1.0, True), ("finish", 2)]


def test_a_batch_has_no_message_that_expired_or_failed_too_often(pool: HandlerPool, desk: Desk) -> None:
    batches: list[list[int]] = []
    batches_of(pool, lambda messages: batches.append([int(message.id) for message in messages]))
    work(pool, desk.message(1, expires_at=0.0), desk.message(2, attempts=6), desk.message(3))
    desk.wait_for(("expired", 1), ("give up", 2), ("finish", 2), ("finish", 3))
    assert batches == [[3]]


@pytest.mark.parametrize("kind", ["add", "add_batch"])
def test_a_bug_of_ours_does_not_end_the_thread(
    pool: HandlerPool, desk: Desk, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    desk.trouble = RuntimeError("ours")
    adder(pool, kind)(lambda given: None)
    work(pool, desk.message(1, expires_at=0.0), desk.message(2))
    desk.wait_for(("finish", 2))
    assert "a bug of ours" in caplog.text


@pytest.mark.parametrize(
    ("finished", "said"),
    [(False, "3 messages; 3 again in 90 to 270 s\n"), (True, "3 messages; 2 again in 180 to 270 s\n")],
)
def test_the_log_says_when_the_messages_of_a_failed_batch_come_again(
    pool: HandlerPool, desk: Desk, caplog: pytest.LogCaptureFixture, finished: bool, said: str
) -> None:
    def handle(messages: list[Message]) -> None:
        if finished:
            messages[0].finish()
        raise KeyError("x")

    batches_of(pool, handle, no_backoff=(KeyError,))
    work(pool, *[desk.message(number, attempts=number) for number in (1, 2, 3)])
    desk.wait_for(*[("requeue", number, 90.0 * number, False) for number in (2, 3)])
    assert f"batch handler failed on {said}" in caplog.text


def test_a_failed_batch_is_one_failure_that_of_its_latest_attempt(pool: HandlerPool, desk: Desk) -> None:
    batches_of(pool, lambda messages: False)
    work(pool, *[desk.message(number, attempts=number) for number in (1, 3, 2)])
    desk.wait_for(("requeue", 3, 270.0, True), ("requeue", 2, 180.0, False), ("requeue", 1, 90.0, False))


def test_a_batch_that_succeeds_is_one_success_and_what_is_given_up_is_none(
    pool: HandlerPool, desk: Desk
) -> None:
    batches_of(pool, lambda messages: None)
    assert (pool.at_once, pool.calls_at_once) == (3, 1)
    work(pool, *[desk.message(number, attempts=1 if number < 4 else 6) for number in (1, 2, 3, 4, 5, 6)])
    assert pool.stop(time.monotonic() + PATIENCE) == []
    assert pool.uncounted == 2 + 3


class TestMaxAge:
    """Messages of a consumer with max_age=60."""

    @pytest.fixture
    def pool(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandlerPool]:
        monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
        pool = pool_of(desk, max_age=60.0)
        yield pool
        assert pool.stop(time.monotonic() + PATIENCE) == []

    @pytest.mark.parametrize("kind", ["add", "add_batch"])
    def test_old_messages_are_given_up_together_and_fresh_ones_are_handled(
        self, pool: HandlerPool, desk: Desk, kind: str
    ) -> None:
        handled: list[int] = []

        def handle(given: Any) -> None:
            handled.extend(int(one.id) for one in (given if isinstance(given, list) else [given]))

        add = adder(pool, kind) if kind == "add" else functools.partial(batches_of, pool, size=4)
        add(handle)
        work(
            pool,
            *[desk.message(number, age=age) for number, age in [(1, 75.0), (2, 1.0), (3, 80.0), (4, 50.0)]],
        )
        desk.wait_for(("give up old", 1, 3, "too old: 75.0 s (max_age is 60 s)"))
        desk.wait_for(*[("finish", number) for number in (1, 2, 3, 4)])
        assert sorted(handled) == [2, 4]
        assert pool.stop(time.monotonic() + PATIENCE) == []
        assert pool.uncounted == (2 if kind == "add" else 3)

    def test_a_dead_letter_that_is_not_stored_leaves_the_messages_unfinished(
        self, pool: HandlerPool, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.trouble = RuntimeError("no nsqd")
        pool.add(print, 1)
        work(pool, desk.message(1, age=75.0), desk.message(2, age=75.0))
        desk.wait_for(*[("requeue", number, None, False) for number in (1, 2)])
        assert "giving up on <Message" in caplog.text
        assert " and 1 more failed" in caplog.text

    def test_a_clock_that_is_ahead_is_warned_of_once(
        self, pool: HandlerPool, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        pool.add(lambda message: None, 1)
        work(pool, *[desk.message(number, age=-3599.0 - number) for number in (1, 2)])
        desk.wait_for(("finish", 1), ("finish", 2))
        (record,) = caplog.records
        assert "is 3600.0 s ahead of this machine's" in record.getMessage()

    def test_what_would_be_too_old_at_its_next_attempt_is_given_up_with_its_error_where_that_is_wanted(
        self, desk: Desk
    ) -> None:
        pool = pool_of(desk, max_age=60.0, gives_up_at_last_failure=True)

        def fail(message: Message) -> None:
            raise ValueError("x")

        pool.add(fail, 1)
        work(pool, desk.message(1, age=1.0))
        desk.wait_for(("give up", 1, "x"), ("finish", 1))
        assert pool.stop(time.monotonic() + PATIENCE) == []


class TestSecondRuns:
    """nsqd delivers a message again while its handler still runs."""

    class Held:
        """A handler, of single messages or of batches, that holds the first attempt."""

        def __init__(self, at_end: Callable[[Message], object]) -> None:
            self.begun, self.let_go = threading.Event(), threading.Event()
            self.attempts: list[int] = []
            self._at_end = at_end

        def __call__(self, given: Message | list[Message]) -> object:
            (message,) = given if isinstance(given, list) else [given]
            self.attempts.append(message.attempts)
            if message.attempts > 1:
                return None
            self.begun.set()
            assert self.let_go.wait(PATIENCE)
            return self._at_end(message)

    @pytest.mark.parametrize("kind", ["add", "add_batch"])
    @pytest.mark.parametrize(
        ("at_end", "delivered", "attempts", "expected"),
        [
            (lambda message: None, [2], [1], ("finish", 1)),
            (lambda message: None, [2, 3, 6], [1], ("finish", 1)),
            (lambda message: False, [2], [1, 2], ("finish", 1)),
            (lambda message: False, [6], [1], ("give up", 1)),
            (lambda message: message.disable_auto_response(), [2], [1, 2], ("finish", 1)),
        ],
        ids=["success", "several", "failure", "given up only afterwards", "answered by the program"],
    )
    def test_a_delivery_waits_for_the_run_and_has_its_result(
        self,
        pool: HandlerPool,
        desk: Desk,
        kind: str,
        at_end: Callable[[Message], object],
        delivered: list[int],
        attempts: list[int],
        expected: tuple[Any, ...],
    ) -> None:
        pool.repeats_come = True
        held = self.Held(at_end)
        adder(pool, kind)(held)
        adder(pool, kind)(held)  # this thread is free
        last = desk.message(1)
        work(pool, last)
        assert held.begun.wait(PATIENCE)
        for attempt in delivered:
            last.expires_at = TIMED_OUT
            last = desk.message(1, attempts=attempt)
            pool.put([last])
            assert list(pool.kept.values()) == [last]
        held.let_go.set()
        desk.wait_for(expected)
        assert pool.stop(time.monotonic() + PATIENCE) == []
        assert held.attempts == attempts
        assert pool.kept == {}

    @pytest.mark.parametrize(
        ("before", "expired"),
        [
            (lambda message: message.disable_auto_response(), TIMED_OUT),
            (lambda message: message.requeue(0.0), 60.0),
        ],
        ids=["the program answers the first one", "the handler has requeued it"],
    )
    def test_otherwise_it_begins_at_once(
        self, pool: HandlerPool, desk: Desk, before: Callable[[Message], object], expired: float
    ) -> None:
        pool.repeats_come = True
        held = self.Held(lambda message: None)
        pool.add(held, 2)
        first = desk.message(1)
        work(pool, first)
        assert held.begun.wait(PATIENCE)
        before(first)
        first.expires_at = expired
        desk.answered.clear()
        pool.put([desk.message(1, attempts=2)])
        desk.wait_for(("finish", 1))
        held.let_go.set()


class TestLastFailure:
    """Of a consumer that wants the reason in its dead letters."""

    @pytest.fixture
    def pool(self, desk: Desk) -> Iterator[HandlerPool]:
        pool = pool_of(desk, gives_up_at_last_failure=True)
        yield pool
        assert pool.stop(time.monotonic() + PATIENCE) == []

    @pytest.fixture(params=["each", "batch"])
    def add(self, request: pytest.FixtureRequest, pool: HandlerPool) -> Callable[[Callable[[], Any]], None]:

        def add(act: Callable[[], Any]) -> None:
            if request.param == "each":
                pool.add(lambda message: act(), 1)
            else:
                pool.add_batch(lambda messages: act(), 3, 0.0, 1)

        return add

    def test_the_last_failure_gives_up_at_once_with_its_error(
        self, add: Callable[[Callable[[], Any]], None], pool: HandlerPool, desk: Desk
    ) -> None:
        def fail() -> None:
            raise ValueError("no such order")

        add(fail)
        work(pool, desk.message(1, attempts=5), desk.message(2, attempts=4), desk.message(3, attempts=6))
        desk.wait_for(("give up", 1, "no such order"), ("finish", 1), ("give up", 3), ("finish", 3))
        assert pool.stop(time.monotonic() + PATIENCE) == []
        assert sorted({note[:2] for note in desk.notes} - {("finish", 1), ("finish", 3)}) == [
            ("give up", 1), ("give up", 3), ("requeue", 2)
        ]  # fmt: skip

    @pytest.mark.parametrize("result", [False, Requeue(1.0)])
    def test_a_requeue_is_no_last_failure(
        self, add: Callable[[Callable[[], Any]], None], pool: HandlerPool, desk: Desk, result: object
    ) -> None:
        def act() -> object:
            if isinstance(result, Exception):
                raise result
            return result

        add(act)
        work(pool, desk.message(1, attempts=5))
        desk.wait_for(("requeue", 1, 1.0 if result else 450.0, True))
        assert len(desk.notes) == 1

    def test_a_requeue_shows_how(self) -> None:
        assert repr(Requeue(1.0, backoff=False)) == "Requeue(delay=1.0, backoff=False)"


async def coroutine(message: Any) -> None: ...


async def async_generator(message: Any) -> AsyncIterator[None]:
    yield


def generator(message: Any) -> Iterator[None]:
    yield


class Awaitable:
    async def __call__(self, message: Any) -> None: ...

    async def method(self, message: Any) -> None: ...

    @staticmethod
    async def static(message: Any) -> None: ...


@pytest.mark.parametrize("kind", ["add", "add_batch"])
class TestWhatIsNoHandler:
    @pytest.mark.parametrize(
        "handler",
        [
            coroutine,
            async_generator,
            Awaitable(),
            Awaitable().method,
            Awaitable.static,
            functools.partial(coroutine),
            functools.partial(Awaitable()),
            functools.partial(functools.partial(Awaitable().method)),
        ],
    )
    def test_an_async_handler_is_refused_with_what_to_do(
        self, pool: HandlerPool, kind: str, handler: Any
    ) -> None:
        with pytest.raises(ConfigError, match=r"async def.*nsq\.aio\.Consumer"):
            adder(pool, kind)(handler)
        assert len(pool) == 0

    def test_a_generator_is_refused(self, pool: HandlerPool, kind: str) -> None:
        with pytest.raises(ConfigError, match="yield"):
            adder(pool, kind)(generator)

    def test_what_is_no_handler_is_refused(self, pool: HandlerPool, kind: str) -> None:
        add = adder(pool, kind)
        for handler in ("name", None):
            with pytest.raises(ConfigError, match="handler"):
                add(handler)
        for exceptions in ([ValueError], ValueError, (ValueError("x"),), "x"):
            with pytest.raises(ConfigError, match="tuple of exception classes"):
                add(print, no_backoff=exceptions)
        assert len(pool) == 0
