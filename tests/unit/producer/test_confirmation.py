from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

from nsq.errors import PublishFailed
from nsq.producer.confirmation import Confirmation

PATIENCE = 20.0
T = TypeVar("T")
FAULT = PublishFailed("nobody took it")


def meanwhile(call: Callable[[], T], confirmation: Confirmation) -> Future[T]:
    """Called by a thread that waits by the time this returns."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as fault:
            future.set_exception(fault)

    threading.Thread(target=run, daemon=True).start()
    while not (confirmation._waiters or getattr(confirmation._condition, "_waiters", None)):
        assert not future.done()
    return future


def test_under_way_it_runs_and_cannot_be_cancelled() -> None:
    confirmation = Confirmation()

    assert not confirmation.cancel()
    assert (confirmation.running(), confirmation.done(), confirmation.cancelled()) == (True, False, False)
    assert "state=running" in repr(confirmation)


def test_stored() -> None:
    confirmation = Confirmation()
    confirmation.complete(None)

    confirmation.result()
    assert confirmation.exception() is None
    assert (confirmation.running(), confirmation.done(), confirmation.cancel()) == (False, True, False)


def test_not_stored() -> None:
    confirmation = Confirmation()
    confirmation.complete(FAULT)

    assert confirmation.exception() is FAULT
    with pytest.raises(PublishFailed):
        confirmation.result()
    assert "raised PublishFailed" in repr(confirmation)


def test_who_waits_in_vain_is_told_so() -> None:
    confirmation = Confirmation()

    with pytest.raises(concurrent.futures.TimeoutError):
        confirmation.result(0.0)
    with pytest.raises(concurrent.futures.TimeoutError):
        confirmation.exception(0.0)
    assert not confirmation.done()


def test_who_waits_is_woken() -> None:
    stored, failed = Confirmation(), Confirmation()
    result, exception = meanwhile(stored.result, stored), meanwhile(failed.exception, failed)
    stored.complete(None)
    failed.complete(FAULT)

    result.result(PATIENCE)
    assert exception.result(PATIENCE) is FAULT


def test_callbacks_are_called_in_their_order_and_then_at_once(caplog: pytest.LogCaptureFixture) -> None:
    confirmation, called = Confirmation(), list[object]()

    def fail(_: object) -> None:
        raise ZeroDivisionError

    confirmation.add_done_callback(called.append)
    confirmation.add_done_callback(fail)
    confirmation.add_done_callback(lambda _: called.append("second"))
    assert not called
    confirmation.complete(None)
    assert called == [confirmation, "second"]

    confirmation.add_done_callback(lambda _: called.append("late"))
    assert called[2:] == ["late"]
    assert "exception calling callback" in caplog.text


@pytest.mark.parametrize("error", [None, FAULT])
@pytest.mark.parametrize(
    ("condition", "awaited"),
    [(concurrent.futures.ALL_COMPLETED, 2), (concurrent.futures.FIRST_COMPLETED, 1)],
)
def test_several_are_waited_for_together(error: PublishFailed | None, condition: str, awaited: int) -> None:
    confirmations = [Confirmation(), Confirmation()]

    waited = meanwhile(lambda: concurrent.futures.wait(confirmations, PATIENCE, condition), confirmations[-1])
    for confirmation in confirmations[:awaited]:
        confirmation.complete(error)
    done, others = waited.result(PATIENCE)

    assert done == set(confirmations[:awaited])
    assert others == set(confirmations[awaited:])


def test_several_are_told_of_as_they_are_completed() -> None:
    first, second = Confirmation(), Confirmation()
    second.complete(None)
    completed = concurrent.futures.as_completed([first, second], PATIENCE)

    assert next(completed) is second
    first.complete(FAULT)
    assert next(completed) is first
