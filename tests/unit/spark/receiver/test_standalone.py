"""What a receiver without an owner tells people, and where it does not even begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import WalForeign
from nsq.spark.receiver.protocol import Status, Stopped
from nsq.spark.receiver.standalone import Report, progress_line, standalone
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import Subject, open_wal


def test_a_line_says_how_it_goes() -> None:
    line = progress_line(Status(received=12345, sealed=6, connections=2), 1234.5)
    assert line == "12,345 messages received (1,234/s), 6 segments sealed, 2 connections"
    amiss = progress_line(Status(paused="the log is full", error="no disk"), 0.0)
    assert amiss.endswith("0 connections, paused: the log is full, error: no disk")


def test_lines_come_at_their_time_with_the_rate_since_the_last_one() -> None:
    lines: list[str] = []
    report = Report(lines.append, 10.0, 0.0)
    for second in range(1, 31):
        report.turn(Status(received=second * second), float(second))
    assert [line.split(",")[0] for line in lines] == [
        "100 messages received (10/s)",
        "400 messages received (30/s)",
        "900 messages received (50/s)",
    ]


def test_what_goes_wrong_is_told_at_once_and_not_again() -> None:
    lines: list[str] = []
    report = Report(lines.append, 10.0, 0.0)
    for second in (1.0, 2.0, 3.0):
        report.turn(Status(error="no disk"), second)
    report.turn(Status(paused="full"), 4.0)
    assert len(lines) == 2


def test_the_last_line_tells_what_is_left() -> None:
    lines: list[str] = []
    Report(lines.append, 10.0, 0.0).end(Status(received=5, sealed=1), Stopped(None, 3))
    assert lines == ["stopped: 5 messages received, 1 segments sealed, 3 left in flight"]


def test_a_log_of_something_else_is_left_alone(tmp_path: Path) -> None:
    wal = open_wal(str(tmp_path / "wal"))
    wal.prepare(Subject("clicks", "spark"))
    given = {"topic": "orders", "channel": "spark", "wal": wal.location, "nsqd": "127.0.0.1:1"}
    with pytest.raises(WalForeign, match="is the log of clicks/spark, and this is to read orders/spark"):
        standalone(SourceOptions.of(given))
    assert wal.receivers() == []
