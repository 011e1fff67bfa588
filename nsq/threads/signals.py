"""Waiting for SIGTERM and SIGINT, in any thread that calls ``run``.

Python runs a handler only between two bytecodes of the main thread, so a signal just before a wait would be
noticed only after the wait. Therefore the C handler writes to a pipe, and the wait polls the pipe.

Signals within a second of the first count as one: see ``nsq.threads.stop_signals``.
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

from nsq.threads.stop_signals import StopSignals, release_signals
from nsq.threads.waiters import SafeEvent

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_WOKEN = b"\0"
_LONGEST = 3600.0  # seconds of the longest single poll, which counts milliseconds in 32 bits


class _Pipe:
    """A pipe, closed when the last reference to it is gone: no thread writes to a reused descriptor.

    An exception out of a signal handler must not leak the descriptors. It could come between making and
    storing them, so a thread of ours does both. It could come inside a ``__del__`` written in Python, between
    two of its bytecodes, so this one has none.
    """

    reader = writer = -1  # until the pipe is made
    _close: Callable[[], object] = tuple  # nothing to close yet
    # Python looks ``__del__`` up on the class, binds it to the object, and calls the result. Here binding it
    # means reading the property, which gets the object's ``_close``: a ``partial`` of C functions alone.
    __del__ = property(attrgetter("_close"))

    def __init__(self) -> None:
        self._made = SafeEvent()
        self._failure: OSError | None = None
        _thread.start_new_thread(self._make, ())
        self._made.wait()
        if self._failure is not None:
            raise self._failure

    def _make(self) -> None:
        try:
            self.reader, self.writer = ends = os.pipe()  # child programs do not inherit it
            # A deque of no length: it closes both and keeps nothing.
            self._close = partial(deque, map(os.close, ends), 0)
            os.set_blocking(self.reader, False)
            os.set_blocking(self.writer, False)
        except OSError as error:
            self._failure = error
        self._made.set()


class SignalWatch:
    """A context manager that takes the signals over, if it is entered in the main thread.

    It takes SIGTERM, SIGINT and those in ``also``. Where a user's signal handler may raise, enter it twice,
    ``with SignalWatch() as watch, watch``: if an exception interrupts the first exit before it has done
    anything, the second one restores the signals.

    A stop may end within the second in which the signal can be repeated. So where Python's own handlers are
    restored after a signal, they ignore what repeats it: it would kill the program after a clean stop.
    """

    def __init__(self, *also: signal.Signals) -> None:
        self._numbers = (*_NUMBERS, *also)
        self._pipe: _Pipe | None = None
        self._stop_signals = StopSignals()
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_fd: int | None = None  # set while we handle the signals

    def __enter__(self) -> Self:
        if self._pipe is not None:
            return self
        try:
            self._pipe = pipe = _Pipe()
            if threading.current_thread() is threading.main_thread():
                self._previous_fd = -1  # before the call: an exception right after it loses its result
                self._previous_fd = signal.set_wakeup_fd(pipe.writer, warn_on_full_buffer=False)
                for number in self._numbers:
                    self._previous[number] = signal.getsignal(number)
                    signal.signal(number, self._arrived)
                release_signals()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._restore(self._previous_fd)
        finally:
            self._restore(self._previous_fd)  # again, in case another signal's handler has raised in it
            self._pipe = None

    def _restore(self, descriptor: int | None) -> None:
        if descriptor is not None:
            signal.set_wakeup_fd(descriptor)
            self._previous_fd = None
        for number, previous in list(self._previous.items()):
            # None means a handler that was not set from Python; Python cannot restore it.
            signal.signal(number, self._tolerant(signal.SIG_DFL if previous is None else previous))
            self._previous.pop(number, None)

    def _tolerant(self, handler: Any) -> Any:
        """Return the handler to restore: after a signal, one that ignores repetitions."""
        if isinstance(handler, _AfterStop):
            handler = handler.handler
        until = self._stop_signals.until
        if time.monotonic() >= until or handler not in (signal.SIG_DFL, signal.default_int_handler):
            return handler
        return _AfterStop(handler, until)

    def wait(self, timeout: float | None = None, descriptor: int = -1) -> signal.Signals | None:
        """Return the next signal, or None after ``wake`` or ``timeout``, or if ``descriptor`` is readable.

        Skips a SIGTERM or SIGINT that repeats the first one.
        """
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
                if code in _NUMBERS and self._stop_signals.repeats(time.monotonic()):
                    continue
                if code in self._numbers:
                    return signal.Signals(code)
                if code == _WOKEN[0]:
                    return None

    def wake(self) -> None:
        """End the wait. Any thread may call this, a signal handler too."""
        pipe = self._pipe
        if pipe is not None:
            with suppress(BlockingIOError):  # the pipe is full: the wait ends anyway
                os.write(pipe.writer, _WOKEN)

    def abandon(self) -> None:
        """Restore the signals in a forked child; the pipe is the parent's, which a byte would stop."""
        self._restore(None if self._previous_fd is None else -1)
        self._pipe = None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """Do nothing: the pipe has the signal already, and raising could hit the main thread anywhere."""


class _AfterStop:
    """A signal handler: does nothing before ``until``, then restores and calls the handler it stands for."""

    def __init__(self, handler: Any, until: float) -> None:
        self.handler = handler
        self._until = until

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= self._until:
            signal.signal(number, self.handler)
            signal.raise_signal(number)
