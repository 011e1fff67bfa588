"""How full the log is, and the two lines at which receiving stops and goes on."""

from __future__ import annotations

import pytest

from nsq.errors import WalError
from nsq.spark.receiver.gauge import Gauge, held_bytes
from nsq.spark.receiver.valve import Valve
from nsq.spark.wal.store import ReceiverFolder, Segment


class Bench:
    def __init__(self) -> None:
        self.held = 0
        self.appended = 0
        self.fault: Exception | None = None
        self.valve = Valve(10, lambda window: None)
        self.gauge = Gauge(self._measure, 1000, self.valve, lambda: self.appended)

    def _measure(self) -> int:
        if self.fault is not None:
            raise self.fault
        return self.held

    @property
    def shut(self) -> bool:
        return self.valve.window == 0


@pytest.mark.parametrize(("held", "shut"), [(0, False), (999, False), (1000, True), (5000, True)])
def test_it_shuts_at_the_limit(held: int, shut: bool) -> None:
    bench = Bench()
    bench.held = held
    bench.gauge.look()
    assert bench.shut is shut
    assert ("1,000 at most" in bench.valve.why) is shut


def test_it_opens_again_only_well_below() -> None:
    bench = Bench()
    states = []
    for bench.held in (1000, 950, 900, 899, 950, 1000):
        bench.gauge.look()
        states.append(bench.shut)
    assert states == [True, True, True, False, False, True]


def test_between_two_looks_its_own_appends_count() -> None:
    bench = Bench()
    bench.appended, bench.held = 300, 500
    bench.gauge.look()
    bench.appended = 799
    bench.gauge.note()
    assert not bench.shut
    bench.appended = 800
    bench.gauge.note()
    assert bench.shut


def test_a_log_that_cannot_be_listed_changes_nothing() -> None:
    bench = Bench()
    bench.held = 1000
    bench.gauge.look()
    bench.fault = WalError("gone")
    bench.gauge.look()
    assert bench.shut
    bench.fault, bench.held = None, 0
    bench.gauge.look()
    assert not bench.shut


def test_sealed_and_open_bytes_of_everybody_count() -> None:
    class Listing:
        def segments(self) -> list[Segment]:
            return [Segment("a", 1, 2, 30), Segment("b", 1, 2, 400)]

        def receivers(self) -> list[ReceiverFolder]:
            return [ReceiverFolder("a", True, 5000, 1), ReceiverFolder("b", False, 0, 1)]

    assert held_bytes(Listing()) == 5430  # type: ignore[arg-type]
