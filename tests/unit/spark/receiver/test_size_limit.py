"""Receiving stops when the log is full, and goes on below a lower limit."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.errors import WalError
from nsq.spark.receiver.receiving import Counts, PauseGate, Receiving
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.store import open_wal


class Topic:
    """The parts of a topic that matter for the limit."""

    def __init__(self, windows: list[int]) -> None:
        self.gate = PauseGate(10, windows.append)
        self.intake = SimpleNamespace(counts=Counts())
        self.log = None


class Bench:
    """A receiver without messages, on a log of a given size."""

    def __init__(self, wal: Any = None, most: int = 1000) -> None:
        self.held = 0
        self.error: Exception | None = None
        options = SourceOptions(
            topic="t", channel="c", wal="/wal", nsqd=("a:4150",), wal_max_bytes=most, retention_bytes=0
        )
        self.windows: list[int] = []
        self.topic: Any = Topic(self.windows)
        self.receiving = Receiving(options, wal or self, changed=lambda: None)
        self.receiving._topics["t"] = self.topic

    def measure(self, logs: object, limit: int) -> tuple[int, int]:
        if self.error is not None:
            raise self.error
        return self.held, limit

    def look(self) -> None:
        self.receiving._measure_log()

    def appended(self, written: int) -> None:
        self.topic.intake.counts = Counts(written=written)
        self.receiving._appended()

    @property
    def shut(self) -> bool:
        return self.topic.gate.window == 0


def test_receiving_pauses_at_the_limit_and_resumes_well_below_it() -> None:
    bench = Bench()
    states = []
    for bench.held in (999, 1000, 950, 900, 899, 950, 1000):
        bench.look()
        states.append(bench.shut)
        assert ("1,000 at most" in bench.topic.gate.why) is bench.shut
    assert states == [False, True, True, True, False, False, True]


def test_own_appends_count_between_two_measurements() -> None:
    bench = Bench()
    bench.appended(300)
    bench.held = 500
    bench.look()
    bench.appended(799)
    assert not bench.shut
    bench.appended(800)
    assert bench.shut


def test_a_log_that_cannot_be_listed_changes_nothing() -> None:
    bench = Bench()
    bench.held = 1000
    bench.look()
    bench.error = WalError("gone")
    bench.look()
    assert bench.shut
    bench.error, bench.held = None, 0
    bench.look()
    assert not bench.shut


def test_a_share_of_the_limit_counts_where_the_log_gives_one() -> None:
    class Shared:
        def measure(self, logs: object, limit: int) -> tuple[int, int]:
            return 300, limit // 4

    for most, shut in ((1204, False), (1200, True)):
        bench = Bench(Shared(), most)
        bench.look()
        assert bench.shut is shut


@pytest.mark.parametrize("size", [1, 1000])
def test_the_disk_holds_no_more_than_the_limit_however_small_bodies_are(tmp_path: Path, size: int) -> None:
    from nsq.spark.wal import records

    wal = open_wal(str(tmp_path / "wal"), fsync=False)
    wal.prepare()
    bench = Bench(wal, 200_000)
    with wal.log("receiver") as log:
        bench.look()
        count = 50
        while not bench.windows:
            bodies = [os.urandom(size) for _ in range(count)]
            ids = [os.urandom(8).hex().encode() for _ in range(count)]
            log.append(records.stored("t", ids, [10**18] * count, [1] * count, ["h:4150"] * count, bodies))
            bench.appended(log.written)
    files = sum(path.stat().st_size for path in (tmp_path / "wal").rglob("*.arrow"))
    assert 200_000 <= files < 300_000  # the batch that goes beyond it is kept
    assert bench.windows == [0]
