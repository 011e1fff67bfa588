"""Looking at messages over a temporary channel. Imports no Spark."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Sequence

from nsq.config import Config
from nsq.consumer.consumer import Consumer
from nsq.errors import ConnectionFailed, UsageError
from nsq.message import Message
from nsq.spark.batch.options import PeekOptions
from nsq.spark.batch.safety import Ask, Place, asking, safe_places
from nsq.wire.names import EPHEMERAL

#: Longer than anybody looks: an nsqd that was lost is not dialled again, as nobody has asked it then whether
#: looking takes something.
_NEVER = 3600.0

_MOST_IN_FLIGHT = 500
_STOPPING = 5.0


class Collection:
    """A handler that keeps so many messages and lets the others pass."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._messages: list[Message] = []
        self._full = threading.Event()

    def __call__(self, message: Message) -> None:
        with self._lock:
            if len(self._messages) < self._limit:
                self._messages.append(message)
            if len(self._messages) >= self._limit:
                self._full.set()

    def wait(self, seconds: float) -> None:
        """Until it is full, or the time is up."""
        self._full.wait(seconds)

    @property
    def messages(self) -> list[Message]:
        with self._lock:
            return list(self._messages)


def peek(options: PeekOptions, found: Sequence[Place], ask: Ask | None = None) -> list[Message]:
    """Messages that come within the time, copies of what other channels get."""
    ask = ask or asking(options.config)
    safe = safe_places(found, options.topic, ask)
    collection = Collection(options.limit)
    consumer = Consumer(
        options.topic,
        f"nsq-peek-{uuid.uuid4().hex[:12]}{EPHEMERAL}",
        nsqd=[place.tcp for place in safe],
        config=_config(options),
    )
    consumer.add_handler(collection)
    try:
        consumer.start()
        connecting = options.config.handshake_timeout
        if not consumer.wait_until_connected(connecting, connections=len(safe)):
            raise ConnectionFailed(
                f"not every nsqd of topic {options.topic!r} was reached: {consumer.health().summary}"
            )
        _ask_again(safe, options.topic, ask)
        collection.wait(options.timeout)
    finally:
        consumer.stop(_STOPPING)
    return collection.messages


def _ask_again(safe: Sequence[Place], topic: str, ask: Ask) -> None:
    """The last lasting channel may have been deleted between the question and the look."""
    try:
        safe_places(safe, topic, ask)
    except UsageError as error:
        raise UsageError(
            f"a channel was deleted while the look began; what was published just then may be lost: {error}"
        ) from None


def _config(options: PeekOptions) -> Config:
    return dataclasses.replace(
        options.config,
        max_in_flight=min(options.limit, _MOST_IN_FLIGHT),
        reconnect_initial=_NEVER,
        reconnect_max=_NEVER,
        max_attempts=0,
    )
