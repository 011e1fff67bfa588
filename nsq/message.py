"""A message as a handler gets it.

It answers through a delegate, the connection it came over, which alone knows whether it is still in flight.
Must not import anything that knows a connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import NoReturn, Protocol

from nsq.errors import AlreadyResponded


class MessageDelegate(Protocol):
    """Carries a message's answers to its nsqd. Each raises AlreadyResponded when it is not in flight
    any more.
    """

    @property
    def address(self) -> str: ...

    def finish(self, message: Message) -> None: ...

    def finish_all(self, messages: list[Message]) -> None:
        """Finish the messages that still need an answer; raise nothing for the others."""

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...

    def touch(self, message: Message) -> None: ...

    def holds(self, message: Message) -> bool:
        """Whether it is in flight: neither answered nor, as far as known here, timed out."""


class Message:
    """``id`` and ``body`` are bytes; ``timestamp`` counts nanoseconds since the epoch, ``attempts`` from 1.

    Any thread may answer it, once. A handler's return answers for it unless it has been told not to.
    """

    __slots__ = (
        "_delegate",
        "attempts",
        "auto_response",
        "body",
        "expires_at",
        "id",
        "received_at",
        "timestamp",
    )

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
        self.received_at = received_at  # on the monotonic clock, as is
        self.expires_at = expires_at  # when nsqd gives it to another consumer
        self.timestamp = timestamp
        self.attempts = attempts
        self.id = message_id
        self.body = body
        self.auto_response = True

    def __repr__(self) -> str:
        return f"<Message {self.id.decode('latin-1')} attempt {self.attempts}, {len(self.body)} bytes>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Message cannot be pickled, as its connection cannot: pass its body on")

    @property
    def nsqd_address(self) -> str:
        """host:port of the nsqd it came from."""
        return self._delegate.address

    @property
    def responded(self) -> bool:
        """Whether it needs no answer any more: it has one, or it has expired, or its connection is gone."""
        return not self._delegate.holds(self)

    @property
    def expired(self) -> bool:
        """Whether its time is up: nsqd has given it to another consumer, or will."""
        return time.monotonic() >= self.expires_at

    @property
    def time_left(self) -> float:
        """Seconds until then."""
        return max(0.0, self.expires_at - time.monotonic())

    def finish(self) -> None:
        """It is done. Raises AlreadyResponded when it was answered before, or timed out meanwhile."""
        self._delegate.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Deliver it again, after so many seconds; by default after ``default_requeue_delay`` for each
        attempt.

        Tells the consumer to back off, unless ``backoff`` is false.
        """
        self._delegate.requeue(self, delay, backoff)

    def touch(self) -> None:
        """Give it its whole time again, from now on."""
        self._delegate.touch(self)

    def disable_auto_response(self) -> None:
        """Leave the answer to other code, which runs later or in another thread."""
        self.auto_response = False

    def enable_auto_response(self) -> None:
        self.auto_response = True

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Finish it, or requeue it when the block raised; nothing if it was answered inside."""
        if not self._delegate.holds(self):
            return
        with suppress(AlreadyResponded):  # it expired between the look and the answer
            if kind is None:
                self.finish()
            else:
                self.requeue()


def finish_all(messages: Iterable[Message]) -> None:
    """Finish the messages that still need an answer; pass over the others."""
    for delegate, own in groupby(messages, attrgetter("_delegate")):
        delegate.finish_all(list(own))
