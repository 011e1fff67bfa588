"""Typed bodies: JSON, msgspec or pydantic, with or without an envelope of CloudEvents.

    orders = Pydantic(Order)
    producer.publish("orders", orders.encode(Order(number=1, amount=20)))

    @orders.handler
    def bill(order: Order, message: nsq.Message) -> None: ...

    consumer.add_handler(bill)

What a codec cannot decode no attempt will: such a message is given up at once, and goes to the dead letters.
Errors of the handler itself are retried as ever.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Generic, TypeVar

from nsq import GiveUp, Message
from nsq.config import checked_function
from nsq.consumer.handlers import is_async
from nsq.errors import how_to_install
from nsq.producer.hooks import PublishHook
from nsq.wire.envelope import unwrap, wrap

T = TypeVar("T")


class Codec(Generic[T]):
    """Turns objects into bodies and back; ``decode`` raises ValueError for a body that it cannot read."""

    def encode(self, value: T) -> bytes:
        raise NotImplementedError

    def decode(self, body: bytes) -> T:
        raise NotImplementedError

    def of(self, message: Message) -> T:
        """Decode a message, with or without an envelope. Raises GiveUp if that is impossible."""
        try:
            return self.decode(body_of(message))
        except (ValueError, RecursionError) as error:
            raise GiveUp(f"the body cannot be decoded: {error}") from error

    def handler(self, function: Callable[[T, Message], Any]) -> Callable[[Message], Any]:
        """Return a handler that calls ``function(value, message)``; of an async def, one for nsq.aio."""

        @wraps(function)
        def handle(message: Message) -> Any:
            return function(self.of(message), message)

        @wraps(function)
        async def handle_on_loop(message: Message) -> Any:
            return await function(self.of(message), message)

        return handle_on_loop if is_async(function) else handle


class Json(Codec[Any]):
    """Any value that the json module takes."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    def decode(self, body: bytes) -> Any:
        return json.loads(body)


class Msgspec(Codec[T]):
    """A type that msgspec knows, such as a Struct, as JSON."""

    def __init__(self, kind: type[T]) -> None:
        try:
            import msgspec
        except ImportError as error:
            raise ImportError(f"codecs.Msgspec needs msgspec: {how_to_install('msgspec')}") from error
        self._encoder, self._decoder = msgspec.json.Encoder(), msgspec.json.Decoder(kind)

    def encode(self, value: T) -> bytes:
        return self._encoder.encode(value)

    def decode(self, body: bytes) -> T:
        return self._decoder.decode(body)


class Pydantic(Codec[T]):
    """A model of pydantic, or another type that its TypeAdapter takes, as JSON."""

    def __init__(self, kind: type[T]) -> None:
        try:
            from pydantic import TypeAdapter
        except ImportError as error:
            raise ImportError(f"codecs.Pydantic needs pydantic: {how_to_install('pydantic')}") from error
        self._adapter = TypeAdapter(kind)

    def encode(self, value: T) -> bytes:
        return self._adapter.dump_json(value)

    def decode(self, body: bytes) -> T:
        return self._adapter.validate_json(body)


# Envelopes.


def enveloping(
    source: str,
    kind: str,
    *,
    is_json: bool = False,
    id: Callable[[str, bytes], str] | None = None,  # noqa: A002 - the name that CloudEvents gives it
    headers: Callable[[], Mapping[str, str]] | None = None,
    **fixed: str,
) -> PublishHook:
    """Return an ``around_publish`` for a producer, which puts every body into an envelope of CloudEvents with
    these headers. ``is_json`` says that all bodies are valid JSON, which is not checked.

    ``id`` gets the topic and a body, and returns the envelope's id: the same one if the same event is
    published again. By default each publish has another id. ``headers`` is called for each publish and
    returns more headers, as ``Telemetry.carrier`` does.
    """
    checked_function("id", id), checked_function("headers", headers)
    wrap(b"1", {"id": "1", "source": source, "type": kind, **fixed})  # a wrong header raises here

    def around(topic: str, bodies: list[bytes]) -> tuple[list[bytes], Callable[[object], object]]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = {"source": source, "type": kind, "time": now, **fixed, **(headers() if headers else {})}
        ids = [str(uuid.uuid4()) if id is None else id(topic, body) for body in bodies]
        wrapped = [
            wrap(body, {"id": one, **head}, is_json=is_json) for one, body in zip(ids, bodies, strict=True)
        ]
        return wrapped, _ignore

    return around


def _ignore(_: object) -> None: ...


def headers_of(message: Message) -> dict[str, str]:
    """Return the headers of a message: its own on extended topics of a partitioned NSQ, else those of its
    envelope, none without one.
    """
    own = message.headers
    if own is not None:
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in own.items()}
    envelope = unwrap(message.body)
    return {} if envelope is None else envelope.attributes


def body_of(message: Message) -> bytes:
    """Return the body inside the message's envelope, or the message's body if it has none."""
    envelope = unwrap(message.body)
    return message.body if envelope is None else envelope.body
