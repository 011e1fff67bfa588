"""Traces and metrics by OpenTelemetry's messaging conventions (``pip install 'nsq[opentelemetry]'``).

    telemetry = Telemetry(source="/shop")
    producer = nsq.Producer("10.0.0.2:4150", **telemetry.of_producer())
    traced = telemetry.of_consumer("orders", "billing")
    consumer = nsq.Consumer("orders", "billing", nsqd="10.0.0.2:4150", **traced)

With a ``source``, every body is put into an envelope of CloudEvents, which carries the context of the trace
to the consumer. On extended topics of a partitioned NSQ ``headers=True`` carries it in the messages' headers
instead. For envelopes with headers of your own give ``carrier`` to ``enveloping``:

    envelopes = enveloping("/shop", "order.paid", headers=telemetry.carrier, tenant="north")
    hooks = [telemetry.of_producer()["around_publish"], envelopes]
    producer = nsq.Producer("10.0.0.2:4150", around_publish=hooks)

Otherwise bodies are unchanged, and producer and consumer have traces of their own.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from nsq.errors import how_to_install

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode
except ImportError as error:
    raise ImportError(
        f"nsq.contrib.opentelemetry needs opentelemetry-api: {how_to_install('opentelemetry')}"
    ) from error

from nsq import GiveUp, Message, Requeue, __version__
from nsq.consumer.handlers import is_async
from nsq.contrib.codecs import headers_of
from nsq.errors import ConfigError, InvalidName
from nsq.transport.addresses import is_unix, split, unix_path
from nsq.wire.envelope import wrap
from nsq.wire.names import check_topic

#: The version of the conventions whose names are used here.
_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
#: Seconds: the buckets that the conventions advise for durations. The SDK's own are made for milliseconds.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
#: The parts of a trace's context that may stand in an envelope.
_CONTEXT = ("traceparent", "tracestate")


class Telemetry:
    """Makes arguments for producers and consumers, with the given providers or the global ones.

    A consumer's span links to the spans of the producers of its messages. With ``parents=True`` the span for
    a single message is the child of its producer's span instead, so that both are one trace.
    """

    def __init__(
        self,
        *,
        source: str = "",
        headers: bool = False,
        parents: bool = False,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        if source and headers:
            raise ConfigError("source and headers exclude each other: an extended topic needs no envelope")
        self._source, self._headers, self._parents = source, headers, parents
        # Of the publish that begins here: its span, until it ends.
        self._begun: ContextVar[list[Span] | None] = ContextVar("nsq-publish", default=None)
        self._tracer = trace.get_tracer("nsq", __version__, tracer_provider, _SCHEMA)
        meter = metrics.get_meter("nsq", __version__, meter_provider, _SCHEMA)
        self._operation_seconds = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of a publish.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages sent.")
        self._process_seconds = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of a handler.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages given to handlers."
        )

    # Publishing.

    def of_producer(self) -> dict[str, Any]:
        """Return arguments for a Producer."""
        return {"around_publish": self._around_publish}

    def _around_publish(self, topic: str, bodies: list[bytes]) -> tuple[Any, ...]:
        began = time.perf_counter()
        common: dict[str, Any] = _attributes("publish", "send", topic)
        about = dict(common)
        if len(bodies) == 1:
            about["messaging.message.body.size"] = len(bodies[0])
        else:
            about["messaging.batch.message_count"] = len(bodies)
        span = self._tracer.start_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=about)
        carrier: dict[str, str] = {}
        if self._source or self._headers:
            propagate.inject(carrier, trace.set_span_in_context(span))
            carrier = {name: carrier[name] for name in _CONTEXT if name in carrier}
        count, begun = len(bodies), [span]
        self._begun.set(begun)

        def ended(error: BaseException | None) -> None:
            where = _server(ended.nsqd_address)  # type: ignore[attr-defined]
            span.set_attributes(where)
            common.update(where)
            if error is not None:
                common["error.type"] = type(error).__qualname__
                _fail(span, error)
            begun.clear()
            span.end()
            self._operation_seconds.record(time.perf_counter() - began, common)
            self._sent.add(count, common)

        ended.nsqd_address = ""  # type: ignore[attr-defined]  # the producer sets it
        if self._source:
            try:
                head = {"source": self._source, "type": check_topic(topic), **carrier}
            except InvalidName as error:
                ended(error)
                raise
            bodies = [wrap(body, {"id": str(uuid.uuid4()), **head}) for body in bodies]
        return (bodies, ended, carrier) if self._headers else (bodies, ended)

    def carrier(self) -> dict[str, str]:
        """Return headers that carry the trace of the publish that begins on this thread: its hook must come
        first. Without one they carry the current trace. For ``enveloping(headers=)``.
        """
        begun, carrier = self._begun.get(), dict[str, str]()
        propagate.inject(carrier, trace.set_span_in_context(begun[0]) if begun else None)
        return {name: carrier[name] for name in _CONTEXT if name in carrier}

    # Consuming.

    def of_consumer(self, topic: str, channel: str) -> dict[str, Any]:
        """Return arguments for a Consumer of this topic and channel."""
        common = _attributes("process", "process", topic)
        common["messaging.destination.subscription.name"] = channel

        def around(handler: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(handler)
            def handle(messages: Any) -> Any:
                with self._processing(messages, common):
                    return handler(messages)

            @wraps(handler)
            async def handle_on_loop(message: Message) -> Any:
                with self._processing(message, common):
                    return await handler(message)

            return handle_on_loop if is_async(handler) else handle

        return {"around_handler": around}

    @contextmanager
    def _processing(self, given: Message | list[Message], common: dict[str, Any]) -> Iterator[None]:
        began = time.perf_counter()
        messages = given if isinstance(given, list) else [given]
        result = dict(common)
        if len({message.nsqd_address for message in messages}) == 1:
            result |= _server(messages[0].nsqd_address)
        about = dict(result)
        if isinstance(given, list):
            about["messaging.batch.message_count"] = len(given)
        else:
            about["messaging.message.id"] = given.id_text
            about["messaging.message.body.size"] = len(given.body)
        contexts = list(map(_context_of, messages))
        parent = contexts[0] if self._parents and not isinstance(given, list) else None
        found = [trace.get_current_span(each).get_span_context() for each in contexts if each is not None]
        links = [] if parent is not None else [Link(each) for each in found if each.is_valid]
        with self._tracer.start_as_current_span(
            f"process {common['messaging.destination.name']}",
            # Not the current context: it may hold the span in which the consumer was started.
            context=Context() if parent is None else parent,
            kind=SpanKind.CONSUMER,
            attributes=about,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except (Requeue, asyncio.CancelledError):  # no error: the message only comes again
                raise
            except BaseException as error:
                result["error.type"] = type(error).__qualname__
                _fail(span, error)
                raise
            finally:
                self._process_seconds.record(time.perf_counter() - began, result)
                self._consumed.add(len(messages), result)


def _attributes(name: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "nsq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _server(nsqd_address: str) -> dict[str, Any]:
    if not nsqd_address:
        return {}
    if is_unix(nsqd_address):
        return {"server.address": unix_path(nsqd_address)}
    host, port = split(nsqd_address)
    return {"server.address": host, "server.port": port}


def _context_of(message: Message) -> Context | None:
    """Return the context of the trace in which the message was published; None if it carries none."""
    headers = headers_of(message)
    if "traceparent" not in headers:
        return None
    carrier = {name: headers[name] for name in _CONTEXT if name in headers}
    return propagate.extract(carrier, Context())


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR, str(error))
    if not isinstance(error, GiveUp):
        span.record_exception(error)
