"""Publishes under way: so many at once, each tried anew as often as it may be, none forgotten.

Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from nsq.errors import NsqError
from nsq.spark.sink.packing import Pack

log = logging.getLogger("nsq.spark")


class Publisher(Protocol):
    """What is needed of a Producer."""

    def publish_async(
        self, topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None
    ) -> Future[None]: ...

    def multi_publish_async(
        self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None
    ) -> Future[None]: ...


class _Attempt(NamedTuple):
    future: Future[None]
    send: Callable[[], Future[None]]
    messages: int
    size: int
    tries: int


class Pipeline:
    """``room`` counts messages, so that one which is deferred, and has to travel alone, takes the room of
    one. For a single thread.
    """

    def __init__(self, publisher: Publisher, *, room: int, retries: int, timeout: float) -> None:
        self.messages = 0
        """That nsqds have stored."""
        self.bytes = 0
        self._publisher = publisher
        self._room = room
        self._retries = retries
        self._timeout = timeout
        self._attempts: deque[_Attempt] = deque()
        self._inside = 0

    def publish(self, pack: Pack) -> None:
        self._enter(
            lambda: self._publisher.multi_publish_async(pack.topic, pack.bodies, timeout=self._timeout),
            len(pack.bodies),
            pack.size,
        )

    def defer(self, topic: str, body: bytes, delay: float) -> None:
        self._enter(
            lambda: self._publisher.publish_async(topic, body, defer=delay, timeout=self._timeout),
            1,
            len(body),
        )

    def drain(self) -> None:
        """Wait for all of them; raises for the first that came to nothing."""
        while self._attempts:
            self._settle(self._attempts.popleft())

    def _enter(self, send: Callable[[], Future[None]], messages: int, size: int) -> None:
        while self._attempts and self._inside + messages > self._room:
            self._settle(self._attempts.popleft())
        self._inside += messages
        self._attempts.append(_Attempt(send(), send, messages, size, 1))

    def _settle(self, attempt: _Attempt) -> None:
        """The oldest: wait for what becomes of it."""
        try:
            attempt.future.result()  # has a deadline of its own
        except NsqError as error:
            if not error.retry or attempt.tries > self._retries:
                raise
            log.warning("publishing %d messages again: %s", attempt.messages, error)
            self._attempts.append(attempt._replace(future=attempt.send(), tries=attempt.tries + 1))
            return
        self._inside -= attempt.messages
        self.messages += attempt.messages
        self.bytes += attempt.size
