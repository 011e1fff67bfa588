"""A pipeline on a terminal: signals stop it, a line shows its progress, and Spark's noise is left out."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from nsq.threads.signals import SignalWatch

if TYPE_CHECKING:
    from nsq.spark.pipelines.streaming import Progress

# SIGINT and SIGTERM while a pipeline runs


@dataclasses.dataclass
class StopRequest:
    """``stop`` is set at the first signal, and ``number`` is its number; 0 while there is none."""

    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    number: int = 0


@contextlib.contextmanager
def stop_signals(note: Callable[[str], None]) -> Iterator[StopRequest]:
    """Take SIGINT and SIGTERM over, inside the block: the first one asks the pipeline to stop, a later one
    ends the process at once. Spark's JVM ends with the process.
    """
    found = StopRequest()

    def watch_signals() -> None:
        while (number := watch.wait()) is not None:
            if found.number:
                os._exit(128 + number)
            found.number = int(number)
            found.stop.set()
            note("stopping, which takes some seconds; again to stop at once")

    with SignalWatch() as watch, watch:
        # A thread, because the main thread may hold the lock of the event when the signal comes.
        thread = threading.Thread(target=watch_signals, name="nsq-spark-signals", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            watch.wake()
            thread.join()


# How bytes and seconds are written


def size(count: float) -> str:
    """A number of bytes as text: ``1.5 MiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.0f} {units[0]}" if units[0] == "B" or count >= 100 else f"{count:.1f} {units[0]}"


def span(seconds: float) -> str:
    """Seconds as text: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# Progress: one line that is overwritten on a terminal; in a file, a line every few seconds

#: Seconds between lines in a file.
_SELDOM = 4.0


def line(progress: Progress) -> str:
    words = [f"{progress.rows:,} rows", size(progress.bytes), f"{progress.rate:,.0f} rows/s"]
    if progress.lag is not None:
        behind = f" ({span(progress.lag_seconds)} behind)" if progress.lag and progress.lag_seconds else ""
        words.append(f"{progress.lag:,} to come{behind}")
    return ", ".join([*words, f"{span(progress.seconds)} so far"])


@dataclasses.dataclass(eq=False)
class Meter:
    """Shows the progress of a pipeline; thread-safe."""

    stream: TextIO
    quiet: bool = False

    def __post_init__(self) -> None:
        self._last_line_at = time.monotonic() - _SELDOM
        self._shown = ""
        self._closed = False
        self._lock = threading.Lock()  # lines must not mix

    def show(self, text: str) -> None:
        """Show the current progress; the next call overwrites it."""
        with self._lock:
            if self.quiet:
                return
            if self.stream.isatty():
                self._write("", text[: shutil.get_terminal_size().columns - 1])
            elif time.monotonic() - self._last_line_at >= _SELDOM:
                self._last_line_at = time.monotonic()
                self._write(f"{text}\n", "")

    def note(self, text: str) -> None:
        """Write a lasting line above the progress line, until ``close``."""
        with self._lock:
            if not self._closed:
                self._write(f"{text}\n", self._shown)

    def close(self) -> None:
        """Erase the progress line. What Spark's processes say about their own end later is left out."""
        with self._lock:
            self._closed = True
            self._write("", "")

    def _write(self, stays: str, changes: str) -> None:
        erased = f"\r{' ' * len(self._shown)}\r" if self._shown else ""
        self.stream.write(erased + stays + changes)
        self.stream.flush()
        self._shown = changes


# Filtering Spark's output. The JVM and its Python processes inherit our stderr when the JVM starts. At that
# time it is a pipe, whose reader passes on all lines but the noise

#: Noise: the usual lines of a Spark start, INFO lines of our own processes, and Java's stack traces.
CHATTER = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j|Setting default log level"
    r"|To adjust logging level|Warning: Java versions > Java 11 can only"
    r"|.* WARN NativeCodeLoader: |.* WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
    r"|.* INFO nsq\.|\s+at [\w.$]+\(|\s+\.\.\. [0-9]+ more$|\s*$"
)


@contextlib.contextmanager
def own_stderr() -> Iterator[TextIO]:
    """A copy of stderr, into which ``filtered`` can pass lines while stderr itself is its pipe."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):
        yield sys.stderr  # not a file, as in tests
        return
    with open(descriptor, "w", errors="backslashreplace") as copy:
        yield copy


@contextlib.contextmanager
def filtered(note: Callable[[str], None]) -> Iterator[None]:
    """Pass the stderr of programs that are started inside the block to ``note``, line by line, as long as
    they run. This process's own stderr is affected only inside the block.
    """
    reading, writing = os.pipe()

    def pass_on() -> None:
        with open(reading, errors="replace") as lines:
            for line in lines:
                if not CHATTER.match(line):
                    note(line.rstrip("\n"))

    own = os.dup(2)
    threading.Thread(target=pass_on, name="nsq-spark-stderr", daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
