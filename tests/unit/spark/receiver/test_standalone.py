"""A receiver without an owner: its progress lines, and options that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import WalForeign
from nsq.spark.receiver.process import progress_line, standalone
from nsq.spark.receiver.protocol import Status
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import Subject, open_wal


def test_a_progress_line_says_how_the_job_goes() -> None:
    line = progress_line(Status(received=12345, sealed=6, connections=2), 1234.5)
    assert line == "12,345 messages received (1,234/s), 6 segments sealed, 2 connections"
    amiss = progress_line(Status(paused="the log is full", error="no disk"), 0.0)
    assert amiss.endswith("0 connections, paused: the log is full, error: no disk")


def test_a_log_of_something_else_is_left_alone(tmp_path: Path) -> None:
    wal = open_wal(str(tmp_path / "wal"))
    wal.prepare(Subject("clicks", "spark"))
    given = {"topic": "orders", "channel": "spark", "wal": wal.location, "nsqd": "127.0.0.1:1"}
    with pytest.raises(WalForeign, match="is the log of clicks/spark, and this is to read orders/spark"):
        standalone(SourceOptions.of(given), progress=print)
    assert wal.receivers() == []
