"""What ``nsq-spark`` shows on a terminal: tables, times, how far it is, and none of Java's chatter."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from nsq.spark.pipelines.streaming import Progress

# Text: tables, counts, bytes and times


#: Also with a unit, or none at all.
_NUMBER = re.compile(r"-|[0-9.,]+( .*)?")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they must be; numbers to the right."""
    lines = [[*heads], *([_cell(value) for value in row] for row in rows)]
    columns = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        right = all(map(_NUMBER.fullmatch, column[1:]))
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes in a unit one can read: ``1.5 MiB``."""
    step = 0
    while count >= 1024 and step < len(_STEPS) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.0f} {_STEPS[step]}" if step == 0 or count >= 100 else f"{count:.1f} {_STEPS[step]}"


def span(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# How far it is: one line, written over and over on a terminal; a line now and then in a log file

#: Seconds between lines where they are kept.
_SELDOM = 4.0


def line(progress: Progress) -> str:
    words = [f"{progress.rows:,} rows", size(progress.bytes), f"{progress.rate:,.0f} rows/s"]
    if progress.lag is not None:
        behind = f" ({span(progress.lag_seconds)} behind)" if progress.lag and progress.lag_seconds else ""
        words.append(f"{progress.lag:,} to come{behind}")
    return ", ".join([*words, f"{span(progress.seconds)} so far"])


@dataclasses.dataclass(eq=False)
class Meter:
    """Takes what a pipeline reports, from whichever thread."""

    stream: TextIO
    quiet: bool = False

    def __post_init__(self) -> None:
        self._told = time.monotonic() - _SELDOM
        self._shown = ""
        self._lock = threading.Lock()  # lines must not mix

    def __call__(self, progress: Progress) -> None:
        self.say(line(progress))

    def say(self, text: str) -> None:
        """How it goes just now; the next such line takes its place."""
        with self._lock:
            if self.quiet:
                return
            if self.stream.isatty():
                self._write("", text[: shutil.get_terminal_size().columns - 1])
            elif time.monotonic() - self._told >= _SELDOM:
                self._told = time.monotonic()
                self._write(f"{text}\n", "")

    def note(self, text: str) -> None:
        """What is to stay, above the line that changes."""
        with self._lock:
            self._write(f"{text}\n", self._shown)

    def close(self) -> None:
        """Make room for the result."""
        with self._lock:
            self._write("", "")

    def _write(self, stays: str, changes: str) -> None:
        erased = f"\r{' ' * len(self._shown)}\r" if self._shown else ""
        self.stream.write(erased + stays + changes)
        self.stream.flush()
        self._shown = changes


# Java's chatter. The JVM, and the Python processes it starts, write where our stderr pointed when it was
# started: to a pipe whose reader passes on what is worth telling

#: What every start of Spark says, what our own processes say for a log file, and where Java failed.
_CHATTER = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j|Setting default log level"
    r"|To adjust logging level|Warning: Java versions > Java 11 can only"
    r"|.* WARN NativeCodeLoader: |.* WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
    r"|.* INFO nsq\.|\s+at [\w.$]+\(|\s+\.\.\. [0-9]+ more$|\s*$"
)


def worth_telling(line: str) -> bool:
    return _CHATTER.match(line) is None


@contextlib.contextmanager
def filtered(tell: Callable[[str], None]) -> Iterator[None]:
    """What programs started inside the block write to stderr goes to ``tell``, line by line, as long as they
    run. What this process writes goes where it always went, except inside the block.
    """
    reading, writing = os.pipe()

    def pass_on() -> None:
        with open(reading, errors="replace") as lines:
            for line in filter(worth_telling, lines):
                tell(line.rstrip("\n"))

    own = os.dup(2)
    threading.Thread(target=pass_on, name="nsq-spark-stderr", daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
