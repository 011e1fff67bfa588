"""The future that ``publish_async`` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any

from nsq.errors import NsqError


class Confirmation(Future[None]):
    """As any other of concurrent.futures, at a fraction of the cost: a Condition, which most of that goes
    into, is made for the first who waits. Until then its lock stands in its place: those who only ask, or
    leave a callback, need no more.
    """

    _condition: Any
    _exception: BaseException | None = None
    _result = None

    def __init__(self) -> None:  # not the parent's, which makes the Condition
        self._condition = threading.RLock()
        self._state = RUNNING  # nothing that is sent can be called back
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[None]], object]] = []

    def result(self, timeout: float | None = None) -> None:
        if self._state != FINISHED or self._exception is not None:
            self._prepare_to_wait()
            super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._prepare_to_wait()
        return super().exception(timeout)

    def _prepare_to_wait(self) -> None:
        with self._condition:
            if not isinstance(self._condition, threading.Condition):
                self._condition = threading.Condition(self._condition)

    def complete(self, error: NsqError | None) -> None:
        """None once it is stored."""
        with self._condition:
            self._exception = error
            self._state = FINISHED
            for waiter in self._waiters:
                if error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            if isinstance(self._condition, threading.Condition):
                self._condition.notify_all()
        if self._done_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]
