"""What a consumer does in one way in the original NSQ, and in another in a partitioned one.

A consumer begins with ``Original``. ``nsq.partitioned.consuming`` has the other dialect. It is loaded when an
nsqlookupd turns out to belong to a partitioned NSQ, or when the user gives options that only that has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from nsq.connection.endpoint import Key
from nsq.consumer.handlers import HandlerPool
from nsq.consumer.rdy import RdyWindows
from nsq.consumer.reports import PartitionHealth
from nsq.discovery.lookups import Asker, Discovery
from nsq.errors import NsqError, ServerError, UsageError
from nsq.message import Message

if TYPE_CHECKING:
    from nsq.consumer.engine import Engine


class Dialect(Protocol):
    """The owner calls the methods, except where noted."""

    # How messages are handled: the engine takes these when it is made.

    @property
    def windows(self) -> type[RdyWindows]: ...

    def make_pool(self, arguments: Mapping[str, Any]) -> HandlerPool:
        """Return the handlers' pool, made with these arguments and others."""

    def put(self, messages: list[Message]) -> None:
        """Take messages that have come. Called by read loops."""

    def expects(self, error: ServerError) -> bool:
        """Return whether nsqd had to send this error, so that no log or hook reports it. Any thread."""

    def turn(self, now: float) -> float:
        """Do what is due for messages that wait here; return when to call this again."""

    # Which connections there are.

    def asker(self, discovery: Discovery) -> Asker:
        """Return what finds the connections to have. Called by discovery's thread, once."""

    def refused(self, key: Key, error: NsqError) -> bool:
        """Note a failed dial or subscription; return whether that is expected to pass soon. Any thread."""

    def lost(self, key: Key, cause: NsqError | None) -> None:
        """Note the end of a connection. ``cause`` is None if we asked for it."""

    def endpoints_changed(self, count: int) -> None:
        """Note how many endpoints there are now."""

    # Reports and requests: any thread.

    @property
    def missing(self) -> tuple[int, ...]:
        """The partitions of the topic that no nsqd has at the moment."""

    @property
    def requeued_here(self) -> int:
        """The requeues that nsqd knows nothing of: the message waits here for its next attempt."""

    def partitions(self, now: float) -> list[PartitionHealth]:
        """Return the health of each partition that is handled in order."""

    def troubles(self) -> str:
        """Name the partitions that deliver nothing, as the end of a sentence."""

    def dead_letter_addresses(self) -> tuple[set[str], set[str]]:
        """Return where dead letters are published: nsqds, or else nsqlookupds."""

    def trace(self, on: bool) -> None:
        """Log each message from now on, or stop that."""


class Original:
    """The original NSQ: every nsqd with the topic has a connection, and messages come in any order."""

    windows = RdyWindows
    missing: tuple[int, ...] = ()
    requeued_here = 0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._traced = False

    def make_pool(self, arguments: Mapping[str, Any]) -> HandlerPool:
        engine = self._engine
        return HandlerPool(
            max_attempts=engine.config.max_attempts,
            requeue_delay=lambda attempts: engine.connections.requeue_delay(attempts),
            **arguments,
        )

    def put(self, messages: list[Message]) -> None:
        self._engine.pool.put(messages)

    def expects(self, error: ServerError) -> bool:
        return False

    def turn(self, now: float) -> float:
        return math.inf

    def asker(self, discovery: Discovery) -> Asker:
        self._engine.dialect = other = _other(self._engine, {})
        if self._traced:
            other.trace(True)
        return other.asker(discovery)

    def refused(self, key: Key, error: NsqError) -> bool:
        return False

    def lost(self, key: Key, cause: NsqError | None) -> None: ...

    def endpoints_changed(self, count: int) -> None: ...

    def partitions(self, now: float) -> list[PartitionHealth]:
        return []

    def troubles(self) -> str:
        return ""

    def dead_letter_addresses(self) -> tuple[set[str], set[str]]:
        return {each.address for each in self._engine.endpoints.all}, set()

    def trace(self, on: bool) -> None:
        discovery = self._engine.discovery
        if not discovery.asks or discovery.kind == "original":
            raise UsageError("tracing needs a partitioned NSQ and its nsqlookupds: give nsqlookupd")
        self._traced = on
        if self._engine.dialect is not self:  # replaced meanwhile
            self._engine.dialect.trace(on)


def dialect_for(engine: Engine, options: Mapping[str, Any]) -> Dialect:
    """Return the dialect that a consumer with these options begins with."""
    return _other(engine, options) if options else Original(engine)


def _other(engine: Engine, options: Mapping[str, Any]) -> Dialect:
    from nsq.partitioned.ordered import other_dialect

    dialect: Dialect = other_dialect(engine, options)
    return dialect
