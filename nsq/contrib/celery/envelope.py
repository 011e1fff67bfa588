"""A kombu message as the body of an NSQ message: one line of JSON, then the unchanged body."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kombu.utils.json import JSONEncoder, loads

from nsq.errors import InvalidMessage

_VERSION = "nsq-celery"

#: The header that counts how often the process that ran the task has died.
_DEATHS = "x-nsq-deaths"

_TEXT = (str, type(None))
_SECONDS = (int, float, type(None))
#: The types of what identifies a task and its result. Of others a worker ends, or never acknowledges them.
_TYPES: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "shadow": _TEXT,
    "id": (str, int, uuid.UUID),
    "correlation_id": (str, int, uuid.UUID, type(None)),
    "reply_to": _TEXT,
}
#: The types of the parts of a task's body: args, kwargs, and the tasks that follow.
_BODIES = ([list, dict, dict], [list, dict, type(None)])

# What kombu's ``dumps`` does, without making an encoder for each message.
_json = JSONEncoder().encode


@dataclass
class Envelope:
    """A message as ``Channel.prepare_message`` makes it; exchange and key are known when it is published."""

    body: str | bytes
    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    exchange: str = ""
    routing_key: str = ""

    @property
    def is_task(self) -> bool:
        return "task" in self.headers

    @property
    def transient(self) -> bool:
        return self.properties.get("delivery_mode") == 1

    @property
    def is_reply(self) -> bool:
        """Whether it answers a message, as the result of a task does. A task and another request have the
        property too, and say where to reply to.
        """
        return "correlation_id" in self.properties and "reply_to" not in self.properties

    @property
    def due(self) -> float | None:
        """When the task should run, in seconds since the epoch. None: at once, or Celery decides.

        An eta without a zone is in the application's time zone, which only Celery knows.
        """
        eta = self.headers.get("eta") if self.is_task else None
        if not eta:
            return None
        try:
            when = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
            return when.timestamp() if when.tzinfo is not None else None
        except (TypeError, ValueError, OverflowError):
            return None

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the task is due; 0 if Celery may have it at once."""
        due = self.due
        return 0.0 if due is None else max(0.0, due - now)

    @property
    def lifetime(self) -> float | None:
        """How many seconds after its publishing the message is of use, None for ever. Tasks live for ever
        here: Celery itself marks late ones as revoked.
        """
        expiration = self.properties.get("expiration")
        try:
            return None if self.is_task or not expiration else float(expiration) / 1000
        except (TypeError, ValueError):
            return None

    def count_death(self) -> int:
        """Count one more death of the process that ran the task; return how many there were."""
        try:
            deaths = int(self.headers.get(_DEATHS) or 0) + 1
        except (TypeError, ValueError):
            deaths = 1
        self.headers[_DEATHS] = deaths
        return deaths

    def check_task(self) -> None:
        """Raise InvalidMessage for what says that it is a task and cannot be one. Other messages pass."""
        fields, body = self.headers, None
        if self._is_plain_json:
            try:
                body = loads(self.body)
            except Exception as error:  # kombu's decoders of dates and the like raise whatever they want
                if self.is_task:
                    raise InvalidMessage(f"no task: its body cannot be decoded: {error}") from error
            if isinstance(body, dict):  # the first version of Celery's protocol
                fields = {**body, **fields}
                body = [body.get("args"), body.get("kwargs"), None]
        if not self.is_task and not ("task" in fields and "id" in fields):
            return
        if self._is_plain_json and not (isinstance(body, list) and list(map(type, body)) in _BODIES):
            raise InvalidMessage("no task: its body has no args and kwargs")
        if "id" not in fields:
            raise InvalidMessage("no task: it has no id")
        for name, kinds in _TYPES.items():
            for given in (fields, self.properties):
                if name in given and not isinstance(given[name], kinds):
                    raise InvalidMessage(f"no task: its {name!r} is {given[name]!r}")
        limits = fields.get("timelimit") or [None, None]
        if not (isinstance(limits, list) and len(limits) == 2):
            raise InvalidMessage(f"no task: its 'timelimit' is {limits!r}")
        if not all(isinstance(each, _SECONDS) for each in limits):
            raise InvalidMessage(f"no task: its 'timelimit' is {limits!r}")

    @property
    def _is_plain_json(self) -> bool:
        is_json = self.content_type == "application/json" and self.content_encoding in ("utf-8", None)
        return is_json and "compression" not in self.headers

    def encode(self) -> bytes:
        head = {
            _VERSION: 1,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "headers": self.headers,
            "properties": self.properties,
        }
        body = self.body.encode() if isinstance(self.body, str) else self.body
        return _json(head).encode() + b"\n" + body  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, data: bytes) -> Envelope:
        """Raise InvalidMessage for a message that was not published by this transport."""
        line, newline, body = data.partition(b"\n")
        try:
            head = loads(line) if newline else None
            if not isinstance(head, dict) or head.pop(_VERSION) != 1:
                raise ValueError("it has no head of version 1")
            envelope = cls(body, **head)
            if not (isinstance(envelope.headers, dict) and isinstance(envelope.properties, dict)):
                raise ValueError("its headers or properties are no object")
            if not (
                isinstance(envelope.content_type, _TEXT) and isinstance(envelope.content_encoding, _TEXT)
            ):
                raise ValueError("its content type or encoding is not a string")
            if not (isinstance(envelope.exchange, str) and isinstance(envelope.routing_key, str)):
                raise ValueError("its exchange or routing key is not a string")
            return envelope
        except Exception as error:  # kombu's decoders of dates and the like raise whatever they want
            raise InvalidMessage(f"not a message of Celery's: {error}") from error
