"""Producers that publish to nsqds in memory, and waiting for what their threads do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from nsq.producer.producer import Producer
from nsq.producer.reports import ConnectionStats
from nsq.transport import MemoryTransport
from tests.fakes.nsqd import A, PublishedTo, accept_publisher
from tests.fakes.threads import PATIENCE, in_thread


def producer(transport: MemoryTransport, *addresses: str, **options: Any) -> Producer:
    """One that dials again at once, is patient with a slow test, and sends every publish by itself."""
    mine = {
        "reconnect_initial": 0.001,
        "reconnect_max": 0.01,
        "publish_timeout": PATIENCE,
        "coalesce": False,
        "publish_connections": 0,
    }
    patient = {"dial_timeout": 3 * PATIENCE, "write_timeout": 3 * PATIENCE}
    return Producer(*(addresses or (A,)), transport=transport, **{**mine, **patient, **options})


def accept_all(transport: MemoryTransport, count: int) -> dict[str, PublishedTo]:
    """The next so many connections, by address."""
    nsqds = [accept_publisher(transport) for _ in range(count)]
    return {nsqd.address: nsqd for nsqd in nsqds}


def who_got(body: bytes, nsqds: dict[str, PublishedTo]) -> PublishedTo:
    """Whichever of them was sent this last."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for nsqd in nsqds.values():
            with contextlib.suppress(AssertionError):
                nsqd.peer.wait_until(lambda got: got.endswith(body), timeout=0.01)
                return nsqd
    raise AssertionError(f"none of {', '.join(nsqds)} got {body!r}")


def wait_for(p: Producer, condition: Callable[[dict[str, ConnectionStats]], bool]) -> None:
    """Until its connections, by address, are like that, as far as its threads have noticed."""
    deadline = time.monotonic() + PATIENCE
    while not condition(connections := {each.address: each for each in p.stats().connections}):
        assert time.monotonic() < deadline, connections
        on_pools_thread(p)


def wait_for_state(p: Producer, state: str, *addresses: str) -> None:
    wait_for(p, lambda connections: all(connections[each].state == state for each in addresses))
    on_pools_thread(p)


def on_pools_thread(p: Producer) -> None:
    """Return when the pool's thread has done all that it was told to before, and what follows from it."""
    assert p._pool.owner.changed.wait_for(lambda: p._pool.owner.begun, time.monotonic() + PATIENCE)
    for _ in range(2):
        reached = threading.Event()
        p._pool.owner.ask(reached.set)
        assert reached.wait(PATIENCE)


def time_is_up(p: Producer) -> None:
    """For all that has been published, which is something."""
    deadline = time.monotonic() + PATIENCE
    while not p._pool.pending:
        assert time.monotonic() < deadline
        on_pools_thread(p)
    for publish in p._pool.pending.copy():
        publish.deadline = 0.0
        publish.wake()
    p._pool.owner.ask(p._pool.look_at_deadlines)


def publishing(p: Producer, body: bytes = b"body", **options: Any) -> Future[object]:
    """Have a thread publish this."""
    return in_thread(partial(p.publish, "orders", body, **options))


def connected(p: Producer, transport: MemoryTransport) -> PublishedTo:
    first = publishing(p, b"first")
    nsqd = accept_publisher(transport)
    nsqd.answer(b"first")
    first.result(PATIENCE)
    return nsqd
