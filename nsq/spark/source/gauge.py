"""Keeps an eye on what takes a while to find out, in a thread of its own: nobody who asks for it waits.

Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

log = logging.getLogger("nsq.spark.source")

T = TypeVar("T")

_JOIN = 5.0


class Reading(NamedTuple, Generic[T]):
    """``began`` is when the asking began: nothing that happened later need be in it."""

    value: T
    began: float


class BacklogGauge(Generic[T]):
    """Asks once per ``pause``, as long as there is somebody who looks; ``look`` gives the last answer.

    An answer that nobody wanted for a while is still there, and old.
    """

    def __init__(self, name: str, ask: Callable[[], T], pause: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._ask = ask
        self._pause = pause
        self._clock = clock
        self._wake = threading.Condition()
        self._wanted = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._last: Reading[T] | None = None

    def look(self) -> Reading[T] | None:
        """Returns at once, None before the first answer. The first call starts the thread."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> Reading[T] | None:
        """The same, but the first answer may take that long."""
        with self._wake:
            if self._thread is None and not self._ended:
                # A daemon: a server that does not answer must not keep a process alive whose query is over.
                self._thread = threading.Thread(target=self._run, name=f"nsq-spark-{self._name}", daemon=True)
                self._thread.start()
            self._wanted = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._last is not None or self._ended, seconds)
            return self._last

    def stop(self) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN)

    def _run(self) -> None:
        while self._next_turn():
            began = self._clock()
            try:
                value = self._ask()
            except Exception:
                log.exception("cannot find out about %s", self._name)
            else:
                with self._wake:
                    self._last = Reading(value, began)
                    self._wake.notify_all()
            with self._wake:
                self._wake.wait_for(lambda: self._ended, self._pause)

    def _next_turn(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._wanted or self._ended)
            self._wanted = False
            return not self._ended
