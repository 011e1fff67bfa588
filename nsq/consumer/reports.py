"""A consumer's reports: snapshots, and hooks for metrics and tracing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsq.errors import NsqError, ServerError
from nsq.log import Logger
from nsq.message import Message
from nsq.threads.waiters import Callbacks

if TYPE_CHECKING:
    from nsq.connection.conn import Conn
    from nsq.consumer.engine import Engine

log = Logger("nsq.consumer")


@dataclass(frozen=True, kw_only=True)
class ConsumerStats:
    """Totals since the start, also over connections that are gone."""

    received: int
    finished: int
    requeued: int
    timed_out: int
    given_up: int
    in_flight: int
    waiting: int
    connections: int
    order_errors: int = 0


@dataclass(frozen=True, kw_only=True)
class ConnectionHealth:
    """One nsqd: its RDY and the reason for it."""

    nsqd_address: str
    rdy: int
    reason: str
    in_flight: int
    seconds_connected: float
    seconds_since_message: float
    partition: int | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionHealth:
    """One partition of a topic whose messages are handled in order. If its message has failed, the partition
    is stuck: ``stuck_at`` shows the message, ``stuck_seconds`` the time since its first failure, ``error``
    what its handler has raised, or why it could not be given up.
    """

    partition: int
    stopped: bool = False
    attempts: int = 0
    stuck_seconds: float = 0.0
    stuck_at: str = ""
    error: str = ""
    order_errors: int = 0

    @property
    def stuck(self) -> bool:
        return bool(self.stuck_at)


@dataclass(frozen=True, kw_only=True)
class ConsumerHealth:
    """A consumer's health: ``ok`` tells whether messages can arrive; ``summary`` puts it in a sentence."""

    ok: bool
    summary: str
    state: str
    max_in_flight: int
    paused: bool
    starved: bool
    backoff_level: int
    failure_share: float = 0.0
    """The share of failures among the last calls of handlers; the consumer backs off at ``backoff_after``."""
    connections: list[ConnectionHealth] = field(default_factory=list)
    partitions: list[PartitionHealth] = field(default_factory=list)
    missing_partitions: list[int] = field(default_factory=list)
    """Partitions of the topic that no nsqd leads at the moment."""
    threads: int = 0
    """The threads of the consumer: two for each connection, the handlers', and a few more."""
    discovery: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """The result of a stop. ``clean`` if nothing was left; else nsqd delivers ``in_flight`` messages again.

    ``cut_off`` lists the nsqds that did not end the connection in time: they may not have received our last
    answers.
    """

    clean: bool
    in_flight: int = 0
    cut_off: list[str] = field(default_factory=list)
    unfinished_threads: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.clean


# Making them: any thread.


def stats_of(engine: Engine) -> ConsumerStats:
    conns, gone = engine.connections.table_and_totals
    received, finished, requeued, timed_out = added(gone, conns.values())
    stats = ConsumerStats(
        received=received,
        finished=finished,
        requeued=requeued,
        timed_out=timed_out,
        given_up=engine.given_up,
        in_flight=sum([conn.deliveries.in_flight for conn in conns.values()]),
        waiting=engine.pool.inbox.qsize(),
        connections=len(conns),
    )
    return engine.dialect.stats(stats)


def health_of(engine: Engine) -> ConsumerHealth:
    now = time.monotonic()
    conns = sorted(engine.connections.table.values(), key=lambda conn: conn.address)
    connections = [
        ConnectionHealth(
            nsqd_address=conn.address,
            rdy=conn.deliveries.rdy,
            reason=engine.connections.windows.reason(conn),
            in_flight=conn.deliveries.in_flight,
            seconds_connected=now - conn.connected_at,
            seconds_since_message=now - conn.last_message_at,
            partition=conn.key[1] if isinstance(conn.key[1], int) else None,
        )
        for conn in conns
    ]
    threads = engine.owner.exists + len(engine.discovery.threads)
    threads += sum([thread.is_alive() for thread in engine.endpoints.threads])
    if engine.running:
        threads += len(engine.pool) + engine.reporter.hooked
    endpoints = sorted(engine.endpoints.all, key=lambda endpoint: endpoint.label)
    discovery = engine.discovery.health() + [endpoint.words(now) for endpoint in endpoints]
    health = ConsumerHealth(
        ok=any(connection.rdy for connection in connections),
        summary=_summary(engine, connections),
        state=engine.state,
        max_in_flight=engine.connections.windows.max_in_flight,
        paused=engine.connections.windows.paused,
        starved=engine.connections.starved,
        backoff_level=engine.connections.windows.backoff.level,
        failure_share=engine.connections.failure_share,
        connections=connections,
        threads=threads,
        discovery=discovery if engine.running else [],
    )
    return engine.dialect.health(health)


def _summary(engine: Engine, connections: list[ConnectionHealth]) -> str:
    if engine.state != "running":
        return engine.state
    if engine.refusal is not None and not isinstance(engine.refusal, ServerError):
        return str(engine.refusal)  # of the user's options; those of nsqds are among the reasons below
    if not connections:
        endpoints = sorted(engine.endpoints.all, key=lambda endpoint: endpoint.label)
        reasons = dict.fromkeys(each.reason for each in endpoints if each.backoff.reason is not None)
        if engine.refusal is not None and not reasons:
            reasons[str(engine.refusal)] = None
        return "; ".join(["no connection to any nsqd", *itertools.islice(reasons, 3)])
    stuck = [connection for connection in connections if not connection.rdy]
    many, open_ones = len(connections), len(connections) - len(stuck)
    if not open_ones:
        return f"no nsqd may send: {stuck[0].reason}"
    if many == 1:
        return "1 connection, which may send"
    return f"{many} connections, {open_ones if stuck else 'all'} of which may send"


def added(gone: list[int], conns: Iterable[Conn]) -> list[int]:
    """Add the connections' totals (received, finished, requeued, timed out) to those of ended ones."""
    return [sum(each) for each in zip(gone, *[conn.deliveries.totals for conn in conns], strict=True)]


# Hooks.


class ConsumerHooks:
    """Base class for hooks: override the methods that you need; all of them do nothing.

    Hooks run on a thread of their own, in the order of events: a slow hook delays other hooks, never a
    message.
    """

    def connected(self, nsqd_address: str) -> None:
        """Called when a connection has subscribed."""

    def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
        """Called at a connection's end; ``cause`` is None if the end was intended."""

    def heartbeat(self, nsqd_address: str) -> None:
        """Called when nsqd has sent a heartbeat, which the client answers."""

    def received(self, messages: list[Message]) -> None:
        """Called with the messages of a chunk that has arrived."""

    def finished(self, message: Message) -> None:
        """Called when FIN is sent for a message."""

    def requeued(self, message: Message) -> None:
        """Called when REQ is sent for a message: nsqd delivers it again."""

    def timed_out(self, message: Message) -> None:
        """Called when a message's time was up before it was answered: nsqd delivers it again."""

    def given_up(self, message: Message) -> None:
        """Called when a message is given up: it gets no other attempt."""

    def server_error(self, nsqd_address: str, error: ServerError) -> None:
        """Called for an error frame, such as E_FIN_FAILED; also for one that refuses the subscription, such
        as E_UNAUTHORIZED.
        """

    def stuck(self, message: Message) -> None:
        """Called when a message of an ordered consumer has failed ``stuck_after`` times, and again after as
        many more: its partition waits for it.
        """

    def out_of_order(self, message: Message) -> None:
        """Called when nsqd delivers a message that comes before the one that was finished last."""

    def partitions_changed(self, before: int, after: int) -> None:
        """Called when the topic's number of partitions has changed: keys go to other partitions now."""

    def backing_off(self, level: int) -> None:
        """Called when delivery stops for a while; ``level`` is 0 when it is back to normal."""


class Reporter:
    """How a consumer says what happens: log lines with its name and fields, and the user's hooks, which are
    called on a thread of their own.
    """

    def __init__(self, topic: str, channel: str, hooks: ConsumerHooks | None) -> None:
        self.name = f"nsq-{topic}/{channel}"
        self.hooks = hooks or ConsumerHooks()
        self.hooked = hooks is not None  # without hooks, events cost nothing
        self.callbacks = Callbacks(f"{self.name}-hooks", log)
        self._fields = {"nsq_topic": topic, "nsq_channel": channel}

    def tell(self, hook: Callable[..., None], *args: object) -> None:
        if self.hooked:
            self.callbacks.tell(hook, *args)

    def log(self, level: int, text: str, *values: object, address: str = "") -> None:
        """Log a line that begins with the consumer's name."""
        log.log(level, text, self.name, *values, extra=self.fields(address))

    def fields(self, address: str = "") -> dict[str, str]:
        return {**self._fields, "nsqd_address": address} if address else self._fields.copy()
