"""An exception from a signal handler affects only the call that it interrupts.

Once by tracing, at every line of ours that a user's thread comes to, and once by real signals at random
moments.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import nsq
from nsq.testing import Nsqd
from nsq.transport import Stream, WrappedStream, default_transport
from tests.fakes.interrupts import Signals, each_line, ignored_by_python

from .patience import eventually

BODY = b"x" * 200
PATIENCE = 20.0


@pytest.fixture
def nsqd(roomy_nsqd: Nsqd) -> Nsqd:
    return roomy_nsqd


class Watched(WrappedStream):
    """Notes which threads write, and its end."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.writers: set[str] = set()
        self.ended = False

    def write(self, data: bytes, timeout: float) -> None:
        self.writers.add(threading.current_thread().name)
        super().write(data, timeout)

    def close(self) -> None:
        self.ended = True
        super().close()


class Watching:
    """A transport that keeps its streams; the first is that of the connection which publishes share."""

    def __init__(self) -> None:
        self.streams: list[Watched] = []

    def connect(self, address: str, *, timeout: float) -> Watched:
        self.streams.append(Watched(default_transport.connect(address, timeout=timeout)))
        return self.streams[-1]


@contextmanager
def warm(nsqd: Nsqd, connections: int) -> Iterator[tuple[nsq.Producer, Watched]]:
    """A producer whose blocking publishes make round trips over so many connections, or share one, which is
    the second value.
    """
    transport, here = Watching(), threading.current_thread().name
    with nsq.Producer(nsqd.tcp_address, publish_connections=connections, transport=transport) as producer:
        producer.publish("interrupts", BODY)
        while connections and not any(here in each.writers for each in transport.streams):
            producer.publish("interrupts", BODY)
        yield producer, transport.streams[0]


Call = Callable[[nsq.Producer], Any]

CALLS: dict[str, Call] = {
    "publish": lambda p: p.publish("interrupts", BODY),
    "publish_async": lambda p: p.publish_async("interrupts", BODY),
    "result": lambda p: p.publish_async("interrupts", BODY).result(),
    "multi_publish": lambda p: p.multi_publish("interrupts", [BODY] * 3),
    "multi_publish_async": lambda p: p.multi_publish_async("interrupts", [BODY] * 3),
    "flush": lambda p: (p.publish_async("interrupts", BODY), p.flush()),
    "stats": lambda p: (p.stats(), p.health()),
}


def unharmed(producer: nsq.Producer, shared: Watched) -> None:
    """The connection goes on, nothing is lost or left over, and the next publish is quick."""
    started = time.monotonic()
    producer.publish("interrupts", BODY, timeout=PATIENCE)
    assert producer.flush(PATIENCE)
    assert time.monotonic() - started < PATIENCE / 4
    assert not shared.ended
    assert producer.stats().pending == 0
    eventually(lambda: "pending" not in repr(producer))  # not even what has ended takes room


def own_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("nsq-producer")}


# By tracing.


@pytest.mark.parametrize("connections", [0, 2], ids=["through the loops", "round trips"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_of_a_call_harms_no_later_one(
    nsqd: Nsqd, name: str, connections: int
) -> None:
    with warm(nsqd, connections) as (producer, shared):
        for line in each_line():
            with line:
                CALLS[name](producer)
            unharmed(producer, shared)


def test_an_interrupt_at_any_line_of_a_first_publish_harms_no_later_one(nsqd: Nsqd) -> None:
    for line in each_line():
        transport = Watching()
        with nsq.Producer(nsqd.tcp_address, transport=transport) as producer:
            with line:
                producer.publish("interrupts", BODY)
            producer.publish("interrupts", BODY)
            unharmed(producer, transport.streams[0])


def test_a_close_that_is_interrupted_at_any_line_can_be_called_again(nsqd: Nsqd) -> None:
    for line in each_line():
        producer = nsq.Producer(nsqd.tcp_address)
        future = producer.publish_async("interrupts", BODY)
        with line:
            producer.close()
        assert producer.close()
        assert future.exception(0) is None


# By signals.

COUNTS = [pytest.param(1_000, id="few"), pytest.param(20_000, id="many", marks=pytest.mark.chaos)]


@ignored_by_python
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("name", "connections"), [*((name, 0) for name in CALLS), ("publish", 2), ("multi_publish", 2)]
)
def test_real_signals_during_a_call_harm_no_later_one(
    nsqd: Nsqd, name: str, connections: int, count: int
) -> None:
    call = CALLS[name]
    with warm(nsqd, connections) as (producer, shared):
        threads = own_threads()
        started = time.monotonic()
        for _ in range(20):
            call(producer)
        with Signals((time.monotonic() - started) / 20) as signals:
            while signals.hits < count:
                signals.during(lambda: call(producer))
        unharmed(producer, shared)
        assert own_threads() == threads
        (each,) = producer.stats().connections
        assert (each.failed, each.pending) == (0, 0)
