"""SIGTERM, which is how Spark stops the process that a stream reader lives in: without a handler of ours it
would end on the spot, and what is in flight would come again.

Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: What a shell reports for a process that SIGTERM has ended.
_STATUS = 128 + signal.SIGTERM


class Termination:
    """From ``begin`` on, SIGTERM calls ``leave``, then whoever was to be called before, and then exits as
    ``sys.exit`` does: with everything that is to be done finally.

    Only the main thread of a process may say what a signal does; elsewhere nothing happens.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._owner = os.getpid()
        self._leaving = False
        self._begun = False
        self._previous: Any = None

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            self._begun = True

    def ignore(self) -> None:
        """It is on its way out, and must not be cut short."""
        self._leaving = True

    def end(self) -> None:
        if self._begun and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == self._owner  # and not a child that was forked from it
        if ours and self._leaving:
            return
        self._leaving = True
        if ours:
            self._leave()
        if callable(self._previous):
            self._previous(number, frame)
        sys.exit(_STATUS)
