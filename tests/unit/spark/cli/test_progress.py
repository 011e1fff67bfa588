"""The line that tells how far it is, on a terminal and in a file."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from nsq.spark import cli
from nsq.spark.cli import Meter, line
from nsq.spark.pipelines.streaming import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """What somebody sees: a carriage return goes back to the beginning of the line."""
        lines = []
        for written in self.getvalue().split("\n"):
            shown = ""
            for piece in written.split("\r"):
                shown = piece + shown[len(piece) :]
            lines.append(shown.rstrip())
        return lines


def test_what_a_line_says() -> None:
    known = Progress(1_200_000, 3 << 20, seconds=75.0, rate=16_000.4, lag=5000, lag_seconds=12.3)
    assert (
        line(known)
        == "1,200,000 rows, 3.0 MiB, 16,000 rows/s, 5,000 to come (12 s behind), 1 min 15 s so far"
    )
    assert line(Progress(1, 10, seconds=2.0, rate=0.5)) == "1 rows, 10 B, 0 rows/s, 2.0 s so far"


def test_a_terminal_shows_the_last_one_only() -> None:
    terminal = Terminal()
    meter = Meter(terminal)
    meter.show("a long first line")
    meter.show("short")
    assert terminal.screen() == ["short"]
    meter.close()
    assert terminal.screen() == [""]


def test_what_is_to_stay_stands_above_it() -> None:
    terminal = Terminal()
    meter = Meter(terminal)
    meter.show("under way")
    meter.note("something happened, and it takes a whole sentence to say so")
    assert terminal.screen() == ["something happened, and it takes a whole sentence to say so", "under way"]


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(cli, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    meter = Meter(file)
    for moment in (0.0, 1.0, 3.9, 4.0, 5.0, 25.0):
        clock[0] = moment
        meter.show(f"at {moment:g}")
    meter.close()
    assert file.getvalue().splitlines() == ["at 0", "at 4", "at 25"]


def test_quiet_is_quiet_but_keeps_what_matters() -> None:
    file = io.StringIO()
    meter = Meter(file, quiet=True)
    meter.show("under way")
    meter.note("disk full")
    meter.close()
    assert file.getvalue() == "disk full\n"
