"""One nsqd of a consumer: its messages, from the connection to the handlers, and their answers back.

The read loop puts messages into the handlers' inbox; it never waits. A thread that answers a message claims
it first, and its answer goes into the connection's queue. While the consumer backs off, the owner puts it
there, behind the RDY that follows from it.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from nsq.config import Config
from nsq.connection.backoff import Pauses
from nsq.connection.conn import Conn, ConnDelegate
from nsq.connection.endpoint import Endpoint, Status, Wanted
from nsq.connection.handshake import describe
from nsq.consumer.rdy import Outcome
from nsq.errors import Closed, NsqError, ServerError
from nsq.log import Logger
from nsq.message import Message

if TYPE_CHECKING:
    from nsq.consumer.engine import Engine

log = Logger("nsq.consumer")

#: Seconds. If a connection lived at least so long, and longer than the longest pause before the next dial, it
#: was a good one: pauses begin anew. An nsqd that accepts and then hangs up never gets there.
_STEADY = 10.0


class ConsumingEndpoint(Endpoint, ConnDelegate):
    """One nsqd of a consumer, for one subscription."""

    def __init__(self, wanted: Wanted, engine: Engine, config: Config, pauses: Pauses) -> None:
        super().__init__(wanted, config, time.monotonic, pauses.draw)
        self._engine, self._pauses, self._hooked = engine, pauses, engine.hooked
        self._flow, self._windows, self._pool = engine.flow, engine.windows, engine.pool

    def make_conn(self) -> Conn:
        return Conn(
            self.address,
            self._config,
            self,
            transport=self._engine.transport,
            context=self._engine.context,
            subscription=self.subscription,
        )

    def connected(self, conn: Conn) -> None:
        self._engine.adopt(self, conn)
        if self.status is not Status.CONNECTED:  # the owner stops, and carries the request out no more
            raise Closed(f"the connection to {self.address} is not needed any more")

    def refused(self, error: NsqError, news: bool) -> None:
        """Log and report that a dial has failed, unless it failed so before."""
        engine, wanted = self._engine, self.wanted
        passing = wanted is not None and engine.discovery.refused(wanted.key, error)
        if not news or isinstance(error, Closed):
            return
        level = logging.INFO if passing else logging.WARNING
        reason = describe(self.address, error)
        log.log(level, "no connection to an nsqd, trying again: %s", reason, extra=self._fields)
        if isinstance(error, ServerError) and not error.retry:
            engine.tell(engine.hooks.server_error, self.address, error)

    def ended(self, conn: Conn, cause: NsqError | None) -> None:
        now = self._clock()
        if cause is None:  # as we ordered; it may be wanted again meanwhile
            self.backoff.lost(None, now)
            return
        if now - conn.connected_at >= max(_STEADY, self._pauses.ceiling(self.backoff.failures)):
            self.backoff.failures = 0
        self.backoff.failed(cause, now)
        self._engine.discovery.ask_soon()

    @property
    def _fields(self) -> dict[str, str]:
        """Return the fields of a structured log line."""
        return self._engine.fields(self.address)

    # Its connection's delegate: the loops, and threads that answer.

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        now = conn.last_message_at
        nsqd = self._windows.nsqds.get(conn)
        if nsqd is not None:
            silent = now - nsqd.last_message_at
            nsqd.last_message_at = nsqd.has_sent_at = now
            if silent >= self._config.low_rdy_idle_timeout:
                self._flow.request_decision()  # this nsqd's share grows again
        if self._hooked:
            self._engine.tell(self._engine.hooks.received, messages)
        self._pool.put(messages)

    def on_error(self, conn: Conn, error: ServerError) -> None:
        if self._engine.pool.expects(error):
            return
        level = logging.ERROR if error.fatal else logging.WARNING
        log.log(level, "%s: nsqd %s: %s", self._engine.name, conn.address, error, extra=self._fields)
        self._engine.tell(self._engine.hooks.server_error, conn.address, error)

    def on_heartbeat(self, conn: Conn) -> None:
        self._engine.tell(self._engine.hooks.heartbeat, conn.address)

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        self._engine.owner.ask(partial(self._engine.forget, conn, cause))

    def wants_answers(self) -> bool:
        return self._hooked or self._windows.backoff.level > 0 or self._windows.below_target

    def on_finished(self, conn: Conn, message: Message) -> bool:
        if self._hooked:
            self._engine.tell(self._engine.hooks.finished, message)
        windows = self._windows
        if windows.backoff.level:  # the RDY that follows from this answer goes out before it
            self._engine.owner.ask(partial(self._flow.outcome, Outcome.SUCCESS, conn, message))
            return True
        if windows.below_target:
            self._flow.request_decision()
        return False

    def on_requeued(self, conn: Conn, message: Message, delay_ms: int, backoff: bool) -> bool:
        self._engine.tell(self._engine.hooks.requeued, message)
        outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
        if backoff or self._windows.backoff.level:
            self._engine.owner.ask(partial(self._flow.outcome, outcome, conn, (message, delay_ms)))
            return True
        if self._windows.below_target:
            self._flow.request_decision()
        return False

    def requeue_delay(self, attempts: int) -> float:
        return self._engine.requeue_delay(attempts)

    def on_timed_out(self, conn: Conn, message: Message) -> None:
        fields = self._pool.fields_of(message)
        log.warning("%r from %s timed out here", message, conn.address, extra=fields)
        self._engine.tell(self._engine.hooks.timed_out, message)
        if message.auto_response:  # it was in the inbox, or its handler began it too late
            self._engine.owner.ask(self._flow.handlers_are_late)
        if self._windows.below_target:
            self._flow.request_decision()
