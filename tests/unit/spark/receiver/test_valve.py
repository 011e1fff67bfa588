"""The window: every reason has to be gone before it opens again."""

from __future__ import annotations

from nsq.spark.receiver.valve import Valve


def test_it_opens_when_the_last_reason_is_gone() -> None:
    windows: list[int] = []
    valve = Valve(100, windows.append)
    valve.shut("disk", "the disk is full")
    valve.shut("limit", "there is a limit")
    assert valve.why == "the disk is full; there is a limit"
    valve.open("disk")
    assert (windows, valve.window) == ([0], 0)
    valve.open("limit")
    assert (windows, valve.why) == ([0, 100], "")


def test_a_reason_may_change_and_nothing_is_applied_twice() -> None:
    windows: list[int] = []
    valve = Valve(100, windows.append)
    valve.open("disk")
    valve.shut("disk", "full")
    valve.shut("disk", "still full")
    assert (windows, valve.why) == ([0], "still full")


def test_one_message_tests_the_waters() -> None:
    windows: list[int] = []
    valve = Valve(100, windows.append)
    valve.shut("disk", "full")
    valve.test(True)
    valve.open("disk")
    valve.shut("limit", "much")
    valve.open("limit")
    valve.test(False)
    assert windows == [0, 1, 0, 1, 100]
