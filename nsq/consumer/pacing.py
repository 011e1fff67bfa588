"""The flow at work: one lock around the pure ``Flow``, and orders carried out while it is held.

So the order of RDYs on every wire is the order of the decisions. Called by read loops, handlers and the
timer; lock order: flow, then a connection's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from nsq.connection.conn import Conn
from nsq.consumer.backoff import Outcome
from nsq.consumer.flow import Flow, Order


class Pacing:
    """Tells the flow what happens to the connections, and the connections what follows."""

    def __init__(self, flow: Flow, backing_off: Callable[[], None]) -> None:
        self._flow = flow
        self._backing_off = backing_off
        self._lock = threading.Lock()
        self._conns: dict[Hashable, Conn] = {}

    # What happens.

    def connected(self, conn: Conn) -> None:
        with self._lock:
            self._conns[conn] = conn
            self._obey(self._flow.connected(conn, conn.session.max_rdy, time.monotonic(), self._in_flight()))

    def closing(self, conn: Conn) -> None:
        with self._lock:
            self._obey(self._flow.closing(conn, time.monotonic(), self._in_flight()))

    def disconnected(self, conn: Conn) -> None:
        with self._lock:
            self._conns.pop(conn, None)
            self._obey(self._flow.disconnected(conn, time.monotonic(), self._in_flight()))

    def expect(self, connections: int) -> None:
        with self._lock:
            self._obey(self._flow.expect(connections, time.monotonic(), self._in_flight()))

    def received(self, conn: Conn, now: float) -> None:
        """Called for every chunk: without the lock, unless the message is news."""
        news = self._flow.is_idle(conn, now)
        self._flow.received(conn, now)
        if news:
            self.look_again()

    def outcome(self, outcome: Outcome) -> None:
        with self._lock:
            backoff = self._flow.backoff
            before = backoff.level, backoff.until
            self._obey(self._flow.outcome(outcome, time.monotonic(), self._in_flight()))
            moved = (backoff.level, backoff.until) != before
        if moved:
            self._backing_off()

    def look_again(self) -> None:
        with self._lock:
            self._obey(self._flow.decide(time.monotonic(), self._in_flight()))

    def tick(self) -> None:
        with self._lock:
            self._obey(self._flow.tick(time.monotonic(), self._in_flight()))

    # What the user says.

    def set_max_in_flight(self, max_in_flight: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._obey(self._flow.set_max_in_flight(max_in_flight, now, self._in_flight()))

    def pause(self, paused: bool) -> None:
        with self._lock:
            self._obey(self._flow.pause(paused, time.monotonic(), self._in_flight()))

    # What it is like.

    @property
    def max_in_flight(self) -> int:
        return self._flow.max_in_flight

    @property
    def paused(self) -> bool:
        return self._flow.paused

    @property
    def backoff_level(self) -> int:
        return self._flow.backoff.level

    @property
    def backoff_until(self) -> float | None:
        return self._flow.backoff.until

    def reason(self, conn: Conn) -> str:
        with self._lock:
            return self._flow.reason(conn)

    def abandon(self) -> None:
        """In a forked child: whoever held the lock at the fork does not exist here."""
        self._lock = threading.Lock()
        self._conns = {}

    def _in_flight(self) -> dict[Hashable, int]:
        return {key: conn.in_flight for key, conn in self._conns.items()}

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            conn = self._conns.get(order.key)
            if conn is not None:
                conn.send_rdy(order.rdy)
