"""Spans and metrics of real clients, in OpenTelemetry's in-memory exporters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, ScopeMetrics
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import SpanKind

import nsq
from nsq import aio
from nsq.contrib.codecs import body_of, enveloping, headers_of
from nsq.contrib.opentelemetry import Telemetry
from nsq.message import Message
from nsq.testing import Nsqd, PartitionedCluster
from tests.fakes.messages import Delegate

from .conftest import PATIENCE, until


class Recorded:
    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.kind is kind]

    def metrics(self) -> dict[str, list[Any]]:
        found = [metric for scope in self._scopes() for metric in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in found}

    def schemas(self) -> list[str | None]:
        return [scope.scope.schema_url for scope in self._scopes()]

    def _scopes(self) -> list[ScopeMetrics]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [scope for resource in data.resource_metrics for scope in resource.scope_metrics]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.tracers.shutdown()
    recorded.meters.shutdown()


@pytest.fixture
def orders(nsqd: Nsqd) -> Nsqd:
    assert nsqd.post("/topic/create?topic=orders").status == 200
    assert nsqd.post("/channel/create?topic=orders&channel=billing").status == 200
    return nsqd


def id_of(span: Any) -> int:
    return int(span.get_span_context().span_id)


def test_messages_that_come_over_a_unix_socket_are_traced(recorded: Recorded) -> None:
    handled = []
    around = recorded.telemetry().of_consumer("orders", "billing")["around_handler"]
    delegate = Delegate()
    delegate.address = "/run/nsqd.sock"
    around(handled.append)(Message(delegate, 0.0, 1.0, 17, 1, b"0123456789abcdef", b"body"))
    assert len(handled) == 1
    (span,) = recorded.spans(SpanKind.CONSUMER)
    assert span.attributes is not None
    assert span.attributes["server.address"] == "/run/nsqd.sock"
    assert "server.port" not in span.attributes


def test_spans_are_linked_through_the_headers_of_an_extended_topic(
    partitioned_cluster: PartitionedCluster, recorded: Recorded
) -> None:
    partitioned_cluster.create_topic("orders", extended=True, channels=["billing"])
    telemetry, lookups = recorded.telemetry(headers=True), partitioned_cluster.lookup_addresses
    seen: list[tuple[bytes, dict[str, str]]] = []
    ids: set[str] = set()
    traced = telemetry.of_consumer("orders", "billing")
    consumer = nsq.Consumer("orders", "billing", nsqlookupd=lookups, **traced)

    @consumer.handler
    def handle(message: Message) -> None:
        seen.append((message.body, headers_of(message)))
        ids.add(message.id_text)

    with nsq.Producer(nsqlookupd=lookups, **telemetry.of_producer()) as producer, consumer:
        producer.publish("orders", b"one", headers={"tenant": "north"}, timeout=PATIENCE)
        producer.publish_async("orders", b"two", timeout=PATIENCE).result(PATIENCE)
        asyncio.run(publish_on_a_loop(lookups, telemetry))
        until(lambda: len(recorded.spans(SpanKind.CONSUMER)) == 4)
    assert sorted(body for body, _ in seen) == [b"four", b"one", b"three", b"two"]
    assert [headers.get("tenant") for body, headers in seen if body == b"one"] == ["north"]
    linked = {span.links[0].context.span_id for span in recorded.spans(SpanKind.CONSUMER)}
    assert linked == set(map(id_of, recorded.spans(SpanKind.PRODUCER)))
    found = [span.attributes or {} for span in recorded.spans(SpanKind.CONSUMER)]
    assert {each["messaging.message.id"] for each in found} == ids


async def publish_on_a_loop(lookups: Any, telemetry: Telemetry) -> None:
    async with aio.Producer(nsqlookupd=lookups, **telemetry.of_producer()) as producer:
        await producer.publish("orders", b"three", timeout=PATIENCE)
        await producer.multi_publish("orders", [b"four"], timeout=PATIENCE)


def test_a_cancelled_handler_has_not_failed(recorded: Recorded) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(60)

    async def cancel() -> None:
        around = recorded.telemetry().of_consumer("orders", "billing")["around_handler"]
        task = asyncio.ensure_future(around(handle)(Message(Delegate(), 0.0, 1.0, 17, 1, b"0" * 16, b"body")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancel())
    (span,) = recorded.spans(SpanKind.CONSUMER)
    assert span.status.is_unset
    assert "error.type" not in (span.attributes or {})


def test_a_body_that_is_not_bytes_is_refused_and_leaves_no_span(recorded: Recorded) -> None:
    telemetry = recorded.telemetry(source="/shop")
    with nsq.Producer("127.0.0.1:1", **telemetry.of_producer()) as producer:
        for publish in (producer.publish, producer.publish_async):
            with pytest.raises(nsq.InvalidMessage, match="str"):
                publish("orders", "text")  # type: ignore[operator]
        with pytest.raises(nsq.InvalidMessage, match="str"):
            producer.multi_publish("orders", [b"bytes", "text"])  # type: ignore[list-item]
    assert recorded.spans(SpanKind.PRODUCER) == []


def test_a_publish_to_a_topic_without_a_name_ends_its_span(recorded: Recorded) -> None:
    telemetry = recorded.telemetry(source="/shop")
    producer = nsq.Producer("127.0.0.1:1", **telemetry.of_producer())
    with producer, pytest.raises(nsq.InvalidName, match="empty"):
        producer.publish("", b"text")
    (span,) = recorded.spans(SpanKind.PRODUCER)
    assert (span.attributes or {})["error.type"] == "InvalidName"


def consumer_of(nsqd: Nsqd, telemetry: Telemetry) -> nsq.Consumer:
    quick: dict[str, Any] = {"default_requeue_delay": 0.0, "max_backoff_duration": 0.0}
    traced = telemetry.of_consumer("orders", "billing")
    return nsq.Consumer("orders", "billing", nsqd=nsqd.tcp_address, **quick, **traced)


def test_spans_are_linked_through_the_envelope(orders: Nsqd, recorded: Recorded) -> None:
    telemetry = recorded.telemetry(source="/shop")
    bodies = []
    consumer = consumer_of(orders, telemetry).add_handler(lambda message: bodies.append(body_of(message)))
    with nsq.Producer(orders.tcp_address, **telemetry.of_producer()) as producer, consumer:
        with recorded.tracers.get_tracer("test").start_as_current_span("request") as request:
            producer.publish("orders", b"one")
        until(lambda: recorded.spans(SpanKind.CONSUMER))
    (sent,), (processed,) = recorded.spans(SpanKind.PRODUCER), recorded.spans(SpanKind.CONSUMER)
    assert bodies == [b"one"]
    assert sent.parent is not None
    assert sent.parent.span_id == id_of(request)
    assert [link.context.span_id for link in processed.links] == [id_of(sent)]
    assert processed.parent is None
    host, port = orders.tcp_address.rsplit(":", 1)
    assert dict(sent.attributes or {}) == {
        "messaging.system": "nsq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": 3,
        "server.address": host,
        "server.port": int(port),
    }
    attributes = dict(processed.attributes or {})
    assert len(str(attributes.pop("messaging.message.id"))) == 16
    assert attributes.pop("messaging.message.body.size")
    assert attributes == {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.subscription.name": "billing",
        "server.address": host,
        "server.port": int(port),
    }


def test_parents_make_one_trace_on_a_loop_too(orders: Nsqd, recorded: Recorded) -> None:
    telemetry = recorded.telemetry(source="/shop", parents=True)

    async def main() -> None:
        traced = telemetry.of_consumer("orders", "billing")
        consumer = aio.Consumer("orders", "billing", nsqd=orders.tcp_address, **traced)

        async def handle(message: nsq.Message) -> None:
            await consumer.stop()

        async with aio.Producer(orders.tcp_address, **telemetry.of_producer()) as producer:
            await producer.publish("orders", b"body")
        await consumer.add_handler(handle).run()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    (sent,), (processed,) = recorded.spans(SpanKind.PRODUCER), recorded.spans(SpanKind.CONSUMER)
    assert processed.parent is not None
    assert processed.parent.span_id == id_of(sent)
    assert not processed.links


def test_a_span_that_is_open_when_a_consumer_starts_is_no_parent(orders: Nsqd, recorded: Recorded) -> None:
    telemetry = recorded.telemetry()

    async def main() -> None:
        traced = telemetry.of_consumer("orders", "billing")
        consumer = aio.Consumer("orders", "billing", nsqd=orders.tcp_address, **traced)

        async def handle(message: nsq.Message) -> None:
            await consumer.stop()

        with recorded.tracers.get_tracer("shop").start_as_current_span("start of the program"):
            await consumer.add_handler(handle).run()

    assert orders.post("/pub?topic=orders", b"body").status == 200
    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    (processed,) = recorded.spans(SpanKind.CONSUMER)
    assert processed.parent is None


def test_without_a_source_bodies_are_unchanged_and_batches_and_errors_are_recorded(
    orders: Nsqd, recorded: Recorded
) -> None:
    telemetry = recorded.telemetry()
    batches: list[list[bytes]] = []

    def handle(messages: list[nsq.Message]) -> None:
        batches.append([message.body for message in messages])
        if len(batches) == 1:
            raise ValueError("not yet")
        if len(batches) == 2:
            raise nsq.Requeue(0.0, backoff=False)

    consumer = consumer_of(orders, telemetry).add_batch_handler(handle, 2, 5.0)
    with nsq.Producer(orders.tcp_address, **telemetry.of_producer()) as producer:
        producer.multi_publish("orders", [b"1", b"2"])
        with pytest.raises(nsq.InvalidName):
            producer.publish("no topic", b"body")
        with consumer:
            until(lambda: consumer.stats().finished == 2)
    assert sorted(batches[0]) == [b"1", b"2"]
    sent = recorded.spans(SpanKind.PRODUCER)
    assert [(span.attributes or {}).get("error.type") for span in sent] == [None, "InvalidName"]
    assert [(span.attributes or {}).get("messaging.batch.message_count") for span in sent] == [2, None]
    errors = [(span.attributes or {}).get("error.type") for span in recorded.spans(SpanKind.CONSUMER)]
    assert errors == ["ValueError", *[None] * (len(batches) - 1)]
    metrics = recorded.metrics()
    assert sum(point.value for point in metrics["messaging.client.sent.messages"]) == 3
    assert sum(point.value for point in metrics["messaging.client.consumed.messages"]) >= 6
    assert sum(point.count for point in metrics["messaging.client.operation.duration"]) == 2
    assert sum(point.count for point in metrics["messaging.process.duration"]) == len(batches)
    known = {value for name, value in vars(messaging_metrics).items() if name.startswith("MESSAGING_")}
    assert set(metrics) <= known
    known = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    for points in metrics.values():
        for point in points:
            assert set(point.attributes) - {"error.type", "server.address", "server.port"} <= known
            invalid = point.attributes.get("error.type") == "InvalidName"  # it never came to an nsqd
            assert ("server.address" in point.attributes) is not invalid


@pytest.mark.parametrize("way", ["publish", "publish_async", "multi_publish", "aio"])
def test_telemetry_and_an_envelope_of_the_users_make_one_envelope_and_one_trace(
    orders: Nsqd, recorded: Recorded, way: str
) -> None:
    telemetry = recorded.telemetry(source="", parents=True)
    envelopes = enveloping(
        "/shop", "order.paid", headers=telemetry.carrier, id=lambda _, body: f"id-{body!r}", tenant="north"
    )
    hooks: Any = [telemetry.of_producer()["around_publish"], envelopes]
    seen: list[tuple[bytes, dict[str, str]]] = []

    async def on_a_loop() -> None:
        async with aio.Producer(orders.tcp_address, around_publish=hooks) as producer:
            await producer.publish("orders", b"one")

    with nsq.Producer(orders.tcp_address, around_publish=hooks) as producer:
        if way == "publish":
            producer.publish("orders", b"one")
        elif way == "publish_async":
            producer.publish_async("orders", b"one").result(PATIENCE)
        elif way == "multi_publish":
            producer.multi_publish("orders", [b"one"])
        else:
            asyncio.run(on_a_loop())
    assert telemetry.carrier() == {}  # the publish has ended
    consumer = consumer_of(orders, telemetry)
    with consumer.add_handler(lambda message: seen.append((body_of(message), headers_of(message)))):
        until(lambda: recorded.spans(SpanKind.CONSUMER))
    ((body, headers),) = seen
    assert (body, headers["tenant"], headers["id"]) == (b"one", "north", "id-b'one'")
    (sent,), (handled,) = recorded.spans(SpanKind.PRODUCER), recorded.spans(SpanKind.CONSUMER)
    assert handled.parent is not None
    assert handled.parent.span_id == id_of(sent)
    assert handled.get_span_context().trace_id == sent.get_span_context().trace_id


def test_histograms_have_the_buckets_and_the_scope_has_the_schema_of_the_conventions(
    orders: Nsqd, recorded: Recorded
) -> None:
    telemetry = recorded.telemetry()
    with nsq.Producer(orders.tcp_address, **telemetry.of_producer()) as producer:
        producer.publish_async("orders", b"1").result(PATIENCE)
    with consumer_of(orders, telemetry).add_handler(lambda message: None):
        until(lambda: recorded.spans(SpanKind.CONSUMER))
    for name in ("messaging.client.operation.duration", "messaging.process.duration"):
        (point,) = recorded.metrics()[name]
        assert (point.explicit_bounds[0], point.explicit_bounds[-1]) == (0.005, 10)
        assert point.attributes["server.address"] == orders.tcp_address.rpartition(":")[0]
    (sent,) = recorded.spans(SpanKind.PRODUCER)
    assert sent.instrumentation_scope is not None
    assert {sent.instrumentation_scope.schema_url, *recorded.schemas()} == {
        "https://opentelemetry.io/schemas/1.44.0"
    }
