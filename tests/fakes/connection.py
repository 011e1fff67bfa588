"""A connection with a recording delegate, and the nsqd at its other end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nsq.config import Config
from nsq.connection.conn import Conn, ConnDelegate, Encoder
from nsq.connection.subscription import Subscription
from nsq.errors import NsqError, ServerError
from nsq.message import Message
from nsq.threads.waiters import join_threads
from nsq.transport import MemoryTransport
from tests.fakes.nsqd import CHANNEL, TOPIC, A, Nsqd, accept
from tests.fakes.threads import PATIENCE


class Delegate(ConnDelegate):
    """Records its calls, and lets a test wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.messages: list[Message] = []
        self.notes: list[tuple[Any, ...]] = []
        self.causes: list[NsqError | None] = []
        self.on_answer: Callable[[Conn], None] = lambda _: None
        """Called first when a message is finished or requeued."""
        self.on_end: Callable[[Conn], None] = lambda _: None
        """Called first when the connection has ended."""

    def _note(self, *note: Any) -> None:
        with self._changed:
            self.notes.append(note)
            self._changed.notify_all()

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        with self._changed:
            self.messages += messages
            self._changed.notify_all()

    def on_ok(self, conn: Conn, count: int) -> None:
        self._note("ok", count)

    def on_response(self, conn: Conn, data: bytes) -> None:
        self._note("response", data)

    def on_error(self, conn: Conn, error: ServerError) -> None:
        self._note("error", type(error))

    def on_heartbeat(self, conn: Conn) -> None:
        self._note("heartbeat")

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        self.on_end(conn)
        with self._changed:
            self.causes.append(cause)
            self._changed.notify_all()

    def on_finished(self, conn: Conn, message: Message, success: bool) -> bool:
        self.on_answer(conn)
        self._note("finished", message)
        return False

    def on_requeued(self, conn: Conn, message: Message, delay_ms: int, backoff: bool) -> bool:
        self.on_answer(conn)
        self._note("requeued", message, backoff)
        return False

    def on_timed_out(self, conn: Conn, message: Message) -> None:
        self._note("timed out", message)

    def requeue_delay(self, attempts: int) -> float:
        return attempts * 1.5

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), (self.notes, self.messages, self.causes)

    def wait_for_messages(self, count: int) -> list[Message]:
        self.wait_for(lambda: len(self.messages) >= count)
        return self.messages

    def wait_for_note(self, *note: Any) -> None:
        self.wait_for(lambda: note in self.notes)

    def wait_for_close(self) -> NsqError | None:
        self.wait_for(lambda: self.causes)
        return self.causes[0]


def run_loops(conn: Conn) -> list[threading.Thread]:
    """Start the loops, as an endpoint does."""
    threads = [
        threading.Thread(target=conn.write_loop, name=f"test-write-{conn.address}", daemon=True),
        threading.Thread(target=conn.read_loop, name=f"test-read-{conn.address}", daemon=True),
    ]
    for thread in threads:
        thread.start()
    return threads


class Pair:
    """A connection and its nsqd. ``inner`` is the memory transport that ``transport`` wraps, if any."""

    def __init__(
        self,
        transport: Any = None,
        inner: MemoryTransport | None = None,
        *,
        encode: Encoder | None = None,
        **options: Any,
    ) -> None:
        self.transport = transport or MemoryTransport()
        self.delegate = Delegate()
        self.conn = Conn(
            A,
            Config(**{"write_timeout": 3 * PATIENCE, **options}),
            self.delegate,
            transport=self.transport,
            subscription=Subscription(TOPIC, CHANNEL),
            encode=encode,
        )
        self.threads: list[threading.Thread] = []
        self._memory = inner or self.transport

    def connect(self, **granted: Any) -> Nsqd:
        """Connect and start the loops."""
        nsqd = self.shake_hands(**granted)
        self.start()
        return nsqd

    def start(self) -> None:
        """Start the loops."""
        self.threads = run_loops(self.conn)

    def join(self) -> None:
        """Wait for the loops to end."""
        assert not join_threads(self.threads, time.monotonic() + PATIENCE)

    def shake_hands(self, **granted: Any) -> Nsqd:
        """Connect; the loops do not run yet."""
        with self.connecting():
            return accept(self._memory, **granted)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Connect on a thread of its own, while the block plays the nsqd."""
        thread = threading.Thread(target=self.conn.connect, args=(time.monotonic() + PATIENCE,))
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE)

    def end(self) -> None:
        if self.conn.connected_at:
            self.conn.close()
            self.join()
