"""The thread that calls when it is due. Where nothing is to be due, it is for a thousand seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from nsq.consumer.timer import Timer

PATIENCE = 20.0
FAR = 1000.0


class Due:
    """``next_due`` gives one wait after the other, and the last for ever; everybody who asks is counted."""

    def __init__(self, *waits: float) -> None:
        self._changed = threading.Condition()
        self._waits = list(waits)
        self.asked = 0
        self.calls = 0
        self.fail = False

    def next_due(self, now: float) -> float:
        with self._changed:
            self.asked += 1
            self._changed.notify_all()
            return now + (self._waits.pop(0) if len(self._waits) > 1 else self._waits[0])

    def call(self) -> None:
        with self._changed:
            self.calls += 1
            self._changed.notify_all()
        if self.fail:
            raise KeyError("x")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), (self.asked, self.calls)


@pytest.fixture
def timers() -> Iterator[Callable[[Due], Timer]]:
    made: list[Timer] = []

    def make(due: Due) -> Timer:
        made.append(Timer("nsq-test-rdy", due.call, due.next_due))
        made[-1].start()
        return made[-1]

    yield make
    for timer in made:
        timer.stop()
        assert timer.join(time.monotonic() + PATIENCE)


def test_calls_whenever_it_is_due(timers: Callable[[Due], Timer]) -> None:
    due = Due(0.0)
    timers(due)
    due.wait_for(lambda: due.calls >= 5)


def test_not_before(timers: Callable[[Due], Timer]) -> None:
    due = Due(FAR)
    timer = timers(due)
    due.wait_for(lambda: due.asked == 1)
    timer.stop()
    assert timer.join(time.monotonic() + PATIENCE)
    assert due.calls == 0


def test_a_poke_makes_it_look_again(timers: Callable[[Due], Timer]) -> None:
    due = Due(FAR, 0.0)
    timer = timers(due)
    due.wait_for(lambda: due.asked == 1)
    timer.poke()
    due.wait_for(lambda: due.calls >= 1)


def test_a_poke_alone_calls_nothing_and_puts_nothing_off(timers: Callable[[Due], Timer]) -> None:
    due = Due(0.05, FAR)
    timer = timers(due)
    due.wait_for(lambda: due.asked >= 1)
    while not due.calls:  # many times within the 50 ms, and with any number of them it comes
        asked = due.asked
        timer.poke()
        due.wait_for(lambda asked=asked: due.asked > asked or due.calls)  # type: ignore[misc]
    assert due.calls == 1


def test_nor_do_pokes_that_never_end(timers: Callable[[Due], Timer]) -> None:
    class Poking(Due):
        def next_due(self, now: float) -> float:
            timer.poke()
            return super().next_due(now)

    due = Poking(0.0)
    timer = Timer("nsq-test-rdy", due.call, due.next_due)
    timer.start()
    due.wait_for(lambda: due.calls >= 2)
    timer.stop()
    assert timer.join(time.monotonic() + PATIENCE)


def test_a_failure_does_not_end_it(timers: Callable[[Due], Timer], caplog: pytest.LogCaptureFixture) -> None:
    due = Due(0.0)
    due.fail = True
    timers(due)
    due.wait_for(lambda: due.calls >= 2)
    assert "the timer nsq-test-rdy failed; it goes on" in caplog.text


def test_a_stop_without_a_start_and_a_stop_twice() -> None:
    due = Due(FAR)
    timer = Timer("nsq-test-rdy", due.call, due.next_due)
    timer.stop()
    assert timer.join(time.monotonic() + PATIENCE)
    timer.start()
    timer.stop()
    timer.stop()
    assert timer.join(time.monotonic() + PATIENCE)
    assert due.calls == 0


def test_a_call_that_hangs_is_not_waited_for_beyond_the_deadline(timers: Callable[[Due], Timer]) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Hanging(Due):
        def call(self) -> None:
            entered.set()
            gate.wait(PATIENCE)

    timer = timers(Hanging(0.0))
    assert entered.wait(PATIENCE)
    timer.stop()
    assert not timer.join(time.monotonic())
    gate.set()
