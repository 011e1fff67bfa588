"""What the package gets in place of ``_thread``, ``threading``, ``queue``, ``time``, ``random`` and
``concurrent.futures``: the same names, over the scheduler.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import math
import queue as real_queue
import random as real_random
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Self

from tests.simulation.scheduler import EPOCH, Thread as Runner, scheduler


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
    """A raw lock. Whoever comes first gets it when it is free, as with a real one."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Runner] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        deadline = math.inf if timeout < 0 else scheduler.now + timeout
        me = scheduler.me()
        while self._held:
            left = deadline - scheduler.now
            if left <= 0:
                return False
            self._waiting.append(me)
            try:
                scheduler.wait(left)
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            scheduler.wake(self._waiting.popleft())

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
    _numbers = itertools.count(1)

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.name = name or f"Thread-{next(self._numbers)}"
        self.daemon = bool(daemon)
        self._runner: Runner | None = None

    def start(self) -> None:
        if self._runner is not None:
            raise RuntimeError("threads can only be started once")
        self._runner = scheduler.start(self.run, self.name, scheduler.me().process)
        self._runner.face = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    @property
    def ident(self) -> int | None:
        return None if self._runner is None else self._runner.number

    native_id = ident

    def is_alive(self) -> bool:
        return self._runner is not None and self._runner.alive

    def join(self, timeout: float | None = None) -> None:
        runner = self._runner
        if runner is None:
            raise RuntimeError("cannot join thread before it is started")
        deadline = math.inf if timeout is None else scheduler.now + timeout
        while runner.alive and scheduler.now < deadline:
            runner.joiners.append(scheduler.me())
            scheduler.wait(deadline - scheduler.now)

    def __repr__(self) -> str:
        return f"<Thread {self.name}>"


def current_thread() -> Thread:
    me = scheduler.me()
    if me.face is None:
        me.face = face = Thread(name=me.name)
        face._runner = me
    return me.face  # type: ignore[no-any-return]


class _Main(Thread):
    """A program's main thread, after the simulation's own has returned: it lives as long as the process."""

    def is_alive(self) -> bool:
        return True


def main_thread() -> Thread:
    first = scheduler.me().process.threads[0]
    if first.face is None:
        first.face = face = _Main(name=first.name)
        face._runner = first
    return first.face  # type: ignore[no-any-return]


def enumerate_threads() -> list[Thread]:
    return [runner.face for runner in scheduler.me().process.threads if runner.alive and runner.face]


class Condition:
    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or RLock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: deque[Runner] = deque()

    def __enter__(self) -> bool:
        return bool(self._lock.__enter__())

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)

    def wait(self, timeout: float | None = None) -> bool:
        me = scheduler.me()
        self._waiting.append(me)
        self._lock.release()
        deadline = math.inf if timeout is None else scheduler.now + timeout
        try:
            while me in self._waiting and scheduler.now < deadline:
                scheduler.wait(deadline - scheduler.now)
            return me not in self._waiting
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = math.inf if timeout is None else scheduler.now + timeout
        while not (result := predicate()) and scheduler.now < deadline:
            self.wait(deadline - scheduler.now)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            scheduler.wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class RLock:
    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner == get_ident() or self._lock.acquire(blocking, timeout):
            self._owner = get_ident()
            self._depth += 1
            return True
        return False

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Runner] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for runner in waiting:
            scheduler.wake(runner)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        deadline = math.inf if timeout is None else scheduler.now + timeout
        while not self._set and scheduler.now < deadline:
            self._waiting.append(scheduler.me())
            scheduler.wait(deadline - scheduler.now)
        return self._set


# queue


class SimpleQueue:
    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[Runner] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        if self._waiting:
            scheduler.wake(self._waiting.popleft())

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            deadline = math.inf if timeout is None else scheduler.now + timeout
            me = scheduler.me()
            while not self._items and scheduler.now < deadline:
                self._waiting.append(me)
                try:
                    scheduler.wait(deadline - scheduler.now)
                finally:
                    if me in self._waiting:
                        self._waiting.remove(me)
        if not self._items:
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

    def __init__(self, max_workers: int = 4, thread_name_prefix: str = "pool", **_: object) -> None:
        self._most, self._prefix = max_workers, thread_name_prefix
        self._work: SimpleQueue = SimpleQueue()
        self._threads: list[Thread] = []
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._work.put((future, function, args, kwargs))
        if len(self._threads) < self._most:
            name = f"{self._prefix}_{len(self._threads)}"
            self._threads.append(Thread(target=self._run, name=name, daemon=True))
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
        done = Event()
        left = [len(futures)]

        def one_done(_future: object) -> None:
            left[0] -= 1
            if not left[0]:
                done.set()

        for future in futures:
            future.add_done_callback(one_done)
        if futures:
            done.wait()
        return iter([future.result() for future in futures])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


# time and random


def monotonic() -> float:
    return scheduler.now


def wall() -> float:
    current = scheduler.current
    return EPOCH + scheduler.now + (current.process.clock_error if current else 0.0)


def sleep(seconds: float) -> None:
    deadline = scheduler.now + seconds
    while scheduler.now < deadline:
        scheduler.wait(deadline - scheduler.now)


chance = real_random.Random(0)
"""What the package draws from; ``begin`` seeds it."""


def modules() -> dict[str, ModuleType]:
    """Return the stand-ins by the name under which the package imports them."""
    import _thread

    names = ("random", "uniform", "shuffle", "randrange", "randint", "getrandbits", "choice", "sample")
    return {
        "_thread": StandIn(
            _thread, allocate_lock=Lock, LockType=Lock, get_ident=get_ident, start_new_thread=start_new_thread
        ),
        "threading": StandIn(
            real_threading,
            Lock=Lock,
            RLock=RLock,
            Condition=Condition,
            Event=Event,
            Thread=Thread,
            current_thread=current_thread,
            main_thread=main_thread,
            enumerate=enumerate_threads,
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
        "random": StandIn(real_random, **{name: getattr(chance, name) for name in names}),
    }
