"""The window of a paused consumer opens when all reasons for the pause are gone."""

from __future__ import annotations

from nsq.spark.receiver.receiving import PauseGate


def test_a_gate_opens_when_its_last_reason_is_gone() -> None:
    windows: list[int] = []
    gate = PauseGate(100, windows.append)
    gate.shut("disk", "the disk is full")
    gate.shut("limit", "there is a limit")
    assert gate.why == "the disk is full; there is a limit"
    gate.open("disk")
    assert (windows, gate.window) == ([0], 0)
    gate.open("limit")
    assert (windows, gate.why) == ([0, 100], "")


def test_a_reason_may_change_and_nothing_is_applied_twice() -> None:
    windows: list[int] = []
    gate = PauseGate(100, windows.append)
    gate.open("disk")
    gate.shut("disk", "full")
    gate.shut("disk", "still full")
    assert (windows, gate.why) == ([0], "still full")


def test_a_testing_gate_allows_one_message() -> None:
    windows: list[int] = []
    gate = PauseGate(100, windows.append)
    gate.shut("disk", "full")
    gate.test(True)
    gate.open("disk")
    gate.shut("limit", "much")
    gate.open("limit")
    gate.test(False)
    assert windows == [0, 1, 0, 1, 100]
