"""Receiving stops when the log is full, and goes on below a lower limit; windows are bounded by bytes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.errors import WalError
from nsq.message import Message
from nsq.spark.receiver.intake import MOST_BYTES
from nsq.spark.receiver.receiving import Receiving, TopicReceiver
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import records
from nsq.spark.wal.store import open_wal
from tests.fakes.messages import Delegate
from tests.unit.spark.wal.conftest import log_of


class Topic:
    """Notes whether it is paused."""

    def __init__(self) -> None:
        self.paused: list[bool] = []

    def apply_window(self, share: int, paused: bool) -> None:
        self.paused.append(paused)


class Bench:
    """A receiver without messages, on a log of a given size."""

    def __init__(self, wal: Any = None, log: Any = None, most: int = 1000) -> None:
        self.held = 0
        self.error: Exception | None = None
        options = SourceOptions(
            topic="t", channel="c", wal="/wal", nsqd=("a:4150",), wal_max_bytes=most, retention_bytes=0
        )
        self.topic: Any = Topic()
        self.receiving = Receiving(options, wal or self, changed=lambda: None)
        self.receiving._topics["t"] = self.topic
        self.receiving._log = log or SimpleNamespace(written=0, full=False)

    def measure(self, log: object, limit: int) -> tuple[int, int]:
        if self.error is not None:
            raise self.error
        return self.held, limit

    def look(self) -> None:
        self.receiving._measure_log()

    def written(self, count: int) -> None:
        self.receiving._log.written = count  # type: ignore[union-attr]
        self.receiving._stored()

    @property
    def shut(self) -> bool:
        return self.receiving._gate.is_shut


def test_receiving_pauses_at_the_limit_and_resumes_well_below_it() -> None:
    bench = Bench()
    states = []
    for bench.held in (999, 1000, 950, 900, 899, 950, 1000):
        bench.look()
        states.append(bench.shut)
        assert ("1,000 at most" in bench.receiving._gate.why) is bench.shut
    assert states == [False, True, True, True, False, False, True]
    assert bench.topic.paused == [True, False, True]


def test_own_segments_count_between_two_measurements() -> None:
    bench = Bench()
    bench.written(300)
    bench.held = 200
    bench.look()
    bench.written(1099)
    assert not bench.shut
    bench.written(1100)
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


def test_a_share_of_the_limit_counts() -> None:
    class Shared:
        def measure(self, log: object, limit: int) -> tuple[int, int]:
            return 300, limit // 4

    for most, shut in ((1204, False), (1200, True)):
        bench = Bench(Shared(), most=most)
        bench.look()
        assert bench.shut is shut


@pytest.mark.parametrize("size", [1, 1000])
def test_the_disk_holds_no_more_than_the_limit_however_small_bodies_are(tmp_path: Path, size: int) -> None:
    wal = open_wal(str(tmp_path / "wal"), fsync=False)
    wal.prepare()
    with log_of(wal) as log:
        bench = Bench(wal, log, 200_000)
        bench.look()
        count = 50
        while not bench.shut:
            bodies = [os.urandom(size) for _ in range(count)]
            ids = [os.urandom(8).hex().encode() for _ in range(count)]
            batch = records.stored("t", ids, [10**18] * count, [1] * count, ["h:4150"] * count, bodies)
            log.put(batch, lambda: None)
            bench.receiving._stored()
    files = sum(path.stat().st_size for path in (tmp_path / "wal").rglob("*.arrow"))
    assert 200_000 <= files < 300_000  # the segment that goes beyond it is kept


class FakeConsumer:
    def __init__(self) -> None:
        self.windows: list[int] = []
        self.paused: list[bool] = []

    def set_max_in_flight(self, window: int) -> None:
        self.windows.append(window)

    def pause(self) -> None:
        self.paused.append(True)

    def resume(self) -> None:
        self.paused.append(False)


def test_a_window_follows_from_the_size_of_the_bodies() -> None:
    options = SourceOptions(topic="t", channel="c", wal="/wal", nsqd=("a:4150",))
    taken: list[int] = []
    intake: Any = SimpleNamespace(take=lambda topic, messages: taken.append(len(messages)))
    topic = TopicReceiver(options, "t", intake, lambda one: one.apply_window(MOST_BYTES, paused=False))
    consumer: Any = FakeConsumer()
    topic._consumer = consumer
    topic.apply_window(MOST_BYTES, paused=True)
    for size in (200, 250, 1 << 20, 700_000, 100, 1 << 30):
        message = Message(Delegate(), 0.0, 60.0, 7, 1, b"0123456789abcdef", b"")
        message.body = memoryview(bytes(1)) if size == 1 << 30 else bytes(size)  # type: ignore[assignment]
        if size == 1 << 30:
            message.body = range(size)  # type: ignore[assignment]
        topic._take([message])
    # 256 until the size is known; it is looked at again when it has halved or doubled.
    assert consumer.windows == [256, 20_000, 255, 20_000, 1]
    assert consumer.paused == [True, False, False, False, False]
    assert taken == [1] * 6
