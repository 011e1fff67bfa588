"""One nsqd of a producer: its publishes, from the connection's queue to nsqd's answer.

The write thread joins and sends what waits, the read thread matches answers to it. The read thread writes all
attributes, except where noted; other threads read them.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING

from nsq.connection.backoff import Pauses
from nsq.connection.conn import Conn, ConnDelegate
from nsq.connection.endpoint import Endpoint, Status
from nsq.errors import (
    ConnectionFailed,
    ConnectionLost,
    MpubFailed,
    NsqError,
    ServerError,
    Unanswered,
    WireError,
)
from nsq.log import Logger
from nsq.message import Message
from nsq.producer.answers import PLAIN, Verdict
from nsq.producer.own import OwnConns, draining
from nsq.producer.publishes import QUEUED, SENT, Publish
from nsq.producer.reports import ConnectionState, ConnectionStats
from nsq.wire import commands

if TYPE_CHECKING:
    from nsq.connection.endpoint import Wanted
    from nsq.producer.pool import Pool

log = Logger("nsq.producer")

#: Bytes that the write loop takes at a time: publishes it has not taken can be cancelled or sent elsewhere.
_CHUNK = 512 * 1024
#: The most messages and bytes of one MPUB made of joined publishes.
_JOINED_MESSAGES, _JOINED_BYTES = 1000, 512 * 1024


class PublishingEndpoint(Endpoint, ConnDelegate):
    """One nsqd of a producer."""

    def __init__(self, wanted: Wanted, pool: Pool) -> None:
        setup, config, clock = pool.setup, pool.setup.config, pool.setup.clock
        pauses = Pauses(config.reconnect_initial, config.reconnect_max, setup.chance)
        super().__init__(wanted, config, clock, pauses.draw_late)
        self.number = wanted.number
        self.overdue = False  # a publish waited in vain: other nsqds come first; set by the pool's thread
        self.published = 0  # messages
        self.failed = 0  # publishes
        self._pool, self._context = pool, setup.context
        self.sent: deque[list[Publish]] = deque()  # batches without an answer, in the order of the wire
        self.asked_at = 0.0  # when nsqd last answered, or got the oldest of ``sent``
        self.has_stored = False  # whether nsqd has stored something over this connection
        self._error: NsqError | None = None  # why we closed this connection
        self._server_stopped = False  # nsqd executes no more commands on this connection
        self._caller_error = False  # a caller's mistake made nsqd close the connection; nsqd is well
        self._again: deque[Publish] = deque()  # publishes to send elsewhere after the connection's end
        self._largest = config.max_body_size if config.coalesce else 0  # bytes of a joined MPUB
        self.own = OwnConns(wanted.address, config, clock, pool.dispose)

    # The pool's thread.

    def stop(self) -> None:
        self.own.stop()
        super().stop()
        if self.conn is not None and self.status is Status.CONNECTED:
            self.conn.close(after_writing=True)

    def cut_off(self, exempt: Container[int | None] = ()) -> None:
        """End all connections at once, except those that the ``exempt`` threads use."""
        self.own.cut_off(exempt)
        super().cut_off()

    def abandon(self) -> None:
        self.own.abandon()
        super().abandon()

    # Connections come and go: the read thread.

    def make_conn(self) -> Conn:
        # New deques: a write loop that ends late must not touch those of the next connection.
        self.sent, self._again = deque(), deque()
        self._error, self.has_stored, self._server_stopped, self._caller_error = None, False, False, False
        self.overdue = False
        return Conn(
            self.address,
            self._config,
            self,
            transport=self._pool.nsqds.transport,
            context=self._context,
            encode=partial(self._encode, sent=self.sent),
        )

    def connected(self, conn: Conn) -> None:
        if conn.reply.draining:
            raise draining(self.address)
        log.info("connected to %s", self.address, extra={"nsqd_address": self.address})
        if conn.reply.partitioned:
            self._pool.detection.warn_of_partitions(self.address, conn.reply.version)

    def refused(self, error: NsqError, news: bool) -> None:
        if not self._stopped:
            log.log(
                logging.WARNING if news else logging.DEBUG,
                "no connection to %s, next try in %.1f s or when it is needed: %s",
                self.address,
                self.backoff.pause,
                error,
                extra={"nsqd_address": self.address},
            )

    # Sending: the write thread.

    def _encode(self, waiting: deque[Publish | bytes], sent: deque[list[Publish]]) -> bytes:
        """Take waiting publishes, join them to commands, and note the order in which nsqd must answer."""
        taken: list[Publish] = []
        parts: list[bytes] = []
        size = 0
        try:
            while size < _CHUNK:
                item = waiting.popleft()
                if isinstance(item, bytes):  # the answer to a heartbeat
                    parts.append(item)
                    continue
                item.state = SENT  # first: see ``Publish``
                if item.claim.acquire(False):
                    taken.append(item)
                    size += item.size
                else:
                    item.state = QUEUED
        except IndexError:
            pass
        if taken:
            if not sent:
                self.asked_at = self._clock()
            batches = [taken] if len(taken) == 1 else join(taken, self._largest)
            sent.extend(batches)
            parts.extend(map(command_of, batches))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Answers: the read thread, in the connection's read loop.

    def on_ok(self, conn: Conn, count: int) -> None:
        if isinstance(self._error, WireError):
            return  # replies can no longer be matched to requests
        answered: list[Publish] = []
        try:
            for _ in range(count):
                batch = self.sent.popleft()
                answered += batch
                self.published += batch[0].messages if len(batch) == 1 else len(batch)
        except IndexError:
            self._desynchronized("an OK to nothing")
        if not answered:
            return
        self._server_stopped = False  # a foreign server, which goes on after a fatal error
        self.asked_at = self._clock()
        if not self.has_stored or self.overdue:
            self.has_stored, self.overdue = True, False
            self._largest = self._config.max_body_size if self._config.coalesce else 0
            self.backoff.succeeded()
            self._pool.owner.wake()
        self._pool.complete(answered, None)

    def on_response(self, conn: Conn, data: bytes) -> None:
        if isinstance(self._error, WireError):
            return
        batch = self.sent[0] if self.sent else []
        if batch and batch[0].rules.accepts(batch[0], data):
            self.on_ok(conn, 1)
        else:
            self._desynchronized(repr(data[:80]))

    def on_error(self, conn: Conn, error: ServerError) -> None:
        if isinstance(self._error, WireError):
            return
        batch = self.sent.popleft() if self.sent else []
        now = self._clock()
        took, self.asked_at = now - self.asked_at, now
        rules, retry = batch[0].rules if batch else PLAIN, self._config.retry_uncertain
        verdicts = rules.refused(batch, error, self.address, retry_uncertain=retry, took=took)
        if isinstance(error, MpubFailed):
            self._largest = 0  # no joining: nsqd can refuse each publish, which then goes elsewhere
        if error.fatal:  # nsqd closes too, and executes no more commands
            self._server_stopped, self._caller_error = True, bool(batch) and rules.dial_at_once(error)
            self.break_off(error)
        self.failed += sum(not (each.again and each.publish.no_batching) for each in verdicts)
        self._carry_out(verdicts)
        if self._again and self._error is None:  # the connection goes on
            again, self._again = self._again, deque()
            self._pool.take_back(again)

    def on_heartbeat(self, conn: Conn) -> None:
        """Close the connection if publishes stay unanswered despite heartbeats."""
        patience = self._config.read_timeout
        if self.sent and self._clock() - self.asked_at > patience:
            self.break_off(
                Unanswered(f"{self.address} sends heartbeats, but has not answered for {patience:g} s")
            )

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        self.break_off(WireError(f"{self.address} sent messages to a connection that only publishes"))

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        cause = self._error or cause or ConnectionLost(f"the connection to {self.address} was closed")
        self._judge(cause)
        self.own.drop_idle()
        verdicts: list[Verdict] = []
        while self.sent:
            batch = self.sent.popleft()
            executed, retry = not self._server_stopped, self._config.retry_uncertain
            lost = batch[0].rules.lost
            verdicts += lost(batch, cause, self.address, executed=executed, retry_uncertain=retry)
        self.failed += 0 if self._server_stopped else len(verdicts)
        self._carry_out(verdicts)
        # In one call, to keep the order: refused publishes, those sent after them, those not sent.
        self._pool.take_back(self._again, conn.waiting)
        if not self._stopped:
            fields = {"nsqd_address": self.address}
            log.warning("the connection to %s is lost: %s", self.address, cause, extra=fields)

    def _judge(self, cause: NsqError) -> None:
        """Set the pause before the next dial: none if the connection worked."""
        now = self._clock()
        if self._caller_error:
            self.backoff.lost(None, now)
        elif self.has_stored and isinstance(cause, ConnectionFailed):
            self.backoff.lost(cause, now)
        else:
            self.backoff.failed(cause, now)

    def _carry_out(self, verdicts: list[Verdict]) -> None:
        for publish, error, retry in verdicts:
            if retry and not publish.done():
                publish.try_again()
                self._again.append(publish)
            else:
                self._pool.complete([publish], error)

    def _desynchronized(self, what: str) -> None:
        self.break_off(
            WireError(f"{self.address} answered with {what}: its answers cannot be matched any more")
        )

    def break_off(self, error: NsqError) -> None:
        """End the connection for this reason. Any thread may call this."""
        self._error = self._error or error
        super().cut_off()

    # State and reports.

    @property
    def open(self) -> Conn | None:
        """The connection, if it takes publishes. Read once: another may replace it at any moment."""
        conn = self.conn
        return conn if conn is not None and self.status is Status.CONNECTED and conn.open else None

    @property
    def pending(self) -> int:
        """Count the publishes that wait here or have no answer, also those whose caller has given up."""
        waiting = len(self.conn.waiting) if self.conn is not None else 0
        return waiting + sum(map(len, self.sent.copy()))

    def cannot_succeed(self, since: float) -> bool:
        """Whether the last dial, made after ``since`` or a moment ago, failed for a reason that stays."""
        backoff = self.backoff
        if not backoff.final:
            return False
        return backoff.failed_at >= since or (
            not self.dialing and self._clock() < backoff.due_at(urgent=True)
        )

    @property
    def state(self) -> ConnectionState:
        if self.open:
            return "overdue" if self.overdue else "open"
        if self.dialing:
            return "dialing"
        return "paused" if self._clock() < self.backoff.due_at(urgent=False) else "idle"

    def stats(self) -> ConnectionStats:
        return ConnectionStats(
            address=self.address,
            state=self.state,
            pending=self.pending,
            published=self.published + self.own.published,
            failed=self.failed + self.own.failed,
            reason=str(self.backoff.reason or ""),
        )


# Joining.


def join(publishes: list[Publish], largest: int) -> list[list[Publish]]:
    """Return batches that are sent as one command each; they keep the order within every destination.

    Messages of one destination that wait together become one MPUB of at most ``largest`` bytes (0: no
    joining). Larger messages go alone, as do publishes with a command of their own.
    """
    largest = min(largest, _JOINED_BYTES)
    rows: defaultdict[str, list[Publish]] = defaultdict(list)
    for publish in publishes:
        rows[publish.destination].append(publish)
    batches: list[list[Publish]] = []
    for row in rows.values():
        batch, used = list[Publish](), largest  # full: the first one begins a batch
        for publish in row:
            size = 4 + publish.size
            used += size
            alone = publish.no_batching or publish.command is not None
            if used <= largest and len(batch) < _JOINED_MESSAGES and not alone:
                batch.append(publish)
                continue
            batch, used = [publish], 4 + size  # 4: the count of the messages
            batches.append(batch)
            if alone or used > largest:
                used = largest  # full: later publishes begin a new batch after this one
    return batches


def command_of(batch: list[Publish]) -> bytes:
    first = batch[0]
    if first.command is not None:
        return first.command
    if len(batch) == 1:
        return commands.pub(first.destination, first.body)
    return commands.mpub(first.destination, [publish.body for publish in batch])
