"""An exception from a signal handler affects only the call that it interrupts.

Once by tracing, at every line of ours that a user's thread comes to, and once by real signals at random
moments.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import nsq
from nsq.testing import Nsqd
from tests.fakes.lines import AtLine, Interrupted, each_line

BODY = b"x" * 200
PATIENCE = 20.0


@pytest.fixture
def nsqd(roomy_nsqd: Nsqd) -> Nsqd:
    return roomy_nsqd


def warm(nsqd: Nsqd, connections: int) -> nsq.Producer:
    """Return a producer whose blocking publishes make round trips over so many connections, or share one."""
    producer = nsq.Producer(nsqd.tcp_address, publish_connections=connections)
    producer.publish("interrupts", BODY)
    while connections and not own_conns(producer)._idle:
        producer.publish("interrupts", BODY)
    return producer


@pytest.fixture(params=[0, 2], ids=["through the loops", "round trips"])
def producer(request: pytest.FixtureRequest, nsqd: Nsqd) -> Iterator[nsq.Producer]:
    with warm(nsqd, request.param) as producer:
        yield producer


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


def unharmed(producer: nsq.Producer, conn: object) -> None:
    """The connection is the same one, nothing is lost or left over, and the next publish is quick."""
    started = time.monotonic()
    producer.publish("interrupts", BODY, timeout=PATIENCE)
    assert producer.flush(PATIENCE)
    assert time.monotonic() - started < PATIENCE / 4
    assert conn_of(producer) is conn
    assert producer.stats().pending == 0
    eventually(lambda: not producer._pool.pending)


def conn_of(producer: nsq.Producer) -> object:
    (endpoint,) = producer._pool.endpoints.all
    return endpoint.conn


def own_conns(producer: nsq.Producer) -> Any:
    (endpoint,) = producer._pool.endpoints.all
    return endpoint.own


def own_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("nsq-producer")}


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# By tracing.


@pytest.mark.parametrize("name", CALLS)
def test_at_every_line(producer: nsq.Producer, name: str) -> None:
    conn = conn_of(producer)
    for _ in each_line(lambda: CALLS[name](producer)):
        unharmed(producer, conn)


def test_at_every_line_of_a_first_publish(nsqd: Nsqd) -> None:
    interrupted = True
    number = 0
    while interrupted:
        number += 1
        with nsq.Producer(nsqd.tcp_address) as producer:
            try:
                with AtLine(number):
                    producer.publish("interrupts", BODY)
                interrupted = False
            except Interrupted:
                pass
            producer.publish("interrupts", BODY)
            unharmed(producer, conn_of(producer))


def test_at_every_line_of_a_close(nsqd: Nsqd) -> None:
    interrupted = True
    number = 0
    while interrupted:
        number += 1
        producer = nsq.Producer(nsqd.tcp_address)
        future = producer.publish_async("interrupts", BODY)
        try:
            with AtLine(number):
                producer.close()
            interrupted = False
        except Interrupted:
            pass
        assert producer.close()
        assert future.exception(0) is None


# By signals.

# An exception that comes up in a weak reference's callback, of the threading module for example, is ignored
# by Python: then the call comes through.
ignored_by_python = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Signals:
    """Sends this process a signal at a random moment of a call; its handler raises."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._inside = False
        self.hits = 0

    def __enter__(self) -> Signals:
        self._before = signal.signal(signal.SIGALRM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            self._inside = False
            self.hits += 1
            raise Interrupted

    def during(self, call: Callable[[], Any]) -> bool:
        """Interrupt a call, at a moment chosen so that about half of the calls succeed; return whether it
        did.
        """
        try:
            self._inside = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, self._longest))
            call()
            self._inside = False
        except Interrupted:
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return True


COUNTS = [pytest.param(1_000, id="few"), pytest.param(20_000, id="many", marks=pytest.mark.chaos)]


@ignored_by_python
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("name", "connections"), [*((name, 0) for name in CALLS), ("publish", 2), ("multi_publish", 2)]
)
def test_by_real_signals(nsqd: Nsqd, name: str, connections: int, count: int) -> None:
    call = CALLS[name]
    with warm(nsqd, connections) as producer:
        conn = conn_of(producer)
        threads = own_threads()
        started = time.monotonic()
        for _ in range(20):
            call(producer)
        with Signals((time.monotonic() - started) / 20) as signals:
            while signals.hits < count:
                signals.during(lambda: call(producer))
        unharmed(producer, conn)
        assert own_threads() == threads
        (each,) = producer.stats().connections
        assert (each.failed, each.pending) == (0, 0)


@ignored_by_python
@pytest.mark.parametrize(
    "count", [pytest.param(200, id="few"), pytest.param(20_000, id="many", marks=pytest.mark.chaos)]
)
def test_closing_by_real_signals(nsqd: Nsqd, count: int) -> None:
    with Signals(0.003) as signals:
        while signals.hits < count:
            producer = nsq.Producer(nsqd.tcp_address)
            future = producer.publish_async("interrupts", BODY)
            signals.during(producer.close)
            assert producer.close()
            assert future.exception(0) is None


@ignored_by_python
def test_what_was_acknowledged_is_stored(nsqd: Nsqd) -> None:
    """Whatever is interrupted beside it."""
    topic = "acknowledged"
    acknowledged = attempts = 0
    with nsq.Producer(nsqd.tcp_address) as producer, Signals(0.0004) as signals:
        producer.publish(topic, BODY)
        while signals.hits < 1_000:
            attempts += 1
            acknowledged += signals.during(lambda: producer.publish(topic, BODY))
    _, _, body = nsqd.get(f"/stats?format=json&topic={topic}")
    (stats,) = json.loads(body)["topics"]
    assert acknowledged + 1 <= stats["message_count"] <= attempts + 1
