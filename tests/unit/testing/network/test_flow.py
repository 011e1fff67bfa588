from __future__ import annotations

import random

import pytest

from nsq.testing.network.faults import Fault
from nsq.testing.network.flow import Conditions, Flow


def make(conditions: Conditions | None = None) -> Flow:
    return Flow(conditions or Conditions(), chance=random.Random(1))


def test_a_stall_holds_back_bytes_and_the_end_of_the_stream() -> None:
    flow = make()
    flow.impose(Fault("stall", seconds=2.0), 10.0)
    flow.feed(b"held", 10.5)
    flow.end()
    assert flow.due(11.9) == b""
    assert flow.next_due(11.9) == 12.0
    assert flow.due(12.0) == b"held"
    assert flow.drained(12.0)
    flow.impose(Fault("stall", seconds=1.0), 20.0)
    assert not flow.drained(20.5)
    assert flow.next_due(20.5) == 21.0


def test_a_delay_counts_from_when_the_bytes_were_sent() -> None:
    flow = make()
    flow.impose(Fault("delay", amount=0.5), 0.0)
    flow.feed(b"one", 1.0)
    flow.feed(b"two", 1.25)
    assert flow.next_due(1.0) == 1.5
    assert flow.due(1.5) == b"one"
    assert flow.next_due(1.5) == 1.75
    assert flow.due(1.75) == b"two"


def test_the_worse_of_two_conditions_counts() -> None:
    conditions = Conditions()
    flow = make(conditions)
    flow.impose(Fault("delay", amount=0.5), 0.0)
    conditions.impose(Fault("delay", amount=2.0, seconds=10.0), 0.0)
    flow.feed(b"late", 1.0)
    assert flow.next_due(1.0) == 3.0
    conditions.impose(Fault("stall", seconds=5.0), 0.0)
    assert flow.due(4.0) == b""
    assert flow.due(5.0) == b"late"


@pytest.mark.parametrize("rate", [10.0, 1000.0, 1e6])
def test_a_throttle_lets_that_many_bytes_a_second_through(rate: float) -> None:
    flow = make()
    flow.impose(Fault("throttle", amount=rate), 0.0)
    size = int(rate / 2)
    flow.feed(b"x" * size, 0.0)
    now, arrived, rounds = 0.0, 0, 0
    while arrived < size:
        arrived += len(flow.due(now))
        assert arrived <= rate * now + 1
        now = max(now, flow.next_due(now)) if arrived < size else now
        rounds += 1
        assert rounds < 200, "it wakes up for nothing"
    assert now == pytest.approx(0.5, rel=0.1)


def test_asking_for_the_next_time_does_not_postpone_it() -> None:
    flow = make()
    flow.impose(Fault("throttle", amount=1000.0), 0.0)
    flow.feed(b"x" * 100, 0.0)
    flow.due(0.0)
    assert flow.next_due(0.0) == flow.next_due(0.01) == pytest.approx(0.02)


def test_an_idle_time_does_not_allow_a_burst() -> None:
    flow = make()
    flow.impose(Fault("throttle", amount=1000.0), 0.0)
    flow.feed(b"x", 0.0)
    flow.due(0.0)
    flow.due(1.0)
    flow.feed(b"x" * 1000, 100.0)
    assert len(flow.due(100.0)) <= 40


def test_healing_cancels_faults_that_have_not_happened_yet() -> None:
    flow = make()
    for fault in (Fault("truncate", amount=1), Fault("corrupt", amount=8), Fault("delay", amount=9.0)):
        flow.impose(fault, 0.0)
    flow.heal()
    flow.feed(b"whole", 0.0)
    assert flow.due(0.0) == b"whole"
    assert not flow.cut_off
