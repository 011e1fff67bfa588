"""What the package gets in place of ``_thread``, ``threading``, ``queue``, ``time``, ``random`` and
``concurrent.futures``: the same names, over the scheduler.
"""

from __future__ import annotations

import _thread as real_thread
import concurrent.futures
import queue as real_queue
import random
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulation.scheduler import EPOCH, Thread, Waiters, scheduler


def stand_in(real: Any, **replaced: object) -> SimpleNamespace:
    """Return a module with some names replaced, and all others as in the real one."""
    return SimpleNamespace(**{**vars(real), **replaced})


class Lock:
    """A raw lock. The first thread to come gets it when it is free, as with a real one."""

    def __init__(self) -> None:
        self._held = False
        self._waiters = Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held:
            limit = None if timeout < 0 else timeout
            if not blocking or not scheduler.wait_until(lambda: not self._held, limit, self._waiters):
                return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        self._waiters.wake(1)

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def wait(self, timeout: float | None = None) -> bool:
        return scheduler.wait_until(self.is_set, timeout, self._waiters)


class SimpleQueue:
    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not (self._items or (block and scheduler.wait_until(self.qsize, timeout, self._waiters))):
            raise real_queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class ThreadPoolExecutor(concurrent.futures.Executor):
    """As the real one; its futures are waited for only through callbacks and through ``map``."""

    def __init__(self, max_workers: int, thread_name_prefix: str) -> None:
        self._most, self._prefix = max_workers, thread_name_prefix
        self._work = SimpleQueue()
        self._done = Waiters()
        self._threads: list[Thread] = []

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:  # type: ignore[override]
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._work.put((future, function, args))
        if len(self._threads) < self._most:
            self._threads.append(Thread(self._run, f"{self._prefix}_{len(self._threads)}"))
            self._threads[-1].start()
        return future

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function, args = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args))
                except BaseException as error:
                    future.set_exception(error)
            self._done.wake()

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> Any:  # type: ignore[override]
        futures = [self.submit(function, item) for item in items]
        scheduler.wait_until(lambda: all(future.done() for future in futures), None, self._done)
        return iter([future.result() for future in futures])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def wall() -> float:
    current = scheduler.current
    return EPOCH + scheduler.now + (current.process.host.clock_error if current else 0.0)


def sleep(seconds: float) -> None:
    scheduler.wait_until(lambda: False, seconds)


chance = random.Random(0)  # what the package draws from, in place of ``random``; ``World`` seeds it


def modules() -> dict[str, Any]:
    """Return the stand-ins by the name under which the package imports them."""

    def get_ident() -> int | None:
        return scheduler.me().ident

    def start_new_thread(function: Callable[..., object], args: tuple[Any, ...]) -> int | None:
        return scheduler.start(partial(function, *args), "bare", scheduler.me().process).ident

    return {
        "_thread": stand_in(
            real_thread, allocate_lock=Lock, get_ident=get_ident, start_new_thread=start_new_thread
        ),
        "threading": stand_in(
            real_threading,
            Lock=Lock,
            RLock=None,  # not used; the real ones would block all threads of the run
            Condition=None,
            Event=Event,
            Thread=Thread,
            current_thread=scheduler.me,
            main_thread=lambda: scheduler.me().process.threads[0],
            get_ident=get_ident,
        ),
        "queue": stand_in(real_queue, SimpleQueue=SimpleQueue),
        "concurrent.futures": stand_in(concurrent.futures, ThreadPoolExecutor=ThreadPoolExecutor),
        "time": stand_in(
            real_time,
            monotonic=lambda: scheduler.now,
            perf_counter=lambda: scheduler.now,
            time=wall,
            time_ns=lambda: int(wall() * 1e9),
            sleep=sleep,
        ),
        "random": chance,
    }
