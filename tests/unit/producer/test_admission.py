from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from nsq.errors import Closed, QueueFull
from nsq.producer.admission import Admission

PATIENCE = 20.0
LATER = 1000.0  # by a clock that stands still: the deadline is never reached


def admission(limit: int = 2, patient: Callable[[], bool] = lambda: True) -> Admission:
    return Admission(limit, lambda: 0.0, patient)


def in_thread(call: Callable[[], int]) -> Future[int]:
    future: Future[int] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as fault:
            future.set_exception(fault)

    threading.Thread(target=run, name="caller", daemon=True).start()
    return future


def test_as_many_as_the_limit_enter() -> None:
    room = admission(2)
    room.enter(LATER)
    room.enter(LATER)

    with pytest.raises(QueueFull, match="2 publishes are unanswered"):
        room.enter(0.0)
    assert room.inside == 2
    assert room.unsettled == 2


def test_who_leaves_makes_room() -> None:
    room = admission(1)
    room.enter(LATER)
    room.leave()

    room.enter(0.0)
    assert room.inside == 1


def test_who_waits_enters_when_there_is_room() -> None:
    room = admission(1)
    room.enter(LATER)
    entered = in_thread(lambda: room.enter(LATER))
    assert not entered.done()

    room.leave()

    assert entered.result(PATIENCE) == 0
    assert room.inside == 1


def test_who_cannot_wait_is_refused_at_once() -> None:
    room = admission(1, patient=lambda: False)
    room.enter(LATER)

    with pytest.raises(QueueFull):
        room.enter(LATER)


def test_nobody_enters_what_is_closed_and_who_waits_is_told() -> None:
    room = admission(1)
    room.enter(LATER)
    waiting = in_thread(lambda: room.enter(LATER))

    assert room.close()
    assert not room.close()

    with pytest.raises(Closed):
        waiting.result(PATIENCE)
    with pytest.raises(Closed):
        room.enter(LATER)


def test_a_flush_of_nothing_returns() -> None:
    assert admission().flush(LATER) == 0


def test_a_flush_counts_what_is_left() -> None:
    room = admission(3)
    eras = [room.enter(LATER) for _ in range(3)]
    room.settle(eras[0])

    assert room.flush(0.0) == 2


def test_a_flush_waits_for_what_was_there_and_for_nothing_later() -> None:
    room = admission(100_000_000)
    before = room.enter(LATER)
    flushed = in_thread(lambda: room.flush(LATER))
    after = before
    while after == before:  # until the flush has begun
        after = room.enter(LATER)
        if after == before:
            room.settle(after)

    assert not flushed.done()
    room.settle(before)

    assert flushed.result(PATIENCE) == 0
    assert room.unsettled == 1


def test_what_is_settled_and_has_not_left_is_not_waited_for_but_takes_room() -> None:
    room = admission(1)
    room.settle(room.enter(LATER))

    assert room.flush(0.0) == 0
    assert room.inside == 1
    with pytest.raises(QueueFull):
        room.enter(0.0)


def test_many_flushes_leave_nothing_behind() -> None:
    room = admission(100)
    for _ in range(50):
        era = room.enter(LATER)
        room.flush(0.0)
        room.settle(era)
        room.leave()

    assert room.flush(0.0) == 0
    assert room.unsettled == 0
