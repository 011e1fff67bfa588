"""Pauses before a receiver is restarted, and when it is given up."""

from __future__ import annotations

import threading

from nsq.spark.receiver.pool import FIRST_PAUSE, LONGEST_PAUSE, MOST_STILLBORN, STEADY, Slot
from nsq.spark.receiver.protocol import Failed


class Lives:
    """One receiver after the other in a slot; no process runs."""

    def __init__(self) -> None:
        self.slot = Slot("place", b"", threading.Condition(), [])

    def pause(self, lived: float, *, ready: bool, explained: bool) -> float | None:
        self.slot.ready = ready
        self.slot._last_words = Failed("the log is not there yet") if explained else None
        pause = self.slot._end("it died", lived)
        assert (pause is None) is (self.slot.fatal_error is not None)
        return pause


def test_pauses_between_starts_double_up_to_a_limit() -> None:
    lives = Lives()
    pauses = [lives.pause(1.0, ready=True, explained=False) for _ in range(70)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert set(pauses[10:]) == {LONGEST_PAUSE}


def test_the_pause_starts_over_after_a_receiver_has_worked_long_enough() -> None:
    lives = Lives()
    for _ in range(4):
        lives.pause(1.0, ready=True, explained=False)
    assert lives.pause(STEADY, ready=True, explained=False) == FIRST_PAUSE
    assert lives.pause(1.0, ready=True, explained=False) == 2 * FIRST_PAUSE


def test_a_long_start_does_not_count_as_work() -> None:
    lives = Lives()
    lives.pause(1.0, ready=True, explained=False)
    assert lives.pause(STEADY, ready=False, explained=False) == 2 * FIRST_PAUSE


def test_a_receiver_that_never_starts_is_given_up() -> None:
    lives = Lives()
    pauses = [lives.pause(0.1, ready=False, explained=False) for _ in range(MOST_STILLBORN)]
    assert None not in pauses[:-1]
    assert pauses[-1] is None


def test_a_receiver_that_reports_an_error_or_has_worked_is_not_given_up() -> None:
    lives = Lives()
    for number in range(10 * MOST_STILLBORN):
        explained = number % (MOST_STILLBORN - 1) == 0
        assert lives.pause(0.1, ready=False, explained=explained) is not None
    for _ in range(10 * MOST_STILLBORN):
        assert lives.pause(0.1, ready=True, explained=False) is not None
