"""How full the log is, and the two lines at which receiving stops and goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsq.errors import WalError
from nsq.spark.receiver.receiving import PauseGate, SizeLimit, held_bytes
from nsq.spark.wal.names import ReceiverFolder, Segment, SegmentFile
from nsq.spark.wal.store import open_wal


class Bench:
    def __init__(self) -> None:
        self.held = 0
        self.appended = 0
        self.fault: Exception | None = None
        self.gate = PauseGate(10, lambda window: None)
        self.limit = SizeLimit(self._measure, 1000, lambda: [self.gate], lambda: self.appended)

    def _measure(self) -> int:
        if self.fault is not None:
            raise self.fault
        return self.held

    @property
    def shut(self) -> bool:
        return self.gate.window == 0


@pytest.mark.parametrize(("held", "shut"), [(0, False), (999, False), (1000, True), (5000, True)])
def test_it_shuts_at_the_limit(held: int, shut: bool) -> None:
    bench = Bench()
    bench.held = held
    bench.limit.look()
    assert bench.shut is shut
    assert ("1,000 at most" in bench.gate.why) is shut


def test_it_opens_again_only_well_below() -> None:
    bench = Bench()
    states = []
    for bench.held in (1000, 950, 900, 899, 950, 1000):
        bench.limit.look()
        states.append(bench.shut)
    assert states == [True, True, True, False, False, True]


def test_between_two_looks_its_own_appends_count() -> None:
    bench = Bench()
    bench.appended, bench.held = 300, 500
    bench.limit.look()
    bench.appended = 799
    bench.limit.note()
    assert not bench.shut
    bench.appended = 800
    bench.limit.note()
    assert bench.shut


def test_a_log_that_cannot_be_listed_changes_nothing() -> None:
    bench = Bench()
    bench.held = 1000
    bench.limit.look()
    bench.fault = WalError("gone")
    bench.limit.look()
    assert bench.shut
    bench.fault, bench.held = None, 0
    bench.limit.look()
    assert not bench.shut


def test_sealed_and_open_bytes_of_everybody_count() -> None:
    class Listing:
        def files(self) -> list[SegmentFile]:
            return [SegmentFile(Segment("a", 1, 2, 1), 30, 0.0), SegmentFile(Segment("b", 1, 2, 1), 400, 0.0)]

        def receivers(self) -> list[ReceiverFolder]:
            return [ReceiverFolder("a", True, 5000, 1), ReceiverFolder("b", False, 0, 1)]

    assert held_bytes(Listing()) == 5430  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 1000])
def test_the_disk_holds_no_more_than_the_limit_however_small_bodies_are(tmp_path: Path, size: int) -> None:
    records = pytest.importorskip("nsq.spark.wal.records")
    wal = open_wal(str(tmp_path / "wal"), fsync=False)
    wal.prepare()
    windows: list[int] = []
    with wal.log("receiver") as log:
        gate = PauseGate(2500, windows.append)
        limit = SizeLimit(lambda: held_bytes(wal), 200_000, lambda: [gate], lambda: log.written)
        limit.look()
        count = 50
        while not windows:
            bodies = [os.urandom(size) for _ in range(count)]
            ids = [os.urandom(8).hex().encode() for _ in range(count)]
            log.append(records.stored("t", ids, [10**18] * count, [1] * count, ["h:4150"] * count, bodies))
            limit.note()
    files = sum(path.stat().st_size for path in (tmp_path / "wal").rglob("*.arrow"))
    assert 200_000 <= files < 300_000  # the batch that goes beyond it is kept
    assert windows == [0]
