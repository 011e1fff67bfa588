"""SIGTERM and SIGINT as something to wait for, in whatever thread ``run`` is called.

Python runs a handler only between two steps of the main thread, and a signal that comes just before a wait
begins would be noticed when the wait is over. So the C handler itself writes to a pipe, and the wait is for
that.
"""

from __future__ import annotations

import _thread
import math
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from types import FrameType
from typing import Any, Self

from nsq.waiting import Signal

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_WOKEN = b"\0"
#: Seconds; poll cannot be asked to wait for much longer at once.
_LONGEST = 3600.0


class _Pipe:
    """Closed when the last reference to it is gone: no thread writes to a descriptor that is another's.

    An exception out of a signal handler must not lose its descriptors. It could come between making and
    noting them, so a thread of ours does that. It could come inside a ``__del__`` written in Python, so this
    one is a call that never comes back to Python before both are closed.
    """

    reader = writer = -1  # until it is made
    _close: Callable[[], object] = tuple  # nothing to close yet
    __del__ = property(attrgetter("_close"))

    def __init__(self) -> None:
        self._made = Signal()
        self._failure: OSError | None = None
        _thread.start_new_thread(self._make, ())
        self._made.wait()
        if self._failure is not None:
            raise self._failure

    def _make(self) -> None:
        try:
            self.reader, self.writer = ends = os.pipe()  # not inherited by programs that are started
            self._close = partial(deque, map(os.close, ends), 0)
            os.set_blocking(self.reader, False)
            os.set_blocking(self.writer, False)
        except OSError as error:
            self._failure = error
        self._made.set()


class SignalWatch:
    """Between ``__enter__`` and ``__exit__`` the signals are ours, if that is in the main thread.

    ``also`` are signals that are waited for beside SIGTERM and SIGINT. Where a signal handler of the user's
    may raise, it must be entered twice, ``with SignalWatch() as watch, watch``: if the first exit is
    interrupted before it has done anything, the second one gives the signals back.
    """

    def __init__(self, *also: signal.Signals) -> None:
        self._numbers = (*_NUMBERS, *also)
        self._pipe: _Pipe | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_fd: int | None = None  # set while signals are ours

    def __enter__(self) -> Self:
        if self._pipe is not None:
            return self
        try:
            self._pipe = pipe = _Pipe()
            if threading.current_thread() is threading.main_thread():
                self._previous_fd = -1  # before the call: an exception right behind it loses what it returns
                self._previous_fd = signal.set_wakeup_fd(pipe.writer, warn_on_full_buffer=False)
                for number in self._numbers:
                    self._previous[number] = signal.getsignal(number)
                    signal.signal(number, self._arrived)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._restore(self._previous_fd)
        finally:
            self._restore(self._previous_fd)  # again, if another signal's handler has raised in there
            self._pipe = None

    def _restore(self, descriptor: int | None) -> None:
        if descriptor is not None:
            signal.set_wakeup_fd(descriptor)
            self._previous_fd = None
        for number, previous in list(self._previous.items()):
            # None is a handler that was not set from Python; it cannot be set from here either.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
            self._previous.pop(number, None)

    def wait(self, timeout: float | None = None, descriptor: int = -1) -> signal.Signals | None:
        """The next signal. None when ``wake`` was called, the time is up, or ``descriptor`` can be read."""
        assert self._pipe is not None
        reader = self._pipe.reader
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = min(max(deadline - time.monotonic(), 0.0), _LONGEST)
            ready = {ready for ready, _ in poll.poll(math.ceil(left * 1000))}
            if reader not in ready:
                if ready or time.monotonic() >= deadline:
                    return None
                continue
            for code in os.read(reader, 1):
                if code in self._numbers:
                    return signal.Signals(code)
                if code == _WOKEN[0]:
                    return None

    def wake(self) -> None:
        """Any thread may call it, a signal handler too."""
        pipe = self._pipe
        if pipe is not None:
            with suppress(BlockingIOError):  # it is full: the wait ends anyway
                os.write(pipe.writer, _WOKEN)

    def abandon(self) -> None:
        """Restore the signals in a forked child: the pipe is the parent's, and a byte from here would stop
        the parent.
        """
        self._restore(None if self._previous_fd is None else -1)
        self._pipe = None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The pipe has told already. Nothing is raised: it could hit any step of the main thread."""
