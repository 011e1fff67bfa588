"""How far it is: one line, written over and over, where somebody looks; a line now and then in a log file."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from typing import TextIO

from nsq.spark.cli.tables import size, span
from nsq.spark.pipelines.streaming import Progress

#: Seconds between lines where they are kept.
_SELDOM = 10.0


def line(progress: Progress) -> str:
    words = [f"{progress.rows:,} rows", size(progress.bytes), f"{progress.rate:,.0f} rows/s"]
    if progress.lag is not None:
        behind = f" ({span(progress.lag_seconds)} behind)" if progress.lag and progress.lag_seconds else ""
        words.append(f"{progress.lag:,} to come{behind}")
    return ", ".join([*words, f"{span(progress.seconds)} so far"])


class Meter:
    """Takes what a pipeline reports, from whichever thread."""

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._quiet = quiet
        self._now = now
        self._live = stream.isatty()
        self._told = now() - _SELDOM
        self._shown = ""
        self._lock = threading.Lock()  # lines must not mix

    def __call__(self, progress: Progress) -> None:
        self.say(line(progress))

    def say(self, text: str) -> None:
        """How it goes just now; the next such line takes its place."""
        if self._quiet:
            return
        with self._lock:
            if self._live:
                self._show(text[: shutil.get_terminal_size().columns - 1])
            elif self._now() - self._told >= _SELDOM:
                self._told = self._now()
                self._stream.write(f"{text}\n")
            self._stream.flush()

    def note(self, text: str) -> None:
        """What is to stay, above the line that changes."""
        with self._lock:
            shown = self._shown
            self._show("")
            self._stream.write(f"{text}\n")
            self._show(shown)
            self._stream.flush()

    def close(self) -> None:
        """Make room for the result."""
        with self._lock:
            self._show("")
            self._stream.flush()

    def _show(self, text: str) -> None:
        if text or self._shown:
            self._stream.write(f"\r{text.ljust(len(self._shown))}")
            if not text:
                self._stream.write("\r")
        self._shown = text
