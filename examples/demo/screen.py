"""Output: lines, and on a terminal a progress bar below them; elsewhere a line at every quarter. Nothing is
silent for more than eight seconds.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

WIDEST, NARROWEST = 40, 10
_CLEAR = "\r\x1b[K"
_SILENCE = 8.0


class Screen:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._quarter = 0
        self._bar = ""
        self._lock = threading.Lock()
        self._written = time.monotonic()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Meanwhile say that the work goes on whenever nothing else is said."""
        done = threading.Event()
        thread = threading.Thread(target=self._remind, args=(done,), name="demo-reminder", daemon=True)
        self._written = time.monotonic()
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _remind(self, done: threading.Event) -> None:
        while not done.wait(1.0):
            if (silent := time.monotonic() - self._written) >= _SILENCE:
                self.say(f"… still working, nothing new for {silent:.0f} s")

    def say(self, line: str = "") -> None:
        """Print a permanent line."""
        self._write(f"{_CLEAR}{line}\n{self._bar}" if self._terminal else f"{line}\n")

    def show(self, share: float, text: str) -> None:
        """Show the progress, from 0 to 1 and as text."""
        if self._terminal:
            # A full last column would wrap, and could not be erased.
            columns = shutil.get_terminal_size().columns - 1
            words = f" {share:4.0%}  {text}"
            self._bar = (bar(share, columns - len(words)) + words)[:columns]
            self._write(_CLEAR + self._bar)
        elif int(share * 4) > self._quarter or time.monotonic() - self._written > _SILENCE - 1:
            self._quarter = int(share * 4)
            self._write(f"{share:4.0%}  {text}\n")

    def clear(self) -> None:
        """Erase the bar."""
        if self._bar:
            self._bar = ""
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        with self._lock:
            self._written = time.monotonic()
            self._out.write(text)
            self._out.flush()


def bar(share: float, room: int) -> str:
    width = min(max(room - len("[]"), NARROWEST), WIDEST)
    filled = int(share * width)
    return f"[{'#' * filled}{'.' * (width - filled)}]"
