"""Between a user's code and our threads: how a user's thread waits for one of ours, starts one and joins
one, and the thread that calls the user's functions.

An exception out of a signal handler (Ctrl-C, a soft time limit) can hit the main thread at any bytecode.
Inside a Condition, an Event or a Semaphore it leaks a lock, and the next thread to take that lock blocks for
ever. Here every waiter brings a raw lock of its own, so that an interrupted wait harms no other thread.
Imports nothing of the package but errors.
"""

from __future__ import annotations

import _thread
import logging
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from nsq.errors import ConfigError

#: Seconds; threads cannot be asked to wait for longer at once.
_LONGEST = 3600.0
#: Events that may wait for a slow hook.
_MAX_EVENTS = 100_000


class Waiters:
    """Threads that wait until a condition holds. After making the condition true, call ``wake``.

    Nothing is lost between the two: the waiter leaves its lock, then looks at the condition; the other side
    changes the condition, then looks at the locks. Both look under the list's own lock (the GIL, or the lock
    that a free-threaded Python has for each list), so one of the two sees the other.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: list[_thread.LockType] = []

    def wait_for(self, condition: Callable[[], object], deadline: float = math.inf) -> bool:
        """Return whether the condition holds, by ``deadline`` (monotonic) at the latest. At once while the
        interpreter is finalizing: no thread that could make it true runs any more.
        """
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0 or sys.is_finalizing():
                return False
            lock = _thread.allocate_lock()
            lock.acquire()
            self._locks.append(lock)
            try:
                if not condition():
                    lock.acquire(True, min(left, _LONGEST))
            finally:
                if lock in self._locks:  # else the thread that woke us has taken it out
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
    """Start a daemon thread from a user's thread; ``failed`` is called, on some thread, when there is none.

    Thread.start takes locks of the threading module: a signal handler that starts a thread while the code it
    interrupts does so too would wait for ever. So a bare thread calls it, and no thread of the user's does.
    """

    def start() -> None:
        try:
            threading.Thread(target=target, name=name, daemon=True).start()
        except RuntimeError as error:
            failed(error)

    if sys.is_finalizing():  # some Pythons start a thread even now, and it never runs
        failed(RuntimeError("the interpreter is finalizing"))
        return
    try:
        _thread.start_new_thread(start, ())
    except RuntimeError as error:
        failed(error)


def carry_out(
    requests: queue.SimpleQueue[Callable[[], object] | None], seconds: float, log: logging.Logger
) -> None:
    """Sleep until there is a request, for so long at most, then carry out all that there are, in order. None
    only wakes. What a request raises is logged.
    """
    with suppress(queue.Empty):
        request = requests.get(timeout=min(max(seconds, 0.0), _LONGEST))
        for left in range(requests.qsize(), -1, -1):
            try:
                if request is not None:
                    request()
            except BaseException:  # SystemExit too, of a user's backoff_strategy
                log.exception("a request failed, which is a bug of ours")
            if left:
                request = requests.get_nowait()


def join_threads(threads: Iterable[threading.Thread], deadline: float) -> list[str]:
    """Wait for these to end; return the names of those that have not by ``deadline`` (monotonic). One that
    was never started counts as ended, and so does the calling one. While the interpreter is finalizing, none
    ends any more, and there is no waiting.
    """
    current = threading.current_thread()
    started = [thread for thread in threads if thread.ident is not None and thread is not current]
    for thread in started:
        if not sys.is_finalizing():
            thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in started if thread.is_alive()]


class Callbacks:
    """The thread that calls users' hooks, and the callbacks of futures, one after the other, in the order of
    events. A slow one delays the others, never a message or an answer.

    What comes behind the end of the thread is called by the thread that it comes from.
    """

    def __init__(self, name: str, log: logging.Logger) -> None:
        self._log = log
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._ended = False
        self._lost = 0
        self._name = name
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Unless it has been started before. RuntimeError when no thread can be had."""
        if self.thread is None or self.thread.ident is None:
            self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self.thread.start()

    def put(self, callback: Callable[[], object]) -> None:
        self._queue.put(callback)
        if self._ended:  # the thread has seen what was put, or we do
            self._run_what_is_left()

    def tell(self, hook: Callable[..., object], *args: object) -> None:
        """Like ``put``, but drop events when the hooks are too slow: better no metrics than no memory."""
        if self._queue.qsize() < _MAX_EVENTS:
            self.put(partial(hook, *args))
            return
        self._lost += 1
        if self._lost & (self._lost - 1) == 0:
            self._log.warning("the hooks are too slow: %d events were dropped so far", self._lost)

    def wait_until_run(self, deadline: float) -> bool:
        """Whether all that is queued now has run by then."""
        run = Signal()
        self.put(run.set)
        return run.wait_for(run.is_set, deadline)

    def owns_current_thread(self) -> bool:
        return threading.current_thread() is self.thread

    def stop(self, deadline: float) -> list[str]:
        """End behind what is queued; the name of the thread if it has not ended by then. May be called
        again.
        """
        self._queue.put(None)
        return [] if self.thread is None else join_threads([self.thread], deadline)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None:
            self._call(callback)
        self._ended = True
        self._run_what_is_left()

    def _run_what_is_left(self) -> None:
        with suppress(queue.Empty):
            while True:
                callback = self._queue.get_nowait()
                if callback is not None:
                    self._call(callback)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except BaseException:  # SystemExit too: all others rely on the thread
            hook = getattr(callback, "func", callback)
            self._log.exception("the hook %s failed", getattr(hook, "__qualname__", hook))
