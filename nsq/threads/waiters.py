"""Connects a user's threads with ours: waits for our threads, starts and joins them, and runs the thread
that calls the user's functions.

An exception out of a signal handler (Ctrl-C, a soft time limit) can hit the main thread at any bytecode.
Inside a Condition, an Event or a Semaphore it leaks a lock, and the next thread to take that lock blocks for
ever. Here every waiter brings a raw lock of its own, so that an interrupted wait harms no other thread.
Imports nothing of the package but errors and log.
"""

from __future__ import annotations

import _thread
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Protocol

from nsq.errors import ConfigError
from nsq.log import Logger

_LONGEST = 3600.0  # seconds of the longest single wait: locks and queues refuse infinite timeouts
_MAX_EVENTS = 100_000  # the most events that may wait for a slow hook


class Waiter(Protocol):
    """A raw lock, or what stands for one."""

    def release(self) -> object:
        """Called by the thread that changed the condition. It may raise RuntimeError to be removed."""


class Waiters:
    """Threads that wait until a condition holds. After making the condition true, call ``wake``.

    No wakeup is lost: the waiter adds its lock to the list, then looks at the condition; the other thread
    changes the condition, then looks at the list. The list's own lock (the GIL, or in a free-threaded Python
    the lock of each list) guards both steps, so one of the two sees the other.
    """

    __slots__ = ("locks",)

    def __init__(self) -> None:
        self.locks: list[Waiter] = []

    def add(self, waiter: Waiter) -> None:
        """Have ``wake`` release a waiter, until it is removed. Look at the condition only then."""
        self.locks.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        with suppress(ValueError):
            self.locks.remove(waiter)

    def wait_for(self, condition: Callable[[], object], deadline: float = math.inf) -> bool:
        """Wait until the condition holds or ``deadline`` (monotonic) has passed; return whether it holds.
        Does not wait while the interpreter is finalizing: no thread that could make it true runs then.
        """
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0 or sys.is_finalizing():
                return False
            lock = _thread.allocate_lock()
            lock.acquire()
            self.locks.append(lock)
            try:
                if not condition():
                    lock.acquire(True, min(left, _LONGEST))
            finally:
                if lock in self.locks:  # else the thread that woke us has removed it
                    self.remove(lock)
        return True

    def wake(self) -> None:
        """Have every waiter look at its condition again. Any thread may call this, a signal handler too."""
        for lock in self.locks.copy():
            try:
                lock.release()
            except RuntimeError:  # released before; its waiter will remove it, or was interrupted
                self.remove(lock)


class SafeEvent(Waiters):
    """An Event that an interrupted wait cannot break."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        super().__init__()
        self._set: list[None] = []

    def set(self) -> None:
        if not self._set:
            self._set.append(None)
        self.wake()

    def clear(self) -> None:
        self._set.clear()

    def is_set(self) -> bool:
        return len(self._set) > 0

    def wait(self, timeout: float | None = None) -> bool:
        return self.wait_for(self.is_set, math.inf if timeout is None else time.monotonic() + timeout)


def refuse_eventlet() -> None:
    """Raise ConfigError if eventlet has replaced threads or sockets: its locks do not keep deadlines."""
    if "eventlet" not in sys.modules:
        return
    from eventlet import patcher  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if patcher.is_monkey_patched("thread") or patcher.is_monkey_patched("socket"):
        raise ConfigError(
            "eventlet.monkey_patch() has replaced threads or sockets, and nsq does not work with that: "
            "use plain threads or gevent"
        )


def event_loop() -> object | None:
    """Return the asyncio event loop that runs on this thread, or None. Does not import asyncio."""
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return None if running is None else running()


def in_main_interpreter() -> bool:
    """Whether this is the process's main interpreter, not one of several as under mod_wsgi."""
    is_main = getattr(_thread, "_is_main_interpreter", None)
    if is_main is not None:
        return bool(is_main())
    try:
        interpreters = import_module("_xxsubinterpreters")  # Python 3.11
    except ImportError:
        return True
    return bool(interpreters.get_current() == interpreters.get_main())


def start_thread(target: Callable[[], None], name: str, failed: Callable[[RuntimeError], None]) -> None:
    """Start a daemon thread from a user's thread; if that is impossible, call ``failed`` on some thread.

    Thread.start takes locks of the threading module: a signal handler that starts a thread while the
    interrupted code does so too would wait for ever. So a bare thread calls Thread.start, not the user's.
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


def join_threads(threads: Iterable[threading.Thread], deadline: float) -> list[str]:
    """Wait for threads; return the names of those that have not ended by ``deadline`` (monotonic). A thread
    that was never started counts as ended, and so does the calling one. Does not wait while the interpreter
    is finalizing, as no thread ends then.
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

    After the end of this thread, ``put`` calls callbacks on the calling thread.
    """

    def __init__(self, name: str, log: Logger) -> None:
        self._log = log
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._ended = False
        self._lost = 0
        self._name = name
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it was started before. Raises RuntimeError when that is impossible."""
        if self.thread is None or self.thread.ident is None:
            self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self.thread.start()

    def put(self, callback: Callable[[], object]) -> None:
        self._queue.put(callback)
        if self._ended:  # after ``put``: either the thread has seen the callback, or we do
            self._run_what_is_left()

    def tell(self, hook: Callable[..., object], *args: object) -> None:
        """Queue a hook like ``put``, but drop events when hooks are too slow, so that memory is bounded."""
        if self._queue.qsize() < _MAX_EVENTS:
            self.put(partial(hook, *args))
            return
        self._lost += 1
        if self._lost & (self._lost - 1) == 0:
            self._log.warning("the hooks are too slow: %d events were dropped so far", self._lost)

    def wait_until_run(self, deadline: float) -> bool:
        """Return whether all callbacks that are queued now have run by ``deadline``."""
        run = SafeEvent()
        self.put(run.set)
        return run.wait_for(run.is_set, deadline)

    def owns_current_thread(self) -> bool:
        return threading.current_thread() is self.thread

    def stop(self, deadline: float) -> list[str]:
        """End the thread after the queued callbacks; return its name if it still runs at ``deadline``."""
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
        except BaseException:  # SystemExit too: all other callbacks rely on the thread
            hook = getattr(callback, "func", callback)
            self._log.exception("the hook %s failed", getattr(hook, "__qualname__", hook))
