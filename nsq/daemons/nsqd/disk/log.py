"""Where a disk queue says what it found and did about it: the part of a daemon's log it uses."""

from __future__ import annotations

from typing import Protocol


class Log(Protocol):
    def info(self, message: str, *args: object) -> None: ...

    def warning(self, message: str, *args: object) -> None: ...

    def error(self, message: str, *args: object) -> None: ...
