"""What a person sees: lines, and on a terminal a bar below them; elsewhere a line at every quarter."""

from __future__ import annotations

import shutil
from typing import TextIO

WIDTH = 30
_CLEAR = "\r\x1b[K"


class Screen:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._quarter = 0
        self._bar = ""

    def say(self, line: str = "") -> None:
        """A line that stays."""
        self._write(f"{_CLEAR}{line}\n{self._bar}" if self._terminal else f"{line}\n")

    def show(self, share: float, text: str) -> None:
        """How far things are, from 0 to 1, and in words."""
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            # A bar that fills the last column would wrap, and could not be taken back.
            self._bar = f"{bar(share)} {share:4.0%}  {text}"[: columns - 1]
            self._write(_CLEAR + self._bar)
        elif int(share * 4) > self._quarter:
            self._quarter = int(share * 4)
            self._write(f"{share:4.0%}  {text}\n")

    def clear(self) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar = ""
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def bar(share: float) -> str:
    filled = int(share * WIDTH)
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}]"
