"""Metrics of producers and consumers for the official Prometheus client (``pip install 'nsq[prometheus]'``).

    metrics = Metrics()
    producer = nsq.Producer("10.0.0.2:4150", **metrics.of_producer())
    measured = metrics.of_consumer("orders", "billing")
    consumer = nsq.Consumer("orders", "billing", nsqd="10.0.0.2:4150", **measured)
    metrics.watch(producer, consumer)

``of_producer`` and ``of_consumer`` count events. ``watch`` adds gauges, which are read from ``stats`` and
``health`` whenever Prometheus scrapes.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from nsq.errors import InvalidName, how_to_install

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        f"nsq.contrib.prometheus needs prometheus_client: {how_to_install('prometheus')}"
    ) from error

from nsq import Acknowledged, Consumer, ConsumerHooks, Message, NsqError, Producer
from nsq.consumer.handlers import is_async
from nsq.wire.names import check_topic

#: Seconds: the buckets of both histograms.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OUTCOMES = ("finished", "requeued", "timed_out", "given_up")

Values = dict[tuple[str, ...], float]


class Metrics:
    """All metrics, in one registry; make one for a process.

    In the multiprocess mode of prometheus_client nothing is read at a scrape: call ``update`` now and then
    instead of ``watch``.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, buckets: Iterable[float] = BUCKETS) -> None:
        buckets = tuple(buckets)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"nsq_client_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"nsq_client_{name}", text, labels, buckets=buckets, registry=registry)

        self.registry = registry
        self._published = counter("published_messages", "Messages that an nsqd has stored.", "topic", "nsqd")
        self._bytes = counter("published_bytes", "Bytes of the messages that an nsqd has stored.", "topic")
        self._failures = counter("publish_failures", "Publishes that raised an error.", "topic", "error")
        self._publish_seconds = histogram(
            "publish_seconds", "Seconds from the call of a publish to the answer of nsqd.", "topic"
        )
        outcomes = f"{', '.join(OUTCOMES)}; a message that is given up is finished, too"
        self._consumed = counter(
            "consumed_messages", f"Messages by outcome: {outcomes}.", "topic", "channel", "outcome"
        )
        self._handler_seconds = histogram(
            "handler_seconds", "Seconds that a handler worked on a message or a batch.", "topic", "channel"
        )
        self._opened = counter(
            "connections_opened", "Connections that consumers have opened.", "topic", "channel", "nsqd"
        )
        self._lost = counter(
            "connections_lost", "Connections of consumers that an error ended.", "topic", "channel", "nsqd"
        )
        self._watched: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._gauges: dict[str, tuple[Gauge, set[tuple[str, ...]]]] = {}  # with the labels that were set
        self._collects = False

    def of_producer(self) -> dict[str, Any]:
        """Return arguments for a Producer."""
        return {
            "on_acknowledged": self._on_acknowledged,
            "on_failed": lambda event: self._count_failure(event.topic, event.error),
            "on_refused": self._count_failure,
        }

    def _on_acknowledged(self, event: Acknowledged) -> None:
        self._published.labels(event.topic, event.nsqd_address).inc(event.messages)
        self._bytes.labels(event.topic).inc(event.bytes)
        self._publish_seconds.labels(event.topic).observe(event.latency)

    def _count_failure(self, topic: str, error: NsqError) -> None:
        try:
            topic = check_topic(topic)
        except InvalidName:
            topic = ""  # there may be any number of them
        self._failures.labels(topic, type(error).__name__).inc()

    def of_consumer(self, topic: str, channel: str) -> dict[str, Any]:
        """Return arguments for a Consumer of this topic and channel."""
        outcomes = {name: self._consumed.labels(topic, channel, name) for name in OUTCOMES}
        seconds = self._handler_seconds.labels(topic, channel)

        def around(handler: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(handler)
            def handle(messages: Any) -> Any:
                with seconds.time():
                    return handler(messages)

            @wraps(handler)
            async def handle_on_loop(message: Any) -> Any:
                began = time.perf_counter()
                try:
                    return await handler(message)
                finally:
                    seconds.observe(time.perf_counter() - began)

            return handle_on_loop if is_async(handler) else handle

        return {
            "hooks": _Hooks((topic, channel), outcomes, self._opened, self._lost),
            "around_handler": around,
        }

    def watch(self, *clients: Producer | Consumer) -> None:
        """Read the state of these clients whenever the registry is collected. Forgets clients that are
        garbage.
        """
        # A new set: another thread may read the old one for a scrape.
        self._watched = weakref.WeakSet([*self._watched, *clients])
        if not self._collects:
            self._collects = True
            self.registry.register(_Gauges(lambda: list(self._watched)))

    def update(self, *clients: Producer | Consumer) -> None:
        """Set the gauges from the state of these clients, for the multiprocess mode: there the numbers of all
        living processes are added up.
        """
        for name, text, labels, values in _state(clients):
            if name not in self._gauges:
                gauge = Gauge(name, text, labels, registry=self.registry, multiprocess_mode="livesum")
                self._gauges[name] = gauge, set()
            gauge, known = self._gauges[name]
            known.update(values)
            for each in known:  # an nsqd that is gone falls to 0: this mode cannot remove it
                gauge.labels(*each).set(values.get(each, 0.0))


class _Hooks(ConsumerHooks):
    def __init__(
        self, at: tuple[str, str], outcomes: dict[str, Counter], opened: Counter, lost: Counter
    ) -> None:
        self._at, self._outcomes, self._opened, self._lost = at, outcomes, opened, lost

    def connected(self, nsqd_address: str) -> None:
        self._opened.labels(*self._at, nsqd_address).inc()

    def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
        if cause is not None:
            self._lost.labels(*self._at, nsqd_address).inc()

    def finished(self, message: Message) -> None:
        self._outcomes["finished"].inc()

    def requeued(self, message: Message) -> None:
        self._outcomes["requeued"].inc()

    def timed_out(self, message: Message) -> None:
        self._outcomes["timed_out"].inc()

    def given_up(self, message: Message) -> None:
        self._outcomes["given_up"].inc()


class _Gauges(Collector):
    def __init__(self, clients: Callable[[], list[Producer | Consumer]]) -> None:
        self._clients = clients

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, text, labels, values in _state(self._clients()):
            family = GaugeMetricFamily(name, text, labels=labels)
            for each, number in values.items():
                family.add_metric(each, number)
            yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return none, so that registering collects nothing."""
        return []


def _state(clients: Iterable[Producer | Consumer]) -> list[tuple[str, str, list[str], Values]]:
    """Return name, help text, labels and values of each gauge. Clients with equal labels are added up."""
    pending: Values = {}
    in_flight: Values = {}
    rdy: Values = {}
    waiting: Values = {}
    backoff: Values = {}
    ok: Values = {}
    stuck: Values = {}
    missing: Values = {}
    for client in clients:
        if isinstance(client, Producer):
            for connection in client.stats().connections:
                _add(pending, (connection.address,), connection.pending)
            continue
        at, health = (client.topic, client.channel), client.health()
        for each in health.connections:
            _add(in_flight, (*at, each.nsqd_address), each.in_flight)
            _add(rdy, (*at, each.nsqd_address), each.rdy)
        _add(waiting, at, client.stats().waiting)
        _add(backoff, at, health.backoff_level)
        _add(ok, at, health.ok)
        _add(stuck, at, sum(each.stuck for each in health.partitions))
        _add(missing, at, len(health.missing_partitions))
    of_channel, of_nsqd = ["topic", "channel"], ["topic", "channel", "nsqd"]
    return [
        ("nsq_client_publishes_pending", "Publishes that nsqd has not answered.", ["nsqd"], pending),
        ("nsq_client_in_flight", "Messages that have no answer yet.", of_nsqd, in_flight),
        ("nsq_client_rdy", "RDY: messages that nsqd may have in flight here.", of_nsqd, rdy),
        ("nsq_client_waiting", "Messages that wait for a handler thread.", of_channel, waiting),
        ("nsq_client_backoff_level", "Levels of backoff of all consumers; 0 is normal.", of_channel, backoff),
        ("nsq_client_consumers_ok", "Consumers to which messages can come.", of_channel, ok),
        ("nsq_client_partitions_stuck", "Partitions that a failing message holds up.", of_channel, stuck),
        ("nsq_client_partitions_missing", "Partitions without a leader, by consumer.", of_channel, missing),
    ]


def _add(values: Values, labels: tuple[str, ...], number: float) -> None:
    values[labels] = values.get(labels, 0.0) + number
