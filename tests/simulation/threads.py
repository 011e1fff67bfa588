"""What the package gets in place of ``_thread``, ``threading``, ``queue``, ``time``, ``random`` and
``concurrent.futures``: the same names, over the scheduler.
"""

from __future__ import annotations

import _thread as real_thread
import concurrent.futures
import queue as real_queue
import random as real_random
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NoReturn

from tests.simulation.scheduler import EPOCH, Waiters, scheduler
from tests.simulation.scheduler import Thread as Runner


class StandIn(ModuleType):
    """A module with some names replaced, and all others as in the real one."""

    def __init__(self, real: ModuleType, **replaced: object) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(replaced)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


# _thread


class Lock:
    """A raw lock. The first thread to come gets it when it is free, as with a real one."""

    __slots__ = ("_held", "_waiters")

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


def get_ident() -> int:
    return scheduler.me().number


def start_new_thread(function: Callable[..., object], args: tuple[Any, ...] = (), kwargs: Any = None) -> int:
    me = scheduler.me()
    return scheduler.start(lambda: function(*args, **(kwargs or {})), "bare", me.process).number


# threading


class Thread:
    def __init__(
        self,
        target: Callable[..., object] | None = None,
        name: str = "thread",
        args: Iterable[Any] = (),
        daemon: bool = False,
    ) -> None:
        self._target, self._args = target, args
        self.name, self.daemon = name, daemon
        self._runner: Runner | None = None

    def start(self) -> None:
        if self._runner is not None:
            raise RuntimeError("threads can only be started once")
        self._runner = scheduler.start(self.run, self.name, scheduler.me().process)
        self._runner.face = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args)

    @property
    def ident(self) -> int | None:
        return None if self._runner is None else self._runner.number

    def is_alive(self) -> bool:
        return self._runner is not None and self._runner.alive

    def join(self, timeout: float | None = None) -> None:
        runner = self._runner
        if runner is None:
            raise RuntimeError("cannot join thread before it is started")
        scheduler.wait_until(lambda: not runner.alive, timeout, runner.joiners)


class _Main(Thread):
    """A program's main thread, after the simulation's own has returned: it lives as long as the process."""

    def is_alive(self) -> bool:
        return True


def current_thread() -> Thread:
    return _face(scheduler.me())


def main_thread() -> Thread:
    return _face(scheduler.me().process.threads[0])


def _face(runner: Runner) -> Thread:
    if runner.face is None:
        kind = _Main if runner is runner.process.threads[0] else Thread
        runner.face = kind(name=runner.name)
        runner.face._runner = runner
    return runner.face  # type: ignore[no-any-return]


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return scheduler.wait_until(self.is_set, timeout, self._waiters)


# queue


class SimpleQueue:
    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and not (
            block and scheduler.wait_until(lambda: self._items, timeout, self._waiters)
        ):
            raise real_queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


# concurrent.futures


class ThreadPoolExecutor(concurrent.futures.Executor):
    """As the real one; its futures are waited for only through callbacks and through ``map``."""

    def __init__(self, max_workers: int, thread_name_prefix: str) -> None:
        self._most, self._prefix = max_workers, thread_name_prefix
        self._work = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._work.put((future, function, args, kwargs))
        if len(self._threads) < self._most:
            self._threads.append(Thread(self._run, f"{self._prefix}_{len(self._threads)}"))
            self._threads[-1].start()
        return future

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function, args, kwargs = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def map(self, function: Callable[..., Any], *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
        futures = [self.submit(function, *args) for args in zip(*iterables, strict=False)]
        done = SimpleQueue()
        for future in futures:
            future.add_done_callback(done.put)
        for _ in futures:
            done.get()
        return iter([future.result() for future in futures])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()


# time and random


def monotonic() -> float:
    return scheduler.now


def wall() -> float:
    current = scheduler.current
    return EPOCH + scheduler.now + (current.process.clock_error if current else 0.0)


def sleep(seconds: float) -> None:
    scheduler.wait_until(lambda: False, seconds)


chance = real_random.Random(0)
"""What the package draws from; ``begin`` seeds it."""


def _not_simulated(*_: object) -> NoReturn:
    raise NotImplementedError("not simulated; the real one would block all threads of the run")


def modules() -> dict[str, ModuleType]:
    """Return the stand-ins by the name under which the package imports them."""
    drawing = {name: getattr(chance, name) for name in real_random.__all__ if hasattr(chance, name)}
    return {
        "_thread": StandIn(
            real_thread,
            allocate_lock=Lock,
            LockType=Lock,
            get_ident=get_ident,
            start_new_thread=start_new_thread,
        ),
        "threading": StandIn(
            real_threading,
            Lock=Lock,
            RLock=_not_simulated,
            Condition=_not_simulated,
            Event=Event,
            Thread=Thread,
            current_thread=current_thread,
            main_thread=main_thread,
            get_ident=get_ident,
        ),
        "queue": StandIn(real_queue, SimpleQueue=SimpleQueue),
        "concurrent.futures": StandIn(concurrent.futures, ThreadPoolExecutor=ThreadPoolExecutor),
        "time": StandIn(
            real_time,
            monotonic=monotonic,
            monotonic_ns=lambda: int(monotonic() * 1e9),
            perf_counter=monotonic,
            time=wall,
            time_ns=lambda: int(wall() * 1e9),
            sleep=sleep,
        ),
        "random": StandIn(real_random, **drawing),
    }
