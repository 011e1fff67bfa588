"""Handler threads, with messages of a fake connection that records the answers."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from nsq.config import Config
from nsq.consumer.handlers import HandlerPool, Requeue, requeue_delay
from nsq.errors import ConfigError, InvalidMessage
from nsq.message import Message
from tests.fakes.messages import Desk
from tests.fakes.nsqd import id_of
from tests.fakes.threads import PATIENCE


@pytest.fixture
def desk() -> Desk:
    return Desk()


def pool_of(desk: Desk, **options: Any) -> HandlerPool:
    given = {"max_attempts": 5, "give_up": desk.give_up, "starved": lambda: desk.starved, **options}
    return HandlerPool("nsq-test", requeue_delay=lambda attempts: 90.0 * attempts, **given)


@pytest.fixture
def pool(desk: Desk) -> Iterator[HandlerPool]:
    pool = pool_of(desk)
    yield pool
    end(pool)


def work(pool: HandlerPool, *messages: Message) -> None:
    pool.start()
    pool.put(list(messages))


def end(pool: HandlerPool) -> None:
    assert pool.stop(time.monotonic() + PATIENCE) == []


class TestAnswers:
    @pytest.mark.parametrize(
        ("result", "note"),
        [
            *[(result, ("finish", 1)) for result in (None, True, 0, "", [], object())],
            (False, ("requeue", 1, None, True)),
        ],
    )
    def test_a_result_finishes_the_message_and_false_requeues_it(
        self, pool: HandlerPool, desk: Desk, result: object, note: tuple[Any, ...]
    ) -> None:
        pool.add(lambda message: result, 1)
        work(pool, desk.message(1))
        desk.wait_for(note)

    @pytest.mark.parametrize(
        ("error", "note", "logged"),
        [
            (ValueError("x"), ("requeue", 1, 90.0, True), True),
            (KeyError("x"), ("requeue", 1, 90.0, False), True),
            (SystemExit(1), ("requeue", 1, 90.0, True), True),
            (KeyboardInterrupt(), ("requeue", 1, 90.0, True), True),
            (Requeue(2.0), ("requeue", 1, 2.0, True), False),
            (Requeue(0, backoff=False), ("requeue", 1, 0, False), False),
            (Requeue(backoff=False), ("requeue", 1, None, False), False),
        ],
    )
    def test_an_exception_requeues_the_message_and_the_thread_goes_on(
        self,
        pool: HandlerPool,
        desk: Desk,
        caplog: pytest.LogCaptureFixture,
        error: BaseException,
        note: tuple[Any, ...],
        logged: bool,
    ) -> None:
        def handle(message: Message) -> None:
            if int(message.id) == 1:
                raise error

        pool.add(handle, 1, no_backoff=(LookupError,))
        work(pool, desk.message(1), desk.message(2))
        desk.wait_for(note, ("finish", 2))
        assert ("handler failed on" in caplog.text) == logged

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: coroutine(None), "returned a coroutine, which nothing here runs. Give an async def"),
            (lambda: async_generator(None), "returned a async_generator, which nothing here runs"),
            (lambda: generator(None), "returned a generator, which nothing here runs"),
        ],
    )
    def test_a_result_that_has_not_run_is_a_failure(
        self,
        pool: HandlerPool,
        desk: Desk,
        caplog: pytest.LogCaptureFixture,
        make: Callable[[], Any],
        words: str,
    ) -> None:
        pool.add(lambda message: make(), 1)
        work(pool, desk.message(1))
        desk.wait_for(("requeue", 1, 90.0, True))
        assert words in caplog.text

    @pytest.mark.parametrize(
        ("before", "attempts", "said"),
        [
            (lambda message: None, 2, "; again in 180 s\n"),
            (lambda message: None, 5, "; again in 450 s, then given up (max_attempts is 5)\n"),
            (lambda message: message.finish(), 1, "; it was answered before, or has timed out\n"),
            (lambda message: message.disable_auto_response(), 1, "; the program answers it later\n"),
        ],
    )
    def test_the_log_says_when_a_failed_message_comes_again(
        self,
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

    def test_a_message_that_its_handler_has_answered_is_not_answered_again(
        self, pool: HandlerPool, desk: Desk
    ) -> None:
        pool.add(lambda message: message.requeue(1.0), 1)
        work(pool, desk.message(1), desk.message(2))
        desk.wait_for(("requeue", 2, 1.0, True))
        assert desk.notes == [("requeue", 1, 1.0, True), ("requeue", 2, 1.0, True)]

    def test_a_message_without_auto_response_is_not_answered(self, pool: HandlerPool, desk: Desk) -> None:
        pool.add(lambda message: message.disable_auto_response() if int(message.id) == 1 else None, 1)
        work(pool, desk.message(1), desk.message(2))
        desk.wait_for(("finish", 2))
        assert desk.notes == [("finish", 2)]


@pytest.mark.parametrize("delay", ["soon", float("inf"), float("nan")])
def test_a_requeue_with_a_wrong_delay_is_refused_where_it_is_made(delay: Any) -> None:
    with pytest.raises(InvalidMessage, match="delay"):
        Requeue(delay)


@pytest.mark.parametrize(
    ("jitter", "attempts", "delay"),
    [(0.0, 1, 90.0), (0.0, 2, 180.0), (0.0, 10, 900.0), (0.0, 11, 900.0), (0.5, 1, 112.5), (0.5, 10, 900.0)],
)
def test_the_delay_grows_with_the_attempts_up_to_the_longest(
    jitter: float, attempts: int, delay: float
) -> None:
    assert requeue_delay(attempts, Config(requeue_jitter=jitter), 0.5) == delay


class TestBeforeTheHandler:
    def test_a_sweep_drops_expired_messages_and_keeps_the_order_of_the_others(
        self, pool: HandlerPool, desk: Desk
    ) -> None:
        messages = [desk.message(number, expires_at=10.0 * number) for number in range(4)]
        pool.put(messages)
        pool.inbox.put(None)
        pool.sweep(15.0)
        assert desk.notes == [("expired", 0), ("expired", 1)]
        assert [pool.inbox.get() for _ in range(3)] == [messages[2], messages[3], None]

    def test_an_expired_message_is_dropped_and_one_that_failed_too_often_is_given_up_and_finished(
        self, pool: HandlerPool, desk: Desk
    ) -> None:
        handled: list[Message] = []
        pool.add(handled.append, 1)
        work(pool, desk.message(1, expires_at=0.0), desk.message(2, attempts=6), desk.message(3, attempts=5))
        desk.wait_for(("finish", 3))
        assert desk.notes == [("expired", 1), ("give up", 2), ("finish", 2), ("finish", 3)]
        assert [int(message.id) for message in handled] == [3]

    def test_a_message_that_cannot_be_given_up_is_requeued(self, pool: HandlerPool, desk: Desk) -> None:
        desk.trouble = SystemExit()
        pool.add(lambda message: None, 1)
        work(pool, desk.message(1, attempts=6))
        desk.wait_for(("requeue", 1, None, False))

    def test_deliveries_that_no_handler_has_seen_do_not_count_as_attempts(
        self, pool: HandlerPool, desk: Desk
    ) -> None:
        handled: list[Message] = []
        pool.add(handled.append, 1)
        late = [desk.message(1, attempts=attempts, expires_at=0.0) for attempts in (4, 5, 6)]
        work(pool, *late, desk.message(2, attempts=6), desk.message(1, attempts=8))
        desk.wait_for(("finish", 1), ("finish", 2))
        assert [(int(message.id), message.attempts) for message in handled] == [(1, 8)]
        end(pool)
        assert not pool.timed_out_unhandled  # it is finished

    def test_a_late_success_keeps_the_count_of_such_deliveries(self, pool: HandlerPool, desk: Desk) -> None:
        handled: list[int] = []
        pool.add(lambda message: handled.append(message.attempts), 1)
        desk.answered.add(id_of(1))  # an answer is refused: its time is up
        late = desk.message(1, attempts=1, expires_at=0.0)
        work(pool, late, *[desk.message(1, attempts=attempts) for attempts in (5, 6)], desk.message(2))
        desk.wait_for(("finish", 2))
        assert handled == [5, 6, 1]

    def test_the_counts_of_such_deliveries_are_bounded(
        self, pool: HandlerPool, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nsq.consumer.handlers._MAX_TIMED_OUT_UNHANDLED", 2)
        for number in (1, 2, 1, 3):
            pool.expire(desk.message(number))
        counts = pool.timed_out_unhandled
        assert {int(message_id): count for (_, message_id), count in counts.items()} == {1: 2, 3: 1}

    def test_with_max_attempts_of_zero_no_message_is_given_up(self, desk: Desk) -> None:
        pool = pool_of(desk, max_attempts=0)
        pool.add(lambda message: None, 1)
        work(pool, desk.message(1, attempts=65535))
        desk.wait_for(("finish", 1))
        end(pool)

    @pytest.mark.parametrize("kind", ["each", "batch"])
    def test_a_bug_of_ours_does_not_end_the_thread(
        self, pool: HandlerPool, desk: Desk, caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        desk.trouble = RuntimeError("ours")
        if kind == "each":
            pool.add(lambda message: None, 1)
        else:
            pool.add_batch(lambda messages: None, 1, PATIENCE, 1)
        work(pool, desk.message(1, expires_at=0.0), desk.message(2))
        desk.wait_for(("finish", 2))
        assert "a bug of ours" in caplog.text


class TestLastFailure:
    """Of a consumer that wants the reason in its dead letters."""

    @pytest.fixture
    def pool(self, desk: Desk) -> Iterator[HandlerPool]:
        pool = pool_of(desk, gives_up_at_last_failure=True)
        yield pool
        end(pool)

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
        end(pool)
        assert sorted({note[:2] for note in desk.notes} - {("finish", 1), ("finish", 3)}) == [
            ("give up", 1), ("give up", 3), ("requeue", 2)
        ]  # fmt: skip

    @pytest.mark.parametrize("result", [False, Requeue(1.0)])
    def test_a_requeue_is_no_failure(
        self, add: Callable[[Callable[[], Any]], None], pool: HandlerPool, desk: Desk, result: object
    ) -> None:
        def act() -> object:
            if isinstance(result, Exception):
                raise result
            return result

        add(act)
        work(pool, desk.message(1, attempts=5))
        desk.wait_for(("requeue", 1, 1.0 if result else None, True))
        assert len(desk.notes) == 1


class TestThreads:
    def test_a_busy_thread_has_its_message_in_work_and_is_named_by_a_stop_without_time(
        self, pool: HandlerPool, desk: Desk
    ) -> None:
        entered, gate = threading.Event(), threading.Event()
        seen: list[tuple[object, ...]] = []

        def handle(message: Message) -> None:
            name = threading.current_thread().name
            seen.append((name, pool.owns_current_thread(), pool.in_work(), pool.busy))
            entered.set()
            gate.wait(PATIENCE)

        pool.add(handle, 1)
        message = desk.message(1)
        work(pool, message)
        assert entered.wait(PATIENCE)
        assert pool.stop(time.monotonic()) == ["nsq-test-handler-0"]
        gate.set()
        end(pool)
        assert desk.notes == [("finish", 1)]
        assert seen == [("nsq-test-handler-0", True, [message], 1)]
        assert (pool.in_work(), pool.busy, pool.owns_current_thread()) == ([], 0, False)

    def test_a_message_is_in_work_while_it_is_given_up(
        self, pool: HandlerPool, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[list[Message]] = []
        monkeypatch.setattr(pool, "_give_up", lambda message, error: seen.append(pool.in_work()))
        pool.add(lambda message: None, 1)
        dead = desk.message(1, attempts=6)
        work(pool, dead)
        desk.wait_for(("finish", 1))
        assert seen == [[dead]]

    def test_a_stop_waits_until_the_inbox_is_empty(self, pool: HandlerPool, desk: Desk) -> None:
        pool.add(lambda message: None, 2)
        work(pool, *map(desk.message, range(50)))
        end(pool)
        assert sorted(desk.notes) == [("finish", number) for number in range(50)]

    def test_a_pool_that_was_not_started_stops_at_once(self, pool: HandlerPool) -> None:
        pool.add(lambda message: None, 1)
        assert pool.stop(time.monotonic()) == []


class TestBatches:
    def add(self, pool: HandlerPool, handler: Callable[[list[Message]], Any], **options: Any) -> None:
        pool.add_batch(handler, **{"size": 3, "wait": PATIENCE, "threads": 1, **options})

    @pytest.mark.parametrize(
        ("options", "starved", "sizes"),
        [
            ({"size": 3}, False, [3, 3]),
            ({"size": 100}, True, [6]),
            ({"size": 100, "wait": 0.1}, False, [6]),
        ],
        ids=["it is full", "no more can come", "its time is up"],
    )
    def test_a_batch_is_handed_over_when(
        self, pool: HandlerPool, desk: Desk, options: dict[str, Any], starved: bool, sizes: list[int]
    ) -> None:
        seen: list[int] = []
        desk.starved = starved
        self.add(pool, lambda messages: seen.append(len(messages)), **options)
        pool.put([desk.message(number) for number in range(6)])
        pool.start()
        desk.wait_for(*[("finish", number) for number in range(6)])
        assert seen == sizes

    def test_a_stop_hands_over_the_last_batch(self, pool: HandlerPool, desk: Desk) -> None:
        sizes: list[int] = []
        self.add(pool, lambda messages: sizes.append(len(messages)), size=100)
        work(pool, *map(desk.message, range(2)))
        end(pool)
        assert sizes == [2]

    def test_a_batch_does_not_wait_for_a_message_that_is_given_up(self, desk: Desk) -> None:
        handled = threading.Event()

        def give_up(message: Message, error: BaseException | None) -> None:
            assert handled.wait(PATIENCE)

        pool = pool_of(desk, give_up=give_up)
        self.add(pool, lambda messages: handled.set(), size=2)
        work(pool, desk.message(1, attempts=6), desk.message(2))
        desk.wait_for(("finish", 2), ("finish", 1))
        end(pool)

    @pytest.mark.parametrize(
        ("answered", "no_backoff", "requeued", "said"),
        [
            (0, (KeyError,), [(2, False), (3, False), (4, False)], "; 3 again in 180 to 360 s\n"),
            (2, (), [(4, True)], "; 1 again in 360 s\n"),
        ],
    )
    def test_a_failure_requeues_the_messages_without_an_answer_and_the_log_says_when_they_come_again(
        self,
        pool: HandlerPool,
        desk: Desk,
        caplog: pytest.LogCaptureFixture,
        answered: int,
        no_backoff: tuple[type[Exception], ...],
        requeued: list[tuple[int, bool]],
        said: str,
    ) -> None:
        def handle(messages: list[Message]) -> None:
            for message in messages[:answered]:
                message.finish()
            raise KeyError("x")

        self.add(pool, handle, no_backoff=no_backoff)
        work(pool, *[desk.message(number, attempts=number) for number in (2, 3, 4)])
        desk.wait_for(*[("requeue", number, None, backoff) for number, backoff in requeued])
        assert len(desk.notes) == 3
        assert "batch handler failed on 3 messages" + said in caplog.text

    def test_messages_that_the_handler_answers_or_keeps_are_not_answered(
        self, pool: HandlerPool, desk: Desk
    ) -> None:
        def handle(messages: list[Message]) -> None:
            messages[0].requeue(1.0)
            messages[1].disable_auto_response()

        self.add(pool, handle)
        work(pool, *map(desk.message, range(3)))
        desk.wait_for(("finish", 2))
        end(pool)
        assert desk.notes == [("requeue", 0, 1.0, True), ("finish", 2)]

    def test_expired_messages_and_those_that_failed_too_often_are_in_no_batch(
        self, pool: HandlerPool, desk: Desk
    ) -> None:
        batches: list[list[int]] = []
        self.add(pool, lambda messages: batches.append([int(message.id) for message in messages]))
        pool.put([desk.message(number, expires_at=0.0) for number in (1, 2, 3)])  # calls no handler
        work(pool, desk.message(4, expires_at=0.0), desk.message(5, attempts=6), desk.message(6))
        desk.wait_for(*[("expired", number) for number in (1, 2, 3, 4)], ("finish", 5), ("finish", 6))
        assert batches == [[6]]


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
class TestRefusedHandlers:
    def add(self, pool: HandlerPool, kind: str) -> Callable[..., None]:
        size = {"size": 1, "wait": 1.0} if kind == "add_batch" else {}
        return functools.partial(getattr(pool, kind), threads=1, **size)

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
            self.add(pool, kind)(handler)
        assert len(pool) == 0

    def test_what_cannot_be_called_a_generator_and_wrong_exceptions_are_refused(
        self, pool: HandlerPool, kind: str
    ) -> None:
        add = self.add(pool, kind)
        for handler, words in (("name", "is not callable"), (None, "is not callable"), (generator, "yield")):
            with pytest.raises(ConfigError, match=words):
                add(handler)
        for exceptions in ([ValueError], ValueError, (ValueError("x"),), "x"):
            with pytest.raises(ConfigError, match="tuple of exception classes"):
                add(print, no_backoff=exceptions)
        assert len(pool) == 0
