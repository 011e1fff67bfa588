"""The progress line on a terminal and in a file, Spark's output without its noise, numbers as text."""

from __future__ import annotations

import io
import queue
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from nsq.spark import terminal as module
from nsq.spark.pipelines.streaming import Progress
from nsq.spark.terminal import CHATTER, Meter, filtered, line, size, span


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """What the screen shows: a carriage return goes back to the beginning of the line."""
        lines = []
        for written in self.getvalue().split("\n"):
            shown = ""
            for piece in written.split("\r"):
                shown = piece + shown[len(piece) :]
            lines.append(shown.rstrip())
        return lines


def test_the_line_shows_rows_bytes_rate_and_lag() -> None:
    known = Progress(1_200_000, 3 << 20, seconds=75.0, rate=16_000.4, lag=5000, lag_seconds=12.3)
    assert (
        line(known)
        == "1,200,000 rows, 3.0 MiB, 16,000 rows/s, 5,000 to come (12 s behind), 1 min 15 s so far"
    )
    assert line(Progress(1, 10, seconds=2.0, rate=0.5)) == "1 rows, 10 B, 0 rows/s, 2.0 s so far"


def test_a_terminal_shows_only_the_last_line() -> None:
    terminal = Terminal()
    meter = Meter(terminal)
    meter.show("a long first line")
    meter.show("short")
    assert terminal.screen() == ["short"]
    meter.close()
    assert terminal.screen() == [""]


def test_a_note_stays_above_the_progress_line() -> None:
    terminal = Terminal()
    meter = Meter(terminal)
    meter.show("under way")
    meter.note("something happened, and it takes a whole sentence to say so")
    assert terminal.screen() == ["something happened, and it takes a whole sentence to say so", "under way"]


def test_a_file_gets_a_line_every_four_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    meter = Meter(file)
    for moment in (0.0, 1.0, 3.9, 4.0, 5.0, 25.0):
        clock[0] = moment
        meter.show(f"at {moment:g}")
    meter.close()
    assert file.getvalue().splitlines() == ["at 0", "at 4", "at 25"]


def test_quiet_hides_progress_but_not_notes() -> None:
    file = io.StringIO()
    meter = Meter(file, quiet=True)
    meter.show("under way")
    meter.note("disk full")
    meter.close()
    meter.note("BrokenPipeError, from a process of Spark's that ends")
    assert file.getvalue() == "disk full\n"


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        'Setting default log level to "WARN".\n',
        "26/11/20 12:05:57 WARN NativeCodeLoader: Unable to load native-hadoop library\n",
        "2026-11-20 12:06:05,433 INFO nsq.spark.receiver: receiver x receives\n",
        "\tat org.apache.spark.sql.execution.StreamExecution$$anon$1.run(StreamExecution.scala:236)\n",
        "\t... 23 more\n",
        "\n",
    ],
)
def test_noise_in_sparks_output_is_recognized(line: str) -> None:
    assert CHATTER.match(line)


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-20 12:06:05,433 WARNING nsq.spark.source: the backlog is unknown\n",
        "26/11/20 12:05:57 ERROR Executor: Exception in task 0.0\n",
        "Caused by: java.io.IOException: No space left on device\n",
        "  at least two of them\n",
    ],
)
def test_errors_and_warnings_are_no_noise(line: str) -> None:
    assert not CHATTER.match(line)


def test_the_output_of_a_program_is_filtered_until_it_ends() -> None:
    lines: queue.Queue[str] = queue.Queue()
    code = "import sys; sys.stdin.read(); print('disk full', file=sys.stderr)"
    with filtered(lines.put):
        program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    program.communicate(b"", timeout=200)
    assert lines.get(timeout=200) == "disk full"
    for thread in threading.enumerate():
        if thread.name == "nsq-spark-stderr":
            thread.join(200)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *[(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (150 * 1024, "150 KiB"), (3 << 40, "3.0 TiB")],
        *[(9 << 50, "9216 TiB")],
    ],
)
def test_bytes_are_written_with_a_unit(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.5, "9.5 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_seconds_are_written_with_a_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text
