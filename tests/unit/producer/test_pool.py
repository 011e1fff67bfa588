from __future__ import annotations

import pytest

from nsq.config import Config
from nsq.connection import Conn
from nsq.producer.line import Line
from nsq.producer.pool import Pool
from nsq.transport import MemoryTransport

from .scripted import A, accept, producer


def test_one_that_answers_in_the_moment_in_which_it_becomes_overdue_does_not_stay_so() -> None:
    seen: list[bool] = []

    class Answering(Line):
        """The answer comes between the two looks that others take at it."""

        @property
        def pending(self) -> int:
            seen.append(self.overdue)  # whoever reads the answer looks at this next
            return 0

    pool = Pool([A], Config(), MemoryTransport(), None, lambda settled: None, clock=lambda: 0.0)
    line = Answering(A, Config(), pool, lambda: 0.0)

    pool.suspect(line)

    assert seen == [True]
    assert not line.overdue


def test_nobody_publishes_over_a_connection_before_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else changes in that moment."""
    seen: list[tuple[bool, str]] = []
    start = Conn.start

    def start_late(conn: Conn) -> None:
        p._engine.pool.set_addresses([A])
        seen.append((p._engine.pool.connected, p.stats().connections[0].state))
        start(conn)

    monkeypatch.setattr(Conn, "start", start_late)
    transport = MemoryTransport()
    with producer(transport) as p:
        future = p.publish_async("orders", b"body")
        accept(transport).answer(b"body")
        future.result(20.0)

    assert seen == [(False, "dialling")]
