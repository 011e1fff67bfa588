"""Stands around an endpoint or a pool in tests without threads and sockets, and remembers what it is told."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import Any

from nsq.config import Config
from nsq.errors import NsqError
from nsq.producer.endpoint import Endpoint
from nsq.producer.pool import Pool
from nsq.producer.publishes import Publish
from nsq.transport import MemoryTransport

A, B, C = "nsqd-a:4150", "nsqd-b:4150", "nsqd-c:4150"


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeConn:
    """An open connection whose loops do not run."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.closed = False
        self.closes: list[bool] = []
        """Whether each was to come after writing."""
        self.abandoned = False
        self.on_put: Callable[[], object] = lambda: None
        """Called in the middle of each ``put``, when the item is in the queue."""

    @property
    def open(self) -> bool:
        return not self.closes and not self.closed

    def put(self, item: object) -> None:
        self.waiting.append(item)
        self.on_put()

    def close(self, *, after_writing: bool = False) -> None:
        self.closes.append(after_writing)

    def abandon(self) -> None:
        self.abandoned = True


class FakePool:
    """Stands for an endpoint's pool."""

    def __init__(self) -> None:
        self.transport: Any = MemoryTransport()
        self.context = None
        self.urgent = False
        self.looks = 0
        self.ends: list[tuple[Publish, NsqError | None]] = []
        """In the order of their ends."""
        self.back: list[Publish] = []
        """What was taken back, in the order of the calls."""
        self.on_settled: Callable[[], object] = lambda: None
        """Called before a caller could be told."""

    @property
    def errors(self) -> list[type[object]]:
        return [type(error) for _, error in self.ends]

    def settled(self, publishes: list[Publish], error: NsqError | None) -> None:
        self.on_settled()
        for publish in publishes:
            publish.end(error)
            self.ends.append((publish, error))

    def take_back(self, left: deque[Any]) -> None:
        while left:
            item = left.popleft()
            if isinstance(item, Publish):
                self.back.append(item)

    def look(self) -> None:
        self.looks += 1


def connect(endpoint: Endpoint) -> FakeConn:
    """Have it find itself connected."""
    conn: Any = FakeConn()
    endpoint.conn = endpoint._latest = conn
    endpoint.dialing = False
    return conn  # type: ignore[no-any-return]


def write(endpoint: Endpoint) -> bytes:
    """One turn of its write loop."""
    assert endpoint.conn is not None
    return endpoint._encode(endpoint.conn.waiting, endpoint._sent)


class StillPool(Pool):
    """Its threads do not run: the test calls what they would."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        on_acknowledged: Any = None,
        on_failed: Any = None,
        transport: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            (),
            (),
            Config(**options),
            transport or MemoryTransport(),
            None,
            on_acknowledged,
            on_failed,
            clock=clock or Clock(),
            chance=lambda: 1.0,
        )
        self._up = True
        self._boot.acquire()

    def add(self, address: str = A, *, connected: bool = True) -> Endpoint:
        """An endpoint without threads."""
        endpoint = self._started()
        endpoint.address = address
        self._endpoints += (endpoint,)
        if connected:
            connect(endpoint)
        return endpoint

    def _started(self) -> Endpoint:
        return Endpoint(self, self._config, self._clock, self._chance)

    def do_jobs(self) -> None:
        """What its thread was told to do, and nothing that follows from it."""
        while True:
            try:
                job = self._to_do.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job()

    def turn(self) -> None:
        """One turn of its thread, which does not sleep."""
        self.do_jobs()
        self._choose()
        self._expire()
        if self.closed:
            self._close_when_done()

    def run_callbacks(self) -> None:
        """As the callbacks' thread does."""
        while True:
            try:
                callback = self.callbacks._queue.get_nowait()
            except queue.Empty:
                return
            if callback is not None:
                callback()

    def make(self, *bodies: bytes, seconds: float = 10.0) -> list[Publish]:
        """Publish these, one after the other."""
        made = [Publish("orders", body) for body in bodies]
        for publish in made:
            self.publish(publish, seconds)
        return made


def ready(topic: str, command: bytes, messages: int = 1) -> Publish:
    """A publish with a command of its own."""
    made = Publish(topic, b"")
    made.command, made.messages, made.size = command, messages, len(command)
    return made


def conn_of(endpoint: Endpoint) -> FakeConn:
    conn: Any = endpoint.conn
    return conn  # type: ignore[no-any-return]


def bodies(items: Any) -> list[bytes]:
    """Of the publishes among them."""
    return [item.body for item in items if isinstance(item, Publish)]
