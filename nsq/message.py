"""A message as a handler gets it.

A message passes answers to its delegate, the connection it came over, which alone knows whether it is still
in flight. Must not import anything that knows a connection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, NoReturn, Protocol

from nsq.errors import AlreadyResponded


def shown_body(body: bytes) -> str:
    """The length of a body and its first 40 bytes, for reprs, and so for log lines."""
    return f"{len(body)} bytes: {body[:40]!r}{'…' if len(body) > 40 else ''}"


class MessageDelegate(Protocol):
    """Carries a message's answers to its nsqd. A method raises AlreadyResponded when the message is no longer
    in flight.
    """

    @property
    def address(self) -> str: ...

    @property
    def topic(self) -> str: ...

    def finish(self, message: Message, success: bool = True) -> None:
        """Finish a message. ``success`` tells whether that may end a backoff."""

    def finish_all(self, messages: list[Message]) -> None:
        """Finish the messages that still need an answer; raise nothing for the others."""

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...

    def touch(self, message: Message) -> None: ...

    def holds(self, message: Message) -> bool:
        """Whether the message is in flight: neither answered nor, as far as we know, timed out."""

    def time_out(self, message: Message) -> bool:
        """Drop a message that timed out before a handler began it; return whether it was in flight."""


class Message:
    """A message: ``id`` and ``body`` are bytes, ``timestamp`` is in nanoseconds since the epoch.

    ``attempts`` counts from 1. Any thread may answer a message, once; by default its handler's end does so.
    """

    __slots__ = (
        "_delegate",
        "attempts",
        "auto_response",
        "begun_at",
        "body",
        "expires_at",
        "id",
        "received_at",
        "timestamp",
    )
    #: When a handler has begun the message, on the monotonic clock; not set before: see ``begun``.
    begun_at: float

    def __init__(
        self,
        delegate: MessageDelegate,
        received_at: float,
        expires_at: float,
        timestamp: int,
        attempts: int,
        message_id: bytes,
        body: bytes,
    ) -> None:
        self._delegate = delegate
        #: When the message arrived, on the monotonic clock.
        self.received_at = received_at
        #: When nsqd gives the message to another consumer, on the monotonic clock.
        self.expires_at = expires_at
        #: When nsqd received the message, in nanoseconds since the epoch.
        self.timestamp = timestamp
        #: How many times nsqd has delivered the message, from 1.
        self.attempts = attempts
        #: The id that nsqd gave the message: 16 bytes.
        self.id = message_id
        #: The body, as it was published.
        self.body = body
        #: Whether the end of the handler answers the message.
        self.auto_response = True

    def __repr__(self) -> str:
        state = "" if self._delegate.holds(self) else ", no longer in flight"
        return f"<Message {self.id_text} of {self.topic}{state}, {self._shown()}>"

    def _shown(self) -> str:
        return f"attempt {self.attempts}, {shown_body(self.body)}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Message cannot be pickled, as its connection cannot: pass its body on")

    @property
    def id_text(self) -> str:
        """The id as text, in hexadecimal digits."""
        return self.id.decode("latin-1")

    @property
    def topic(self) -> str:
        return self._delegate.topic

    @property
    def nsqd_address(self) -> str:
        """The host:port of the nsqd that sent the message."""
        return self._delegate.address

    @property
    def responded(self) -> bool:
        """Whether the message needs no more answer: it has one, it has expired, or its connection is gone."""
        return not self._delegate.holds(self)

    @property
    def expired(self) -> bool:
        """Whether the message's time is up: nsqd has given it to another consumer, or will."""
        return time.monotonic() >= self.expires_at

    @property
    def time_left(self) -> float:
        """Seconds until the message expires."""
        return max(0.0, self.expires_at - time.monotonic())

    # Only a partitioned NSQ tells these; else they are None.

    @property
    def partition(self) -> int | None:
        """The topic's partition that the message belongs to."""
        return None

    @property
    def internal_id(self) -> int | None:
        """The number that nsqd gave the message; within a partition it only grows."""
        return None

    @property
    def trace_id(self) -> int | None:
        """The number that its publisher gave the message; 0 if there was none."""
        return None

    @property
    def offset(self) -> int | None:
        """Where the message begins in its partition, in bytes."""
        return None

    @property
    def size(self) -> int | None:
        """The bytes that the message takes up in its partition."""
        return None

    @property
    def headers(self) -> Mapping[str, Any] | None:
        """The headers that the message was published with, without those reserved for NSQ."""
        return None

    @property
    def tag(self) -> str | None:
        """The tag that the message was published with."""
        return None

    def json(self) -> Any:
        """Return the body, parsed as JSON. Raises ValueError if the body is not JSON."""
        return json.loads(self.body)

    def finish(self) -> None:
        """Tell nsqd that the message is done. Raises AlreadyResponded if it was answered or has timed out."""
        self._delegate.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Have nsqd deliver the message again after ``delay`` seconds; by default ``default_requeue_delay``
        for each attempt.

        It counts as a failure, for which the consumer may back off, unless ``backoff`` is false.
        """
        self._delegate.requeue(self, delay, backoff)

    def touch(self) -> None:
        """Restart the message's timeout from now."""
        self._delegate.touch(self)

    def disable_auto_response(self) -> None:
        """Do not answer at the handler's end: other code answers, later or in another thread."""
        self.auto_response = False

    def enable_auto_response(self) -> None:
        """Answer at the handler's end again."""
        self.auto_response = True

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Finish the message, or requeue it if the block raised. Does nothing if the block answered it.

        A block that was interrupted has not failed: after KeyboardInterrupt, or in a cancelled task of
        asyncio, the message comes again at once, and the consumer does not back off.
        """
        if not self._delegate.holds(self):
            return
        with suppress(AlreadyResponded):  # it expired between the look and the answer
            if kind is None:
                self.finish()
            elif issubclass(kind, Exception):
                self.requeue()
            else:
                self.requeue(0.0, backoff=False)

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.__exit__(kind, error, traceback)  # answers do not block


def finish_all(messages: Iterable[Message]) -> None:
    """Finish the messages that still need an answer; skip the others."""
    for delegate, own in groupby(messages, attrgetter("_delegate")):
        delegate.finish_all(list(own))


def finish_given_up(message: Message) -> None:
    """Finish a message that is given up: for backoff it counts neither as a success nor as a failure."""
    message._delegate.finish(message, False)


def begun(message: Message) -> float:
    """Return when a handler has begun the message, on the monotonic clock; 0.0 if none has."""
    return getattr(message, "begun_at", 0.0)


def time_out(message: Message) -> None:
    """Drop a message that timed out before a handler began it."""
    message._delegate.time_out(message)
