"""What makes a consumer go: its connections, handlers, flow, discovery and timer, and how they end together.

The public face is ``Consumer``; this is what connections, handlers and discovery report to. Lock order:
connections, then flow, then a connection's own. No lock is held while anything blocks or user code runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from nsq.config import Config
from nsq.connection.conn import Conn
from nsq.connection.forks import abandon_in_children
from nsq.connection.handshake import describe
from nsq.consumer.backoff import Outcome
from nsq.consumer.discovery import Discovery
from nsq.consumer.flow import Flow
from nsq.consumer.handlers import HandlerPool
from nsq.consumer.hooks import HookRunner
from nsq.consumer.outcomes import RequeueDelay
from nsq.consumer.pacing import Pacing
from nsq.consumer.reports import ConnectionHealth, ConsumerHealth, ConsumerStats, StopReport
from nsq.consumer.timer import Timer
from nsq.errors import AlreadyResponded, Closed, NsqError, ServerError
from nsq.message import Message
from nsq.transport.base import Transport
from nsq.transport.tls import context_of

log = logging.getLogger("nsq.consumer")

#: What is left of a stop's time for threads to end once connections have been cut off.
_LAST_MOMENTS = 1.0
#: What of it handlers cannot use up: it is for threads that end as soon as they are told to.
_OWN_MOMENTS = 0.25
#: In flight, of RDY, from which on hardly more can come.
_STARVED_AT = 0.85


class Engine:
    """Implements what its parts ask of their owner: ConnDelegate, Overseer and Host."""

    def __init__(
        self,
        topic: str,
        channel: str,
        config: Config,
        flow: Flow,
        transport: Transport,
        hooks: HookRunner,
        give_up: Callable[[Message], None] | None,
        requeue_delay: RequeueDelay,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.name = f"nsq-{topic}/{channel}"
        self.max_attempts = config.max_attempts
        self.pool = HandlerPool(self.name, self)
        self.pacing = Pacing(flow, self._backing_off)
        self.discovery: Discovery | None = None
        self._config = config
        self._flow = flow
        self._transport = transport
        self._context = context_of(config)
        self._hooks = hooks
        self._give_up = give_up
        self._requeue_delay = requeue_delay
        self._changed = threading.Condition()  # guards the connections and totals below
        self._conns: dict[str, Conn] = {}
        self._dialing: set[Conn] = set()
        self._gone = ConsumerStats(
            received=0,
            finished=0,
            requeued=0,
            timed_out=0,
            given_up=0,
            in_flight=0,
            waiting=0,
            connections=0,
        )
        self._given_up = 0
        self._closing = False
        self._timer = Timer(f"{self.name}-rdy", self._tick, self._next_tick)

    # Beginning and end.

    def start(self, discovery: Discovery) -> None:
        self.discovery = discovery
        abandon_in_children(self)
        self._hooks.start()
        self.pool.start()
        self._timer.start()
        discovery.start()

    def stop(self, deadline: float) -> StopReport:
        """No new connections, CLS to those there are, wait for the messages in flight, cut off what
        is left.
        """
        conns = self._begin_closing()
        with self._changed:
            self._changed.wait_for(lambda: not self._conns, max(0.0, deadline - time.monotonic()))
            left = list(self._conns.values())
        in_flight = sum(conn.in_flight for conn in left)
        cut_off = sorted(conn.address for conn in left)
        for conn in left:
            conn.close()
        last = max(deadline, time.monotonic() + _LAST_MOMENTS)
        # Those as well that have ended by themselves: their loops have something to tell until the end.
        lasting = [conn for conn in {*conns, *left} if not conn.join(last)]
        unfinished = self._join(last, ["connections"] if lasting else [])
        return StopReport(
            clean=not (in_flight or cut_off or unfinished),
            in_flight=in_flight,
            cut_off=cut_off,
            unfinished_threads=unfinished,
        )

    def _begin_closing(self) -> list[Conn]:
        with self._changed:
            self._closing = True
            conns, dialing = list(self._conns.values()), list(self._dialing)
            self._changed.notify_all()
        if self.discovery is not None:
            self.discovery.stop()
        for conn in dialing:
            conn.close()
        # All of them first: what one gives up must not be handed to another that is about to close.
        for conn in conns:
            conn.send_cls()
        for conn in conns:
            self.pacing.closing(conn)
        return conns

    def _join(self, deadline: float, unfinished: list[str]) -> list[str]:
        """Add the threads that have not ended by then."""
        self._timer.stop()
        unfinished += self.pool.stop(deadline - _OWN_MOMENTS)
        if not self._timer.join(deadline):
            unfinished.append(f"{self.name}-rdy")
        if self.discovery is not None and not self.discovery.join(deadline):
            unfinished.append(f"{self.name}-lookupd")
        if not self._hooks.stop(deadline):
            unfinished.append(f"{self.name}-hooks")
        return unfinished

    def abandon(self) -> None:
        """In a forked child: forget everything, which is the parent's, its locks too."""
        self._changed = threading.Condition()
        self.pacing.abandon()
        if self.discovery is not None:
            self.discovery.abandon()
        for conn in [*self._conns.values(), *self._dialing]:
            conn.abandon()
        self._conns = {}
        self._dialing = set()

    def owns_current_thread(self) -> bool:
        """Whether this is a thread of ours that runs user code, and so cannot wait for the end of all."""
        owners = (self.pool, self._hooks, self.discovery)
        return any(owner is not None and owner.owns_current_thread() for owner in owners)

    # Discovery's host.

    def dial(self, address: str) -> None:
        conn = Conn(
            address,
            self._config,
            self,
            transport=self._transport,
            context=self._context,
            topic=self.topic,
            channel=self.channel,
            name=self.name,
            requeue_delay=self._requeue_delay,
        )
        with self._changed:
            if self._closing or address in self._conns:
                return
            self._dialing.add(conn)
        welcome = False
        try:
            conn.connect(time.monotonic() + self._config.handshake_timeout)
        finally:
            with self._changed:
                self._dialing.discard(conn)
                welcome = conn.negotiated is not None and not self._closing and address not in self._conns
                if welcome:
                    self._conns[address] = conn
        if welcome:
            self._begin(conn)
        else:
            conn.close()

    def _begin(self, conn: Conn) -> None:
        # Before the loops run: the end of a connection must not be reported before its beginning.
        self.pacing.connected(conn)
        self._hooks.tell(self._hooks.hooks.connected, conn.address)
        log.info("connected to nsqd %s", conn.address, extra=self._fields(conn.address))
        try:
            conn.start()
        except NsqError as fault:
            self._forget(conn, fault)
            raise
        self._timer.poke()  # its messages may want a touch sooner than others'
        with self._changed:
            self._changed.notify_all()

    def drop(self, address: str) -> None:
        with self._changed:
            conn = self._conns.get(address)
        if conn is not None:
            conn.send_cls()
            self.pacing.closing(conn)

    def expect(self, connections: int) -> None:
        self.pacing.expect(connections)

    # The connections' delegate.

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        self.pacing.received(conn, conn.last_message_at)
        if self._hooks.active:
            self._hooks.tell(self._hooks.hooks.received, messages)
        self.pool.inbox.put(messages)

    def on_ok(self, conn: Conn, count: int) -> None:
        log.debug("nsqd %s says OK", conn.address)

    def on_response(self, conn: Conn, data: bytes) -> None:
        log.debug("nsqd %s says %r", conn.address, data)

    def on_error(self, conn: Conn, error: ServerError) -> None:
        level = logging.ERROR if error.fatal else logging.WARNING
        log.log(level, "nsqd %s: %s", conn.address, error, extra=self._fields(conn.address))
        self._hooks.tell(self._hooks.hooks.server_error, conn.address, error)

    def on_heartbeat(self, conn: Conn) -> None:
        log.debug("heartbeat from %s", conn.address)

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        self._forget(conn, cause)
        if self.discovery is not None and not self._closing:
            self.discovery.lost(conn.address, time.monotonic() - conn.connected_at, cause)

    def _forget(self, conn: Conn, cause: NsqError | None) -> None:
        with self._changed:
            if self._conns.get(conn.address) is conn:
                del self._conns[conn.address]
            self._gone = _with(self._gone, conn)
        self.pacing.disconnected(conn)
        if cause is None:
            log.info("connection to nsqd %s closed", conn.address, extra=self._fields(conn.address))
        else:
            words = describe(conn.address, cause)
            log.warning("connection lost: %s", words, extra=self._fields(conn.address))
        self._hooks.tell(self._hooks.hooks.disconnected, conn.address, cause)
        with self._changed:
            self._changed.notify_all()

    def on_finished(self, conn: Conn, message: Message) -> None:
        if self._flow.backoff.level:
            self.pacing.outcome(Outcome.SUCCESS)
        elif self._flow.short:
            self.pacing.look_again()
        if self._hooks.active:
            self._hooks.tell(self._hooks.hooks.finished, message)

    def on_requeued(self, conn: Conn, message: Message, backoff: bool) -> None:
        self.pacing.outcome(Outcome.FAILURE if backoff else Outcome.NEUTRAL)
        if self._flow.short:
            self.pacing.look_again()
        if self._hooks.active:
            self._hooks.tell(self._hooks.hooks.requeued, message)

    # The handlers' overseer.

    @property
    def starved(self) -> bool:
        return any(
            conn.in_flight > 0 and conn.in_flight >= int(conn.rdy * _STARVED_AT)
            for conn in list(self._conns.values())
        )

    def give_up(self, message: Message) -> None:
        log.warning("giving up on %r from %s", message, message.nsqd_address)
        if self._give_up is not None:
            self._give_up(message)
        with self._changed:
            self._given_up += 1
        self._hooks.tell(self._hooks.hooks.given_up, message)

    def expired(self, message: Message) -> None:
        conn = self._conns.get(message.nsqd_address)
        if conn is not None and conn.drop(message):
            self._timed_out(message)

    def _timed_out(self, message: Message) -> None:
        log.warning("%r from %s timed out here", message, message.nsqd_address)
        self._hooks.tell(self._hooks.hooks.timed_out, message)
        if self._flow.short:
            self.pacing.look_again()

    # The timer.

    def _backing_off(self) -> None:
        """The backoff has moved: the end of a wait is something to wake up for."""
        level = self.pacing.backoff_level
        log.info("backing off, level %d", level) if level else log.info("backoff is over")
        self._hooks.tell(self._hooks.hooks.backing_off, level)
        self._timer.poke()

    def _next_tick(self, now: float) -> float:
        due = now + self._config.rdy_redistribute_interval
        until = self.pacing.backoff_until
        if until is not None:
            due = min(due, until)
        if self._config.auto_touch:
            due = min(due, now + self._shortest_timeout() / 4)
        return due

    def _shortest_timeout(self) -> float:
        return min((conn.session.msg_timeout for conn in list(self._conns.values())), default=60.0)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._config.auto_touch:
            self._touch_what_is_in_work()
        for conn in list(self._conns.values()):
            for message in conn.expire(now):
                self._timed_out(message)
        if len(self.pool.inbox) > self.pacing.max_in_flight:
            # Handlers that are stuck: what nsqd sends again must not pile up behind them.
            self.pool.inbox.sweep(now)
        self.pacing.tick()

    def _touch_what_is_in_work(self) -> None:
        for message in self.pool.in_work():
            if message.time_left < self._shortest_timeout() / 2:
                with suppress(AlreadyResponded, Closed):
                    message.touch()

    # What it is like.

    def wait_until_connected(self, connections: int, deadline: float) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._started >= connections or self._closing, deadline - time.monotonic()
            )
            return self._started >= connections

    @property
    def _started(self) -> int:
        return sum(conn.started for conn in self._conns.values())

    def stats(self) -> ConsumerStats:
        with self._changed:
            total = self._gone
            conns = list(self._conns.values())
            given_up = self._given_up
        for conn in conns:
            total = _with(total, conn)
        return ConsumerStats(
            received=total.received,
            finished=total.finished,
            requeued=total.requeued,
            timed_out=total.timed_out,
            given_up=given_up,
            in_flight=sum(conn.in_flight for conn in conns),
            waiting=len(self.pool.inbox),
            connections=len(conns),
        )

    def health(self, state: str) -> ConsumerHealth:
        now = time.monotonic()
        conns = sorted(self._conns.values(), key=lambda conn: conn.address)
        connections = [
            ConnectionHealth(
                nsqd_address=conn.address,
                rdy=conn.rdy,
                reason=self.pacing.reason(conn),
                in_flight=conn.in_flight,
                seconds_connected=now - conn.connected_at,
                seconds_since_message=now - conn.last_message_at,
            )
            for conn in conns
        ]
        ok = any(connection.rdy for connection in connections)
        return ConsumerHealth(
            ok=ok,
            summary=self._summary(state, connections),
            state=state,
            max_in_flight=self.pacing.max_in_flight,
            paused=self.pacing.paused,
            starved=self.starved,
            backoff_level=self.pacing.backoff_level,
            connections=connections,
            discovery=self.discovery.health() if self.discovery is not None else [],
        )

    def _summary(self, state: str, connections: list[ConnectionHealth]) -> str:
        if state != "running":
            return state
        if not connections:
            return "no connection to any nsqd"
        stuck = [connection for connection in connections if not connection.rdy]
        many, open_ones = len(connections), len(connections) - len(stuck)
        if not open_ones:
            return f"no nsqd may send: {stuck[0].reason}"
        if many == 1:
            return "1 connection, which may send"
        return f"{many} connections, {open_ones if stuck else 'all'} of which may send"

    def _fields(self, address: str) -> dict[str, str]:
        """For structured logs."""
        return {"nsq_topic": self.topic, "nsq_channel": self.channel, "nsqd_address": address}


def _with(total: ConsumerStats, conn: Conn) -> ConsumerStats:
    """The totals with the connection's added."""
    session = conn.session
    return ConsumerStats(
        received=total.received + session.received,
        finished=total.finished + session.finished,
        requeued=total.requeued + session.requeued,
        timed_out=total.timed_out + session.timed_out,
        given_up=0,
        in_flight=0,
        waiting=0,
        connections=0,
    )
