from __future__ import annotations

import pytest

from nsq.daemons.nsqd.core.clock import Alarm, RoundRobin, call_after
from tests.fakes.clock import FakeClock


class Rings:
    def __init__(self) -> None:
        self.clock = FakeClock(now=0.0)
        self.times: list[float] = []
        self.alarm = Alarm(self.clock, lambda: self.times.append(self.clock.now()))


def test_an_alarm_rings_once_at_the_earliest_requested_time() -> None:
    rings = Rings()
    for when in (5.0, 3.0, 4.0, 3.0):
        rings.alarm.set(when)
    rings.clock.advance(10.0)
    assert rings.times == [3.0]
    assert rings.clock.idle


def test_an_alarm_can_be_set_again_even_while_it_rings() -> None:
    rings = Rings()

    def again() -> None:
        rings.times.append(rings.clock.now())
        if len(rings.times) < 3:
            alarm.set(rings.clock.now() + 1.0)

    alarm = Alarm(rings.clock, again)
    alarm.set(1.0)
    rings.clock.advance(10.0)
    assert rings.times == [1.0, 2.0, 3.0]


def test_a_cancelled_alarm_is_silent_until_set_again() -> None:
    rings = Rings()
    rings.alarm.set(1.0)
    rings.alarm.cancel()
    rings.alarm.cancel()
    assert rings.clock.idle
    rings.alarm.set(2.0)
    rings.clock.advance(5.0)
    assert rings.times == [2.0]


def test_an_alarm_in_the_past_rings_at_once() -> None:
    rings = Rings()
    rings.alarm.set(float("inf"))
    assert rings.clock.idle
    rings.alarm.set(-1.0)
    rings.clock.run_due()
    assert rings.times == [0.0]


def test_callbacks_that_ask_again_take_turns() -> None:
    clock, done = FakeClock(), list[str]()
    turns = RoundRobin(clock)

    def work(name: str, portions: int) -> None:
        done.append(name)
        if portions > 1:
            turns.ask(lambda: work(name, portions - 1))

    turns.ask(lambda: work("a", 3))
    turns.ask(lambda: work("b", 2))
    clock.run_due()
    assert "".join(done) == "ababa"
    turns.ask(lambda: work("c", 1))
    clock.run_due()
    assert done[-1] == "c"


def test_a_long_portion_is_followed_by_a_pause_of_the_same_length() -> None:
    clock, began = FakeClock(), list[float]()
    turns = RoundRobin(clock)

    def work(seconds: float) -> None:
        began.append(clock.now() - 1000.0)
        clock.advance_without_calls(seconds)

    for seconds in (0.05, 0.001, 0.0):
        turns.ask(lambda seconds=seconds: work(seconds))  # type: ignore[misc]
    clock.advance(1.0)
    assert began == pytest.approx([0.0, 0.1, 0.101])


def test_an_error_in_one_callback_does_not_stop_the_others() -> None:
    clock, done = FakeClock(), list[str]()
    turns = RoundRobin(clock)
    turns.ask(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    turns.ask(lambda: done.append("b"))
    with pytest.raises(ZeroDivisionError):
        clock.step()
    clock.run_due()
    assert done == ["b"]


@pytest.mark.parametrize(("took", "pause"), [(0.01, 0.0), (0.05, 0.05), (30.0, 0.1)])
def test_after_long_work_others_are_served_first_but_not_for_as_long_as_nsqd_stood_still(
    took: float, pause: float
) -> None:
    clock = FakeClock(now=0.0)
    times: list[float] = []
    call_after(took, clock, lambda: times.append(clock.now()))
    clock.advance(60.0)
    assert times == [pause]
