"""SIGTERM and SIGINT as something to wait for, in whatever thread ``run`` is called.

Python runs a handler only between two steps of the main thread, and a signal that comes just before this
begins to wait would be noticed when the wait is over. So the C handler itself writes to a pipe, and the
wait is for that.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType
from typing import Any, Self

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_WOKEN = b"\0"


class SignalWatch:
    """Between ``__enter__`` and ``__exit__`` the signals are ours, if that is in the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = -1, -1
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_fd = -1
        self._lock = threading.Lock()  # guards the pipe against a wake that comes at the end

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if threading.current_thread() is threading.main_thread():
            self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            for number in _NUMBERS:
                self._previous[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous:
            signal.set_wakeup_fd(self._previous_fd)
        for number in list(self._previous):
            self._give_back(number)
        with self._lock:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1

    def wait(self) -> signal.Signals | None:
        """The next signal; None when ``wake`` was called."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        while True:
            poll.poll()
            for code in os.read(self._reader, 1):
                if code in _NUMBERS:
                    return signal.Signals(code)
                if code == _WOKEN[0]:
                    return None

    def wake(self) -> None:
        with self._lock:
            if self._writer >= 0:
                os.write(self._writer, _WOKEN)

    def _give_back(self, number: signal.Signals) -> None:
        """None is a handler that was not set from Python; it cannot be set from here either."""
        previous = self._previous.pop(number)
        signal.signal(number, signal.SIG_DFL if previous is None else previous)

    def abandon(self) -> None:
        """In a forked child, which is to end by a signal as if without us: the pipe is the parent's, and a
        byte from here would stop the parent."""
        if self._previous:
            signal.set_wakeup_fd(-1)
        for number in list(self._previous):
            self._give_back(number)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The pipe has told already. Nothing is raised: it could hit any step of the main thread."""
