"""What becomes of a message that a handler, or a handler of batches, gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from nsq import AlreadyResponded, Message, Requeue
from nsq.config import RequeueStrategy
from tests.fakes.wire import Wire
from tests.integration.consuming import (
    PATIENCE,
    AnyNsqd,
    Recorder,
    channel_of,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)


class Broken(Exception):
    pass


def test_a_message_is_finished_when_its_handler_returns(loaded: AnyNsqd) -> None:
    seen = Recorder()
    with running(make_consumer(loaded).add_handler(seen)):
        (message,) = seen.wait_for(1)
        expect_drained(loaded)
    assert (message.body, message.attempts, len(message.id)) == (b"hello", 1, 16)
    assert message.nsqd_address == loaded.tcp_address
    assert abs(time.time() - message.timestamp / 1e9) < 60


def test_a_message_is_requeued_when_its_handler_returns_false(loaded: AnyNsqd) -> None:
    seen = Recorder(lambda message: message.attempts > 2)
    with running(make_consumer(loaded).add_handler(seen)):
        seen.wait_for(3)
        expect_drained(loaded, requeues=2)
    assert seen.attempts == [1, 2, 3]


@pytest.mark.parametrize("error", [Broken("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_message_is_requeued_when_its_handler_raises_and_the_thread_lives_on(
    loaded: AnyNsqd, error: BaseException
) -> None:
    def fail_once(message: Message) -> None:
        if message.attempts == 1:
            raise error

    seen = Recorder(fail_once)
    with log_of() as log, running(make_consumer(loaded).add_handler(seen)):
        seen.wait_for(2)
        expect_drained(loaded, requeues=1)
    log.wait_for("ERROR", "handler failed", "attempt 1", "again in 0 s")


def later(message: Message) -> None:
    raise Requeue(delay=0.3)


def by_error(attempts: int, error: BaseException | None) -> float:
    return attempts / 10 if error is None else {LookupError: 0.01, ValueError: -1.0}[type(error)]


def fail_with(error: type[Exception]) -> Callable[[Message], object]:
    def handle(message: Message) -> None:
        raise error("x")

    return handle


@pytest.mark.parametrize(
    ("strategy", "handle", "delays", "nonsense"),
    [
        ("linear", lambda message: False, ["REQ 200", "REQ 300"], False),
        ("linear", later, ["REQ 300", "REQ 300"], False),
        ("exponential", lambda message: False, ["REQ 200", "REQ 300"], False),
        (by_error, lambda message: False, ["REQ 100", "REQ 200"], False),
        (by_error, lambda message: message.requeue() or False, ["REQ 100", "REQ 200"], False),
        (by_error, fail_with(LookupError), ["REQ 10", "REQ 10"], False),
        (by_error, fail_with(ValueError), ["REQ 200", "REQ 300"], True),
        (by_error, fail_with(TypeError), ["REQ 200", "REQ 300"], True),
        (by_error, later, ["REQ 300", "REQ 300"], False),
    ],
    ids=[
        "grows with the attempts",
        "is the one of Requeue",
        "doubles",
        "is that of a function",
        "of which message.requeue asks too",
        "and which gets the error",
        "and may return nonsense",
        "or fail",
        "but not against Requeue",
    ],
)
def test_the_delay_of_a_requeue(
    nsqd: AnyNsqd,
    wire: Wire,
    strategy: str | RequeueStrategy,
    handle: Callable[[Message], object],
    delays: list[str],
    nonsense: bool,
) -> None:
    options = {"default_requeue_delay": 0.2, "max_requeue_delay": 0.3, "max_in_flight": 1, "transport": wire}
    consumer = make_consumer(nsqd, **options, requeue_strategy=strategy)
    with log_of() as log, running(consumer.add_handler(lambda each: each.attempts > 2 or handle(each))):
        publish(nsqd, [b"message"])
        wire.expect(nsqd.tcp_address, "RDY 1", *delays, "FIN")
        expect_drained(nsqd, requeues=2)
    logged = [line for line in log.lines if line.startswith("ERROR") and "handler failed" not in line]
    assert ["linear this time" in line for line in logged] == [True] * (2 * nonsense)


def test_a_message_that_its_handler_has_answered_is_not_answered_again(loaded: AnyNsqd) -> None:
    def answer(message: Message) -> None:
        message.finish()
        assert message.responded
        with pytest.raises(AlreadyResponded, match=message.id.decode()):
            message.requeue()
        raise Broken("after the answer")

    seen = Recorder(answer)
    with running(make_consumer(loaded).add_handler(seen)) as consumer:
        seen.wait_for(1)
        expect_drained(loaded)
        until("counted", lambda: consumer.stats().finished == 1)
        assert consumer.stats().requeued == 0


def test_a_message_may_be_answered_later_by_another_thread(loaded: AnyNsqd) -> None:
    seen = Recorder(Message.disable_auto_response)
    with running(make_consumer(loaded).add_handler(seen)) as consumer:
        (message,) = seen.wait_for(1)
        until("in flight", lambda: channel_of(loaded)["in_flight_count"] == 1)
        assert consumer.stats().in_flight == 1
        assert not message.responded
        message.finish()
        expect_drained(loaded)


def test_a_message_is_a_context_manager(loaded: AnyNsqd) -> None:
    def fail_first(message: Message) -> None:
        message.disable_auto_response()
        with message:
            if message.attempts == 1:
                raise Broken

    seen = Recorder(fail_first)
    with running(make_consumer(loaded).add_handler(seen)):
        seen.wait_for(2)
        expect_drained(loaded, requeues=1)


@pytest.mark.parametrize("body", [b"\0\xff" * 3, b"x", bytes(1_000_000)], ids=["binary", "one", "large"])
def test_a_body_arrives_as_it_was_sent(nsqd: AnyNsqd, body: bytes) -> None:
    assert nsqd.post("/pub?topic=orders", body).status == 200
    seen = Recorder()
    with running(make_consumer(nsqd).add_handler(seen)):
        assert seen.wait_for(1)[0].body == body


def test_what_runs_around_a_handler_and_at_the_end_of_its_thread_runs_on_that_thread(loaded: AnyNsqd) -> None:
    ran: list[tuple[str, str]] = []

    def note(what: str) -> None:
        ran.append((what, threading.current_thread().name.rpartition("-handler-")[2]))

    def around(handler: Callable[[Message], object]) -> Callable[[Message], object]:
        def handle(message: Message) -> object:
            note("before")
            result = handler(message)
            note("after")
            return result

        return handle

    consumer = make_consumer(loaded, around_handler=around, at_thread_end=lambda: note("end"))
    with running(consumer.add_handler(lambda message: note("handler"))):
        expect_drained(loaded)
    assert ran == [(what, "0") for what in ("before", "handler", "after", "end")]


def test_a_failing_at_thread_end_is_logged(nsqd: AnyNsqd) -> None:
    with log_of() as log, running(make_consumer(nsqd, at_thread_end=lambda: 1 / 0).add_handler(Recorder())):
        pass
    assert "ERROR at_thread_end failed" in log.lines


# Several handlers and threads.


def test_several_handlers_share_the_messages(nsqd: AnyNsqd) -> None:
    publish(nsqd, numbered(2))
    together = threading.Barrier(2)
    first, second = (Recorder(lambda message: together.wait(PATIENCE)) for _ in range(2))
    with running(make_consumer(nsqd).add_handler(first).add_handler(second)):
        first.wait_for(1)
        second.wait_for(1)
        expect_drained(nsqd)
    assert sorted(first.bodies + second.bodies) == numbered(2)


def test_eight_threads_handle_eight_messages_at_a_time(nsqd: AnyNsqd) -> None:
    together = threading.Barrier(8)
    seen = Recorder(lambda message: together.wait(PATIENCE))  # passes only when all eight are at work
    with running(make_consumer(nsqd, threads=8).add_handler(seen)) as consumer:
        publish(nsqd, numbered(8))
        until("all are done", lambda: consumer.stats().finished == 8)
    assert len({message.id for message in seen.messages}) == 8


def test_handlers_get_every_message_once(nsqd: AnyNsqd) -> None:
    bodies = numbered(5000)
    publish(nsqd, bodies)
    seen = Recorder()
    with running(make_consumer(nsqd, threads=4, max_in_flight=500).add_handler(seen)) as consumer:
        seen.wait_for(5000)
        expect_drained(nsqd)
        stats = consumer.stats()
    assert sorted(seen.bodies) == sorted(bodies)
    assert (stats.received, stats.finished, stats.requeued, stats.timed_out) == (5000, 5000, 0, 0)


# Batches.


class Batches(Recorder):
    """A handler of batches that records them, then calls the test's function."""

    def __init__(self, then: Callable[[list[Message]], object] = lambda messages: None) -> None:
        super().__init__()
        self._then_all = then
        self.sizes: list[int] = []

    def all(self, messages: list[Message]) -> object:
        self.sizes.append(len(messages))
        for message in messages:
            self(message)
        return self._then_all(messages)


def test_a_batch_is_handled_when_it_is_full(nsqd: AnyNsqd) -> None:
    publish(nsqd, numbered(40))
    seen = Batches()
    # Without a limit of its own the consumer has two batches here at once.
    with running(make_consumer(nsqd).add_batch_handler(seen.all, size=10, wait=PATIENCE)):
        seen.wait_for(40)
        expect_drained(nsqd)
    assert seen.sizes == [10] * 4
    assert sorted(seen.bodies) == sorted(numbered(40))


@pytest.mark.parametrize(
    ("wait", "options"),
    [(0.2, {}), (2 * PATIENCE, {"max_in_flight": 2})],
    ids=["when its time is up", "when nothing more can come"],
)
def test_a_batch_is_handled_before_it_is_full(nsqd: AnyNsqd, wait: float, options: dict[str, int]) -> None:
    publish(nsqd, numbered(4))
    seen = Batches()
    with running(make_consumer(nsqd, **options).add_batch_handler(seen.all, size=100, wait=wait)):
        seen.wait_for(4)
        expect_drained(nsqd)


def test_a_batch_that_raises_is_requeued_but_for_what_was_answered(nsqd: AnyNsqd) -> None:
    def fail_first(messages: list[Message]) -> None:
        if all(message.attempts == 1 for message in messages):
            messages[0].finish()
            raise Broken

    publish(nsqd, numbered(4))
    seen = Batches(fail_first)
    with running(make_consumer(nsqd).add_batch_handler(seen.all, size=4, wait=PATIENCE)):
        seen.wait_for(4)
        publish(nsqd, [b"one more"])  # makes the second batch a full one
        seen.wait_for(8)
        expect_drained(nsqd, requeues=3)
    assert sorted(seen.attempts) == [1, 1, 1, 1, 1, 2, 2, 2]


def test_a_batch_that_returns_false_is_requeued(nsqd: AnyNsqd) -> None:
    publish(nsqd, numbered(2))
    seen = Batches(lambda messages: all(message.attempts > 1 for message in messages))
    with running(make_consumer(nsqd).add_batch_handler(seen.all, size=2, wait=PATIENCE)):
        seen.wait_for(4)
        expect_drained(nsqd, requeues=2)


def test_handlers_and_batch_handlers_work_side_by_side(nsqd: AnyNsqd) -> None:
    publish(nsqd, numbered(200))
    seen, batched = Recorder(), Batches()
    consumer = make_consumer(nsqd).add_handler(seen).add_batch_handler(batched.all, size=10, wait=0.05)
    with running(consumer):
        until("all came", lambda: len(seen.messages) + len(batched.messages) == 200)
        expect_drained(nsqd)
    assert sorted(seen.bodies + batched.bodies) == sorted(numbered(200))
