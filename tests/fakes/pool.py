"""A producer's pool without threads and sockets, whose steps the test calls."""

from __future__ import annotations

import queue
from collections import deque
from typing import Any

from nsq.config import Config
from nsq.connection.endpoint import LoopThreads, Status, Wanted
from nsq.errors import ConnectionLost
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.nsqds import Setup
from nsq.producer.pool import Pool
from nsq.producer.publishes import Publish
from nsq.producer.routing import NewOther
from nsq.transport import MemoryTransport
from tests.fakes.clock import Clock


class FakeConn:
    """An open connection whose loops do not run."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.closed = False
        self.closes: list[bool] = []
        """For each: whether it was requested for after writing."""

    @property
    def open(self) -> bool:
        return not self.closes and not self.closed

    def put(self, item: object) -> None:
        self.waiting.append(item)

    def close(self, *, after_writing: bool = False) -> None:
        self.closes.append(after_writing)


def connect(endpoint: PublishingEndpoint) -> None:
    conn: Any = FakeConn()
    endpoint.conn = conn
    endpoint.status = Status.CONNECTED
    pool: Any = endpoint._pool
    endpoint.loops = LoopThreads("nsq-producer", pool.owner, pool.nsqds.endpoints)


def write(endpoint: PublishingEndpoint) -> bytes:
    """Run its write loop once."""
    assert endpoint.conn is not None
    return endpoint._encode(endpoint.conn.waiting, endpoint.sent)


class StillPool(Pool):
    """A pool without running threads: the test calls their steps."""

    def __init__(self, new_other: NewOther | None = None) -> None:
        self.time = Clock()
        setup = Setup(Config(), transport=MemoryTransport(), clock=self.time, chance=lambda: 0.0)
        super().__init__(setup, new_other)
        self.owner.begun = True
        self.owner._once.acquire()
        self.endpoints = self.nsqds.endpoints
        self.endpoints.dial_due = bool  # type: ignore[method-assign]
        self.endpoints.start_threads = lambda: None  # type: ignore[method-assign]

    def add(self, address: str) -> None:
        """Add a connected endpoint without threads."""
        new = Wanted(address, given=True)
        self.nsqds._set_wanted({**self.nsqds._wanted, new.key: new})
        connect(self.endpoints.table[new.key])

    def do_jobs(self) -> None:
        """Carry out the pending requests, without the other steps of a turn."""
        while True:
            try:
                job = self.owner._requests.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job()

    def turn(self) -> None:
        """Run its thread's loop once, without sleeping."""
        self.do_jobs()
        self._assign()
        self._expire()
        if self.closed:
            self._close_when_done()


def conn_of(endpoint: PublishingEndpoint) -> FakeConn:
    conn: Any = endpoint.conn
    return conn  # type: ignore[no-any-return]


def lose(endpoint: PublishingEndpoint) -> None:
    """End its connection."""
    conn: Any = endpoint.conn
    conn.closed = True
    endpoint.on_close(conn, ConnectionLost(f"{endpoint.address} closed the connection"))
    endpoint.status = Status.WAITING
    endpoint._pool.nsqds.endpoints.note(endpoint, ended=True)


def bodies(items: Any) -> list[bytes]:
    """Return the bodies of the publishes among the items."""
    return [item.body for item in items if isinstance(item, Publish)]
