"""How a user's thread waits for one of ours, and how it starts one.

An exception out of a signal handler (Ctrl-C, a soft time limit) can hit the main thread at any bytecode.
Inside a Condition, an Event or a Semaphore it leaks a lock, and the next thread to take that lock blocks for
ever. Here every waiter brings a raw lock of its own, so that an interrupted wait harms no other thread.
Imports nothing of the package but errors.
"""

from __future__ import annotations

import _thread
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from nsq.errors import ConfigError

#: Seconds; threads cannot be asked to wait for longer at once.
_LONGEST = 3600.0


class Released(Protocol):
    """A raw lock, or anything else to be told when the waiters are woken."""

    def release(self) -> None: ...


class Waiters:
    """Threads that wait until a condition holds. After making the condition true, call ``wake``.

    Nothing is lost between the two: the waiter leaves its lock, then looks at the condition; the other side
    changes the condition, then looks at the locks. Both look under the list's own lock (the GIL, or the lock
    that a free-threaded Python has for each list), so one of the two sees the other.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: list[Released] = []

    def wait_for(self, condition: Callable[[], object], deadline: float = math.inf) -> bool:
        """Return whether the condition holds, by ``deadline`` (monotonic) at the latest."""
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            lock = _thread.allocate_lock()
            lock.acquire()
            self._locks.append(lock)
            try:
                if not condition():
                    lock.acquire(True, min(left, _LONGEST))
            finally:
                with suppress(ValueError):
                    self._locks.remove(lock)
        return True

    def wake(self) -> None:
        """Have every waiter look at its condition again. Any thread may call it, a signal handler too."""
        for lock in self._locks.copy():
            try:
                lock.release()
            except RuntimeError:  # released before; its waiter is about to take it out, or was interrupted
                with suppress(ValueError):
                    self._locks.remove(lock)


class Signal(Waiters):
    """An Event that an interrupted thread cannot break."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        super().__init__()
        self._set: list[None] = []

    def set(self) -> None:
        self._set.append(None)
        self.wake()

    def clear(self) -> None:
        self._set.clear()

    def is_set(self) -> bool:
        return len(self._set) > 0

    def wait(self, timeout: float | None = None) -> bool:
        return self.wait_for(self.is_set, math.inf if timeout is None else time.monotonic() + timeout)


def refuse_eventlet() -> None:
    """ConfigError when eventlet has replaced the threads: its locks know no deadlines that hold."""
    if "eventlet" not in sys.modules:
        return
    from eventlet import patcher  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if patcher.is_monkey_patched("thread") or patcher.is_monkey_patched("socket"):
        raise ConfigError(
            "eventlet.monkey_patch() has replaced threads or sockets, and nsq does not work with that: "
            "use plain threads or gevent"
        )


def start_thread(target: Callable[[], None], name: str, failed: Callable[[RuntimeError], None]) -> None:
    """Start a daemon thread from a user's thread; ``failed`` is called on another thread when there is none.

    Thread.start takes locks of the threading module: a signal handler that starts a thread while the code it
    interrupts does so too would wait for ever. So a bare thread calls it, and no thread of the user's does.
    RuntimeError when not even a bare thread can be had.
    """

    def start() -> None:
        try:
            threading.Thread(target=target, name=name, daemon=True).start()
        except RuntimeError as error:
            failed(error)

    _thread.start_new_thread(start, ())
