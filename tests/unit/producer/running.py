"""Producers that publish to nsqds in memory, and waiting for what their threads do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from nsq.producer.producer import Producer
from nsq.producer.reports import ConnectionStats
from nsq.transport import MemoryTransport
from tests.fakes.nsqd import A, PublishedTo, accept_publisher
from tests.fakes.threads import PATIENCE, in_thread

SOON = 1.0  # the timeout of a publish that is in its place long before


def producer(transport: Any, *addresses: str, **options: Any) -> Producer:
    """One that dials again at once, is patient with a slow test, and sends every publish by itself."""
    mine = {
        "reconnect_initial": 0.001,
        "reconnect_max": 0.01,
        "publish_timeout": PATIENCE,
        "coalesce": False,
        "publish_connections": 0,
        "dial_timeout": 3 * PATIENCE,
        "write_timeout": 3 * PATIENCE,
    }
    return Producer(*(addresses or (A,)), transport=transport, **{**mine, **options})


def publishing(p: Producer, body: bytes = b"body", **options: Any) -> Future[object]:
    """Have a thread publish this."""
    return in_thread(partial(p.publish, "orders", body, **options))


def connected(p: Producer, transport: MemoryTransport, **told: Any) -> PublishedTo:
    """Accept a connection; return it when it has stored a publish, and the next one goes straight to it."""
    first = publishing(p, b"first")
    nsqd = accept_publisher(transport, **told)
    nsqd.answer(b"first")
    first.result(PATIENCE)
    eventually(lambda: "connected to" in repr(p))
    return nsqd


def all_connected(p: Producer, transport: MemoryTransport, count: int) -> dict[str, PublishedTo]:
    """Accept so many connections; return them by address when the producer uses them."""
    nsqds = [accept_publisher(transport) for _ in range(count)]
    eventually(lambda: f"connected to {count}" in repr(p))
    return {nsqd.address: nsqd for nsqd in nsqds}


def who_got(body: bytes, *nsqds: PublishedTo) -> PublishedTo:
    """Return the one that was sent this last."""

    def found() -> PublishedTo | None:
        return next((nsqd for nsqd in nsqds if nsqd.peer.received.endswith(body)), None)

    nsqd = eventually(found)
    nsqd.expect(body)
    return nsqd


def eventually(condition: Callable[[], Any]) -> Any:
    """Return the first true result of ``condition``."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, result
        time.sleep(0)
    return result


def connections(p: Producer) -> dict[str, ConnectionStats]:
    return {each.address: each for each in p.stats().connections}


@contextlib.contextmanager
def waiting_together(p: Producer, nsqd: PublishedTo) -> Iterator[None]:
    """What is published inside waits behind half a command that nsqd has not taken in full."""
    nsqd.peer.stall(after=1)
    stuck = p.publish_async("orders", b"stuck")
    nsqd.peer.wait_until(lambda got: got.endswith(b"P"))
    yield
    nsqd.peer.resume()
    nsqd.answer(b"stuck")
    stuck.result(PATIENCE)
