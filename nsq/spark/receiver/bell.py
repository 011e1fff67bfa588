"""What wakes a receiver's main thread: bytes to read, room to write, another thread, SIGTERM and SIGINT.

Python runs a signal's handler only between two steps of the main thread; so the C handler itself writes to
the pipe that the main thread waits for.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Bell:
    """A context manager of the main thread, which alone waits. ``ring`` is for any thread, also afterwards.

    A first signal is something to find in ``signals``; a second one ends the process at once: what was
    finished is in the log by then, and nsqd delivers the rest again.
    """

    def __init__(self) -> None:
        self.signals = 0
        self._reader = self._writer = -1
        self._lock = threading.Lock()  # guards the pipe against a ring that comes at the end
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_fd = -1

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous_fd)
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        with self._lock:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1

    def ring(self) -> None:
        with self._lock, suppress(BlockingIOError):  # one that is full has been heard, or will be
            if self._writer >= 0:
                os.write(self._writer, b"\0")

    def wait(self, timeout: float, *, readable: int = -1, writable: int = -1) -> set[int]:
        """Until the bell rings, or one of the descriptors (-1: none) is ready; those that are."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if readable >= 0:
            poll.register(readable, select.POLLIN)
        if writable >= 0:
            poll.register(writable, select.POLLOUT)
        ready = {number for number, _ in poll.poll(max(0.0, timeout) * 1000)}
        if self._reader in ready:
            with suppress(BlockingIOError):
                while len(os.read(self._reader, 4096)) == 4096:
                    pass
            ready.discard(self._reader)
        return ready

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        if self.signals > 1:
            os._exit(128 + number)
