from __future__ import annotations

import pytest

from nsq.daemons.nsqd.core.turns import Turns
from tests.unit.daemons.nsqd.clock import FakeClock


def test_nothing_is_done_at_once_and_one_portion_a_turn() -> None:
    clock, done = FakeClock(), list[str]()
    turns = Turns(clock.call_soon)
    for name in "abc":
        turns.ask(lambda name=name: done.append(name))  # type: ignore[misc]
    assert done == []
    seen = []
    while not clock.idle:
        clock.step()
        seen.append("".join(done))
    assert seen == ["a", "ab", "abc"]


def test_those_that_ask_again_take_turns() -> None:
    clock, done = FakeClock(), list[str]()
    turns = Turns(clock.call_soon)

    def work(name: str, portions: int) -> None:
        done.append(name)
        if portions > 1:
            turns.ask(lambda: work(name, portions - 1))

    turns.ask(lambda: work("a", 3))
    turns.ask(lambda: work("b", 2))
    clock.settle()
    assert "".join(done) == "ababa"
    turns.ask(lambda: work("c", 1))
    clock.settle()
    assert done[-1] == "c"


def test_what_one_of_them_does_wrong_is_not_for_the_others() -> None:
    clock, done = FakeClock(), list[str]()
    turns = Turns(clock.call_soon)
    turns.ask(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    turns.ask(lambda: done.append("b"))
    with pytest.raises(ZeroDivisionError):
        clock.step()
    clock.settle()
    assert done == ["b"]
