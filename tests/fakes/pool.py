"""Fakes around an endpoint or a pool, without threads and sockets; they record their calls."""

from __future__ import annotations

import _thread
import queue
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from nsq.config import Config
from nsq.connection.endpoint import Status, Wanted
from nsq.errors import ConnectionLost, NsqError, ServerError, server_error
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.own import OwnConn
from nsq.producer.pool import Pool
from nsq.producer.publishes import Publish
from nsq.threads.waiters import Waiters
from nsq.transport import MemoryTransport
from tests.fakes.clock import Clock
from tests.fakes.nsqd import A

LOST = ConnectionLost(f"{A} closed the connection")
QUOTA = server_error(b"E_QUOTA later")  # an unknown code


class FakeConn:
    """An open connection whose loops do not run."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.closed = False
        self.closes: list[bool] = []
        """For each: whether it was requested for after writing."""
        self.abandoned = False
        self.on_put: Callable[[], object] = lambda: None
        """Called in each ``put``, after the item is in the queue."""

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
    """The fake pool of an endpoint."""

    def __init__(self) -> None:
        self.transport: Any = MemoryTransport()
        self.context = None
        self.name = "nsq-producer"
        self.wakes = 0
        self.ends: list[tuple[Publish, NsqError | None]] = []
        """Publishes and their errors, in the order of their ends."""
        self.back: list[Publish] = []
        """Publishes that were taken back, in the order of the calls."""
        self.on_settled: Callable[[], object] = lambda: None
        """Called before a caller gets its result."""

    @property
    def errors(self) -> list[type[object]]:
        return [type(error) for _, error in self.ends]

    def complete(self, publishes: list[Publish], error: NsqError | None) -> None:
        self.on_settled()
        for publish in publishes:
            publish.end(error)
            self.ends.append((publish, error))

    def take_back(self, *left: deque[Any]) -> None:
        for each in left:
            while each:
                item = each.popleft()
                if isinstance(item, Publish):
                    self.back.append(item)

    @property
    def owner(self) -> FakePool:
        return self

    @property
    def endpoints(self) -> FakePool:
        return self

    def lost(self, endpoint: PublishingEndpoint) -> None: ...

    def wake(self) -> None:
        self.wakes += 1

    def dispose(self, conn: OwnConn) -> None:
        conn.dispose()


def connect(endpoint: PublishingEndpoint) -> FakeConn:
    """Connect the endpoint."""
    conn: Any = FakeConn()
    endpoint.conn = conn
    endpoint.status, endpoint.permitted = Status.CONNECTED, True
    return conn  # type: ignore[no-any-return]


def write(endpoint: PublishingEndpoint) -> bytes:
    """Run its write loop once."""
    assert endpoint.conn is not None
    return endpoint._encode(endpoint.conn.waiting, endpoint._sent)


class StillPool(Pool):
    """A pool without running threads: the test calls their steps."""

    def __init__(
        self,
        *,
        on_acknowledged: Any = None,
        on_failed: Any = None,
        transport: Any = None,
        **options: Any,
    ) -> None:
        self.time = Clock()
        super().__init__(
            (),
            (),
            Config(**options),
            transport or MemoryTransport(),
            None,
            on_acknowledged,
            on_failed,
            clock=self.time,
            chance=lambda: 0.0,
        )
        self.owner.begun = True
        self.owner._once.acquire()
        self.endpoints.dial_due = list  # type: ignore[method-assign]

    def add(self, address: str = A, *, connected: bool = True) -> PublishingEndpoint:
        """An endpoint without threads."""
        wanted = {key: each.wanted for key, each in self.endpoints.table.items() if each.wanted is not None}
        new = Wanted(address, given=True)
        self.endpoints.want({**wanted, new.key: new})
        endpoint = self.endpoints.table[new.key]
        if connected:
            connect(endpoint)
        return endpoint

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
        self._choose()
        self._expire()
        if self.closed:
            self._close_when_done()

    def run_callbacks(self) -> None:
        """Run callbacks, as the callbacks' thread does."""
        self.callbacks._run_what_is_left()

    def make(self, *bodies: bytes, seconds: float = 10.0) -> list[Publish]:
        """Publish these messages, one after the other."""
        made = [Publish("orders", body) for body in bodies]
        for publish in made:
            self.publish(publish, seconds)
        return made


def nothing() -> None: ...


def interleaved(
    kind: type[Any],
    *methods: str,
    before: Iterable[Callable[[], object]] = (),
    behind: Iterable[Callable[[], object]] = (),
) -> Any:
    """Return an empty ``kind``, a set or a deque, that runs other threads' actions right before or after the
    first calls of these methods.
    """
    first, then = iter(before), iter(behind)

    def wrapped(method: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            next(first, nothing)()
            result = method(self, *args)
            next(then, nothing)()
            return result

        return call

    return type("Interleaved", (kind,), {each: wrapped(getattr(kind, each)) for each in methods})()


def at_claim(
    publish: Publish, *, before: Callable[[], object] = nothing, behind: Callable[[], object] = nothing
) -> None:
    """Run other threads' actions right before or after the first attempt to claim it."""
    lock = publish.claim

    class Claim:
        def acquire(self, blocking: bool) -> bool:
            publish.claim = lock  # the other threads see only the lock
            before()
            taken = lock.acquire(blocking)
            behind()
            return taken

    publish.claim = Claim()  # type: ignore[assignment]


def ready(topic: str, command: bytes, messages: int = 1) -> Publish:
    """Return a publish with its own command."""
    made = Publish(topic, b"")
    made.command, made.messages, made.size = command, messages, len(command)
    return made


def conn_of(endpoint: PublishingEndpoint) -> FakeConn:
    conn: Any = endpoint.conn
    return conn  # type: ignore[no-any-return]


def answer(endpoint: PublishingEndpoint, count: int = 1) -> None:
    conn: Any = endpoint.conn
    endpoint.on_ok(conn, count)


def refuse(endpoint: PublishingEndpoint, error: ServerError) -> None:
    conn: Any = endpoint.conn
    endpoint.on_error(conn, error)


def lose(endpoint: PublishingEndpoint, cause: NsqError | None = LOST) -> None:
    """End its connection."""
    conn: Any = endpoint.conn
    conn.closed = True
    endpoint.on_close(conn, cause)
    endpoint.status = Status.WAITING
    endpoint._client.endpoints.lost(endpoint)


def bodies(items: Any) -> list[bytes]:
    """Return the bodies of the publishes among the items."""
    return [item.body for item in items if isinstance(item, Publish)]


READ_TIMEOUT = 60.0


class Scene:
    """A connected endpoint with its surroundings. Joins publishes if ``coalesce``."""

    def __init__(self, *, coalesce: bool = False, **options: Any) -> None:
        self.clock = Clock()
        self.pool = FakePool()
        pool: Any = self.pool
        options = {"reconnect_initial": 4.0, "read_timeout": READ_TIMEOUT, "coalesce": coalesce, **options}
        self.endpoint = PublishingEndpoint(pool, Config(**options), self.clock, lambda: 0.0)
        self.endpoint.assign(Wanted(A, given=True))
        self.fake = connect(self.endpoint)
        self.conn: Any = self.fake

    def put(self, *bodies: bytes, topic: str = "orders") -> list[Publish]:
        made = [Publish(topic, body) for body in bodies]
        self.fake.waiting.extend(made)
        return made

    def write(self) -> bytes:
        return write(self.endpoint)

    def send(self, *bodies: bytes) -> list[Publish]:
        """Write these publishes together."""
        made = self.put(*bodies)
        self.write()
        return made

    def ok(self, count: int = 1) -> None:
        answer(self.endpoint, count)

    def refuse(self, error: ServerError) -> None:
        refuse(self.endpoint, error)

    def lose(self, cause: NsqError | None = LOST) -> None:
        lose(self.endpoint, cause)

    def reconnect(self) -> None:
        """Begin as ``_dial`` does, and open a connection."""
        self.pool.transport = MemoryTransport()
        self.pool.transport.refuse()
        self.endpoint._dial()
        self.fake = self.conn = connect(self.endpoint)

    def encode(self, waiting: deque[Any]) -> bytes:
        return self.endpoint._encode(waiting, self.endpoint._sent)

    @property
    def ended(self) -> list[Publish]:
        return [publish for publish, _ in self.pool.ends]

    @property
    def broken(self) -> bool:
        """Whether the endpoint has closed the connection."""
        return self.fake.closes == [False]


class Meanwhile(Waiters):
    """Replaces ``Pool._room``: runs an action while a thread waits for room."""

    def __init__(self, happens: Callable[[], object] = nothing) -> None:
        super().__init__()
        self.locks = [_thread.allocate_lock()]  # of a thread that waits
        self.wakes = 0
        self._happens = happens

    def wait_for(self, condition: Callable[[], object], deadline: float = 0.0) -> bool:
        self._happens()
        return bool(condition())

    def wake(self) -> None:
        self.wakes += 1


#: The place of a publish when it is given up or cancelled.
Stage = Callable[[StillPool], Publish]
#: How it ends.
End = Callable[[StillPool, Publish], object]


def waits_for_a_connection(pool: StillPool) -> Publish:
    pool.add(connected=False)
    return pool.make(b"body")[0]


def waits_to_be_written(pool: StillPool) -> Publish:
    pool.add()
    pool.turn()
    return pool.make(b"body")[0]


def is_sent(pool: StillPool) -> Publish:
    made = waits_to_be_written(pool)
    write(pool.endpoints.all[0])
    return made


def waits_to_be_sent_again(pool: StillPool) -> Publish:
    made = is_sent(pool)
    lose(pool.endpoints.all[0])
    pool.turn()
    return made


def is_stored(pool: StillPool) -> Publish:
    made = is_sent(pool)
    answer(pool.endpoints.all[0])
    return made
