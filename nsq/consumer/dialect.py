"""What a consumer does in one way in the original NSQ, and in another in a partitioned one.

A consumer begins with ``Original``. ``nsq.partitioned`` has the other dialects. It is loaded when an
nsqlookupd belongs to such an NSQ, or when the user gives options that only that has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from nsq.connection.endpoint import Key
from nsq.consumer.handlers import HandlerPool
from nsq.consumer.rdy import RdyWindows
from nsq.consumer.reports import ConsumerHealth, ConsumerStats
from nsq.discovery.lookups import Asker, Discovery
from nsq.errors import NsqError, ServerError
from nsq.message import Message

if TYPE_CHECKING:
    from nsq.consumer.engine import Engine


class Dialect(Protocol):
    """The owner calls the methods, except where noted. The engine takes the first four when it is made."""

    @property
    def windows(self) -> type[RdyWindows]: ...

    def make_pool(self, **arguments: Any) -> HandlerPool:
        """Return the handlers' pool, made with these arguments and others."""

    @property
    def put(self) -> Callable[[list[Message]], None]:
        """What read loops call with messages that have come."""

    def expects(self, error: ServerError) -> bool:
        """Return whether nsqd had to send this error, so that no log or hook reports it. For read loops."""

    def turn(self, now: float) -> float:
        """Do what is due for messages that wait here; return when to call this again."""

    def asker(self, discovery: Discovery) -> Asker:
        """Return what finds the nsqds of a partitioned NSQ. Called once, by discovery's thread."""

    def refused(self, key: Key, error: NsqError) -> bool:
        """Note a failed dial or subscription; return whether that is expected to pass soon. Any thread."""

    def lost(self, key: Key, cause: NsqError | None) -> None:
        """Note the end of a connection. ``cause`` is None if we asked for it."""

    def stats(self, known: ConsumerStats) -> ConsumerStats:
        """Return the totals with what is known here. Any thread."""

    def health(self, known: ConsumerHealth) -> ConsumerHealth:
        """Return the health with what is known here. Any thread."""


#: Returns the dialect of a partitioned NSQ, with these options that only that has.
OtherDialect = Callable[["Engine", Mapping[str, Any]], Dialect]


class Original:
    """The original NSQ: every nsqd with the topic has a connection, and messages come in any order."""

    windows = RdyWindows

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def make_pool(self, **arguments: Any) -> HandlerPool:
        engine = self._engine
        return HandlerPool(
            max_attempts=engine.config.max_attempts,
            requeue_delay=lambda attempts, error: engine.connections.requeue_delay(attempts, error),
            **arguments,
        )

    @property
    def put(self) -> Callable[[list[Message]], None]:
        return self._engine.pool.put

    def expects(self, error: ServerError) -> bool:
        return False

    def turn(self, now: float) -> float:
        return math.inf

    def asker(self, discovery: Discovery) -> Asker:
        self._engine.dialect = other = self._engine.other_dialect(self._engine, {})
        return other.asker(discovery)

    def refused(self, key: Key, error: NsqError) -> bool:
        return False

    def lost(self, key: Key, cause: NsqError | None) -> None: ...

    def stats(self, known: ConsumerStats) -> ConsumerStats:
        return known

    def health(self, known: ConsumerHealth) -> ConsumerHealth:
        return known
