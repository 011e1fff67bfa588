"""``PublishFuture``: the result of ``publish_async``, which looks like a ``concurrent.futures.Future``.

It is one, so that ``asyncio.wrap_future``, ``concurrent.futures.wait`` and ``as_completed`` take it. But it
has none of that class's insides: its Condition leaks a lock when a signal handler raises inside it (Ctrl-C, a
soft time limit), and the thread of ours that ends the future would then wait for ever. So all public methods
are our own. ``wait`` and ``as_completed`` use private attributes: these have stand-ins without locks.
"""

from __future__ import annotations

import _thread
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nsq.errors import NsqError, UsageError
from nsq.log import Logger
from nsq.producer.publishes import Publish
from nsq.threads.waiters import Callbacks, SafeEvent, event_loop
from nsq.wire.frames import Published

log = Logger("nsq.producer")


class PublishFuture(Publish, Future[Published]):
    """The result of ``publish_async``: a concurrent.futures.Future without its Condition.

    A signal handler that raises inside a Condition leaks its lock. Here a waiting thread brings its own lock,
    and a callback stands among these locks: its ``release`` hands it to the thread that runs callbacks.
    """

    __slots__ = ("callbacks",)

    callbacks: Callbacks
    """Runs the callbacks. Set before the publish is sent."""

    __repr__ = Publish.__repr__

    def cancel(self) -> bool:
        """Return False: a publish cannot be cancelled. It ends at its timeout at the latest."""
        return False

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return not self.done()

    done = Publish.done

    def result(self, timeout: float | None = None) -> Published:
        """Wait for the end; return what nsqd answered, or raise the error."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.published

    def exception(self, timeout: float | None = None) -> NsqError | None:
        """Wait for the end; return the error, or None. Raises TimeoutError after ``timeout`` seconds."""
        if not self.done():
            self._refuse_in_callback()
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            if not self.wait_for(self.done, deadline):
                reason = "before the interpreter" if timeout is None else f"within {timeout:g} s"
                raise TimeoutError(f"{self!r} has not ended {reason}")
        return self.ends[0]

    def _refuse_in_callback(self) -> None:
        if self.callbacks.owns_current_thread():
            raise UsageError(
                "a future's callback waits for another future of the same producer, which holds up all other "
                "callbacks: add a callback to that one instead, or wait on another thread"
            )

    def __await__(self) -> Generator[Any, None, Published]:
        """Wait in a coroutine, as in ``await producer.publish_async(…)``."""
        if event_loop() is None:
            raise UsageError("a future was awaited where no asyncio event loop runs: use its result() there")
        waiter: Awaitable[Published] = sys.modules["asyncio"].wrap_future(self)
        return waiter.__await__()

    def add_done_callback(self, fn: Callable[[Future[Published]], object]) -> None:
        """Call ``fn`` with the future when it ends, on a thread of the producer; at once if it has ended."""
        callback = Callback(self, fn)
        self.locks.append(callback)
        if self.done():  # ``end`` may have missed the callback; only one of us runs it
            callback.run(Exception)

    def _get_snapshot(self) -> tuple[bool, bool, Published | None, NsqError | None]:
        """Return done, cancelled, result and exception, for the asyncio of newer Pythons."""
        return (True, False, self.published, self.error) if self.done() else (False, False, None, None)

    # Internals that concurrent.futures.wait and as_completed use.

    @property
    def _state(self) -> str:  # type: ignore[override]
        frozen = self._frozen.get(_thread.get_ident())
        return frozen or (FINISHED if self.done() else RUNNING)

    @property
    def _frozen(self) -> dict[int, str]:
        """By thread: the state it saw when it "locked" the future, kept until it "unlocks" it."""
        frozen: dict[int, str] = self.__dict__.setdefault("_states", {})
        return frozen

    @property
    def _condition(self) -> _ConditionShim:  # type: ignore[override]
        return _ConditionShim(self)

    @property
    def _waiters(self) -> _ConditionShim:  # type: ignore[override]
        return _ConditionShim(self)


class Callback:
    """A future's callback, stored with the waiters' locks; ``release`` queues it for the callback thread."""

    def __init__(self, future: PublishFuture, fn: Callable[[Future[Published]], object]) -> None:
        self.fn = fn
        self._future = future
        self._left = [None]  # popped by the thread that runs it

    def release(self) -> None:
        self._future.callbacks.put(self.run)

    def run(self, kept_here: type[BaseException] = BaseException) -> None:
        """Call ``fn`` once. On the callbacks' thread catch even SystemExit: that thread must go on."""
        try:
            self._left.pop()
        except IndexError:
            return
        try:
            self.fn(self._future)
        except kept_here:
            log.exception("a callback of %r failed", self._future)


class _Waiter(Protocol):
    """A waiter of concurrent.futures."""

    event: threading.Event | SafeEvent

    def add_result(self, future: Future[Published]) -> None: ...

    def add_exception(self, future: Future[Published]) -> None: ...


class _ConditionShim:
    """Stands in for a future's ``_condition`` and ``_waiters``. Takes no lock; a thread that "holds" it sees
    one state throughout.
    """

    def __init__(self, future: PublishFuture) -> None:
        self._future = future

    def acquire(self) -> None:
        future = self._future
        future._frozen[_thread.get_ident()] = FINISHED if future.done() else RUNNING

    def release(self, *_: object) -> None:
        self._future._frozen.pop(_thread.get_ident(), None)

    __enter__, __exit__ = acquire, release

    def append(self, waiter: _Waiter) -> None:
        if self._future._state == FINISHED:
            return
        self._future._refuse_in_callback()
        if not isinstance(waiter.event, SafeEvent):
            waiter.event = SafeEvent()  # interrupting a wait on an Event leaks its lock
        self._future.add_done_callback(_WaiterCallback(waiter))

    def remove(self, waiter: _Waiter) -> None:
        for each in self._future.locks.copy():
            if isinstance(each, Callback) and each.fn == _WaiterCallback(waiter):
                with suppress(ValueError):
                    self._future.locks.remove(each)


@dataclass(frozen=True)
class _WaiterCallback:
    """The callback that tells a waiter of concurrent.futures about the end."""

    waiter: _Waiter

    def __call__(self, future: Future[Published]) -> None:
        if future.exception() is None:
            self.waiter.add_result(future)
        else:
            self.waiter.add_exception(future)
