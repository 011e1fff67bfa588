"""Helpers for tests of the consumer: topics with messages, recording handlers, and nsqd's statistics.

The tests compare a consumer's reports with nsqd's. Every wait is for a condition and has a timeout. Timeouts
are long, because Go's nsqd notices timeouts in a new channel only after 5 seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from nsq.consumer.consumer import Consumer
from nsq.message import Message
from nsq.testing import Nsqd
from nsq.transport import Transport
from tests.fakes.memory_http import MemoryNsqdWithHttp

from .patience import nap

AnyNsqd = Nsqd | MemoryNsqdWithHttp
H = TypeVar("H", bound=logging.Handler)

TOPIC = "orders"
CHANNEL = "billing"
PATIENCE = 60.0


def until(what: str, condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Wait until the condition holds; return its value."""
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < began + timeout, f"{what}: not within {timeout:g} s"
        nap(began)
    return value


def create(nsqd: AnyNsqd, topic: str = TOPIC, channel: str = CHANNEL) -> None:
    """Create topic and channel, because a message published before goes only to the first channel."""
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200


def publish(nsqd: AnyNsqd, bodies: Iterable[bytes], topic: str = TOPIC) -> None:
    """Publish ``bodies``, which must not contain line breaks."""
    assert nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200


def numbered(count: int, prefix: str = "message") -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(count)]


def channel_of(nsqd: AnyNsqd, topic: str = TOPIC, channel: str = CHANNEL) -> dict[str, Any]:
    """Return nsqd's statistics of the channel; empty if it does not exist."""
    for stats in nsqd.get(f"/stats?format=json&topic={topic}&channel={channel}").json()["topics"] or []:
        for found in stats["channels"]:
            if found["channel_name"] == channel:
                result: dict[str, Any] = found
                return result
    return {}


def clients_of(nsqd: AnyNsqd, topic: str = TOPIC, channel: str = CHANNEL) -> list[dict[str, Any]]:
    return channel_of(nsqd, topic, channel).get("clients") or []


def rdys(nsqds: Sequence[AnyNsqd]) -> list[int]:
    return [client["ready_count"] for nsqd in nsqds for client in clients_of(nsqd)]


def expect_drained(nsqd: AnyNsqd, *, requeues: int | None = 0, timeouts: int | None = 0) -> None:
    """Wait until nsqd has no message of the channel, waiting or in flight, and counts exactly these requeues
    and timeouts (None: any number).

    It must wait, because nsqd does not answer a FIN.
    """
    counts = {"requeue_count": requeues, "timeout_count": timeouts}
    wanted = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}
    wanted |= {name: count for name, count in counts.items() if count is not None}
    seen: dict[str, Any] = {}

    def drained() -> bool:
        stats = channel_of(nsqd)
        seen.update({name: stats.get(name) for name in wanted})
        return seen == wanted

    try:
        until("drained", drained)
    except AssertionError:
        raise AssertionError(f"nsqd has {seen} instead of {wanted}") from None


def drained(nsqd: AnyNsqd) -> Callable[[], bool]:
    """Return a condition: the channel has a consumer and no messages."""

    def condition() -> bool:
        stats = channel_of(nsqd)
        left = stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
        return bool(stats["client_count"]) and not left

    return condition


class Recorder:
    """A handler that records its messages, then calls the test's function."""

    def __init__(self, then: Callable[[Message], object] = lambda message: None) -> None:
        self._then = then
        self._changed = threading.Condition()
        self._messages: list[Message] = []

    def __call__(self, message: Message) -> object:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()
        return self._then(message)

    @property
    def messages(self) -> list[Message]:
        with self._changed:
            return list(self._messages)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def attempts(self) -> list[int]:
        return [message.attempts for message in self.messages]

    def wait_for(self, count: int, timeout: float = PATIENCE) -> list[Message]:
        """Wait for this number of messages; return them."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self._messages) >= count, timeout)
            assert enough, f"{len(self._messages)} of {count} messages came within {timeout:g} s"
            return list(self._messages)


class Gate:
    """A handler that holds its message until the test releases it; counts messages held at the same time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passes: float = 0
        self.held = 0
        self.most_held = 0
        self.passed = 0

    def __call__(self, message: Message) -> None:
        with self._changed:
            self.held += 1
            self.most_held = max(self.most_held, self.held)
            self._changed.notify_all()
            opened = self._changed.wait_for(lambda: self._passes > 0, PATIENCE)
            self._passes -= 1
            self.held -= 1
            self.passed += 1
            self._changed.notify_all()
        assert opened, "the test never released it"

    def let_go(self, count: float = float("inf")) -> None:
        """Release this number of messages; by default all, including future ones."""
        with self._changed:
            self._passes += count
            self._changed.notify_all()

    def wait_until_held(self, count: int, timeout: float = PATIENCE) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: self.held == count, timeout)
            assert reached, f"{self.held} messages held instead of {count}, even after {timeout:g} s"

    def wait_until_passed(self, count: int, timeout: float = PATIENCE) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: self.passed >= count, timeout)
            assert reached, f"{self.passed} of {count} messages passed within {timeout:g} s"


def make_consumer(nsqd: AnyNsqd | Iterable[AnyNsqd] | str = (), **options: Any) -> Consumer:
    """Return a consumer of TOPIC/CHANNEL without requeue delays and without backoff."""
    if isinstance(nsqd, AnyNsqd):
        nsqd = [nsqd]
    nsqds = [] if isinstance(nsqd, str) else list(nsqd)
    addresses = nsqd if isinstance(nsqd, str) else [each.tcp_address for each in nsqds]
    quick = {"default_requeue_delay": 0.0, "max_backoff_duration": 0.0, "reconnect_max": 0.5}
    transport = transport_of(*nsqds)
    return Consumer(TOPIC, CHANNEL, nsqd=addresses, **{**quick, "transport": transport, **options})


def transport_of(*nsqds: AnyNsqd) -> Transport | None:
    """Return the transport that reaches these nsqds; None is the default one."""
    return next((each for each in nsqds if isinstance(each, MemoryNsqdWithHttp)), None)


@contextmanager
def running(consumer: Consumer, connections: int = 1) -> Iterator[Consumer]:
    """Run a connected consumer in the block; check that its stop leaves nothing."""
    consumer.start()
    try:
        assert consumer.wait_until_connected(PATIENCE, connections), consumer.health()
        yield consumer
    except BaseException:
        consumer.stop(1.0)
        raise
    report = consumer.stop(PATIENCE)
    assert report.clean, report


class LogRecords(logging.Handler):
    """Log lines of ``nsq`` in the block; unlike caplog it can wait for lines from other threads."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def wait_for(self, *parts: str, timeout: float = PATIENCE) -> str:
        """Wait for a line that has all the parts; return it."""

        def find() -> str:
            return next((line for line in list(self.lines) if all(part in line for part in parts)), "")

        try:
            found: str = until("the log line", find, timeout)
        except AssertionError:
            raise AssertionError(f"no log line has {parts}; there are {self.lines}") from None
        return found


@contextmanager
def logging_to(handler: H, level: int, name: str = "nsq") -> Iterator[H]:
    """Add a handler of ``logging`` in the block."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def log_of(name: str = "nsq") -> AbstractContextManager[LogRecords]:
    return logging_to(LogRecords(), logging.INFO, name)
