"""The open connections of a consumer: messages come in, answers and RDY go out.

    read loops       a message -> the handlers' inbox; they never wait
    handler threads  an answer, which its thread has claimed -> the connection's queue
    the owner        RDY, as ``RdyWindows`` decides -> the connections' queues; touches, timeouts

While the consumer backs off, the owner puts the answer there, behind the RDY that follows from it.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import ParamSpec

from nsq.config import EXPONENTIAL, FULL_JITTER, LINEAR, Config, RequeueStrategy
from nsq.connection.conn import Conn, ConnDelegate
from nsq.connection.endpoint import Key
from nsq.connection.handshake import describe
from nsq.consumer.decisions import slowness
from nsq.consumer.dialect import Dialect
from nsq.consumer.handlers import HandlerPool
from nsq.consumer.rdy import Backoff, Outcome, Strategy, exponential
from nsq.consumer.reports import Reporter, added
from nsq.errors import ConfigError, NsqError, ServerError
from nsq.log import Logger
from nsq.message import Message, begun
from nsq.threads.owner import Owner

log = Logger("nsq.consumer")

P = ParamSpec("P")

#: Messages that keep one handler busy, a thread or a task: one in work and the next one at hand. More would
#: only wait in the inbox, while their timeout runs.
_IN_FLIGHT_PER_HANDLER = 2
#: The share of RDY in flight from which on hardly more messages can come.
_STARVED_AT = 0.85
#: Seconds between two log lines that say that failures are too few for backing off.
_SAY_AGAIN = 60.0
#: Seconds for whose messages there is room here, at most, if there is a rate.
_RATE_SECONDS = 5.0
#: Seconds between two warnings of slow handlers.
_WARN_AGAIN = 600.0
#: Seconds by which a message's time is longer, at least, if it was touched.
_TOUCHED = 0.001
#: Seconds that a caller waits for the owner to carry out a request such as ``pause``.
_PATIENCE = 5.0


class Connections(ConnDelegate):
    """The table of open connections, their windows, and the delegate of them all. The owner calls the
    methods, except where noted. It calls ``closed`` when a connection has ended, with the cause.
    """

    def __init__(
        self,
        config: Config,
        owner: Owner,
        pool: HandlerPool,
        dialect: Dialect,
        reporter: Reporter,
        closed: Callable[[Conn, NsqError | None], object],
    ) -> None:
        self.windows = dialect.windows(
            config.max_in_flight or 0,
            Backoff(backoff_strategy(config), config.max_backoff_duration, config.backoff_after),
            random.choice,
            config.low_rdy_idle_timeout,
            config.low_rdy_timeout,
        )
        # The connections, and the totals of ended ones: received, finished, requeued, timed out. Any thread
        # reads it: it is swapped, never changed.
        self.table_and_totals: tuple[dict[Key, Conn], list[int]] = {}, [0, 0, 0, 0]
        self.stopping = False  # no connection is added any more
        self.max_in_flight_given = config.max_in_flight is not None  # else it follows from the handlers
        self._config, self._owner, self._pool = config, owner, pool
        self._put, self._expects = dialect.put, dialect.expects
        self._reporter, self._hooks, self._hooked = reporter, reporter.hooks, reporter.hooked
        self._closed = closed
        self._decision_due = False  # the windows may have to change
        self._ticked_at = 0.0
        self._successes = 0  # of handlers, as far as the backoff knows of them
        self._told_of_share_at = self._warned_of_slowness_at = -math.inf
        self._requeue_strategy = requeue_strategy(config)
        self._shrunk = False  # the log has a warning about the handlers' limit

    # Settings: any thread.

    def set_max_in_flight(self, max_in_flight: int) -> None:
        self.max_in_flight_given = True
        self.windows.grows = False
        self.windows.max_in_flight = max_in_flight
        self._decide_soon()

    def set_rate(self, rate: float) -> None:
        self._pool.set_rate(rate)
        self._follow_rate()
        self._decide_soon()

    def _follow_rate(self, timeout: float = math.inf) -> None:
        """Let no more messages be here than begin in a few seconds: what waits longer times out, and holds up
        a stop. ``timeout`` is that of a connection that is not in the table yet.
        """
        rate = self._pool.rate.per_second
        seconds = min(_RATE_SECONDS, self._shortest_timeout() / 4, timeout / 4)
        self.windows.rate_limit = max(1, int(rate * seconds)) if rate > 0 else math.inf

    def pause(self, paused: bool) -> None:
        self.windows.paused = paused
        self._decide_soon()

    def _decide_soon(self) -> None:
        """Have the owner decide about RDY with the new settings, and wait for that."""
        if self._owner.is_current or not self._owner.begun:  # a user's backoff_strategy
            self._request_decision()
        else:
            self._owner.do(self.decide, time.monotonic() + _PATIENCE, lambda: self.stopping)

    def follow_handlers(self) -> None:
        """Set what follows from the number of handlers."""
        if not self.max_in_flight_given:
            self.windows.max_in_flight = self._pool.at_once * _IN_FLIGHT_PER_HANDLER
        self.windows.backoff.set_at_once(self._pool.calls_at_once)

    def _request_decision(self) -> None:
        if not self._decision_due:
            self._decision_due = True
            self._owner.wake()

    # Reports: any thread.

    @property
    def table(self) -> dict[Key, Conn]:
        return self.table_and_totals[0]

    @property
    def starved(self) -> bool:
        """Whether some nsqd can hardly send more before messages that are here are answered."""
        deliveries = [conn.deliveries for conn in self.table.values()]
        return any(each.in_flight > 0 and each.in_flight >= each.rdy * _STARVED_AT for each in deliveries)

    def in_flight(self) -> dict[Hashable, int]:
        return {conn: conn.deliveries.in_flight for conn in self.table.values()}

    def _count_successes(self) -> int:
        """Count the calls of handlers that have succeeded: here, so that it costs the handlers nothing."""
        conns, gone = self.table_and_totals
        return gone[1] + sum([conn.deliveries.finished for conn in conns.values()]) - self._pool.uncounted

    @property
    def failure_share(self) -> float:
        """The share of failures among the last calls of handlers."""
        return self.windows.backoff.share_after(max(0, self._count_successes() - self._successes))

    # Connections come and go.

    def expect(self, connections: int, each_room: bool) -> None:
        """Share RDY among so many connections, also while some are still dialed. With ``each_room`` each can
        have a message at a time, unless the user has set a smaller max_in_flight.
        """
        self.windows.grows = each_room and not self.max_in_flight_given
        if connections != self.windows.expected:
            self.windows.expected = connections
            self._decision_due = True

    def add(self, conn: Conn) -> None:
        """Note a new connection, before its loops run."""
        self._follow_rate(conn.deliveries.msg_timeout)
        self.windows.connected(conn, conn.deliveries.max_rdy, time.monotonic())
        self.decide()
        # Only now that it has its share: ``wait_until_connected`` counts it from here on.
        table, gone = self.table_and_totals
        self.table_and_totals = {**table, conn.key: conn}, gone
        # Before the loops run: hooks must hear of a connection's beginning before its end.
        self._reporter.tell(self._hooks.connected, conn.address)
        self._reporter.log(logging.INFO, "%s: connected to nsqd %s", conn.address, address=conn.address)

    def send_cls(self, conns: Iterable[Conn]) -> None:
        """Ask nsqds to send no more messages. Each connection ends once its last message is answered."""
        # All before deciding: one's RDY must not go to another that is about to close.
        for conn in conns:
            conn.send_cls()
            self.windows.closing(conn)
        self.decide()

    def remove(self, conn: Conn, cause: NsqError | None) -> None:
        """Forget a connection that has ended."""
        self._pool.repeats_come = True
        table, gone = self.table_and_totals
        self.table_and_totals = (
            {key: each for key, each in table.items() if each is not conn},
            added(gone, [conn]),
        )
        self.windows.disconnected(conn)
        self.decide()
        address = conn.address
        if cause is None:
            self._reporter.log(logging.INFO, "%s: connection to nsqd %s closed", address, address=address)
        else:
            reason = describe(address, cause)
            self._reporter.log(logging.WARNING, "%s: connection lost: %s", reason, address=address)
        self._reporter.tell(self._hooks.disconnected, address, cause)

    def abandon(self) -> None:
        self.table_and_totals = {}, self.table_and_totals[1]

    # What the connections report: their loops, and threads that answer.

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        now = conn.last_message_at
        nsqd = self.windows.nsqds.get(conn)
        if nsqd is not None:
            silent = now - nsqd.last_message_at
            nsqd.last_message_at = nsqd.has_sent_at = now
            if silent >= self._config.low_rdy_idle_timeout:
                self._request_decision()  # this nsqd's share grows again
        if self._hooked:
            self._reporter.tell(self._hooks.received, messages)
        if conn.deliveries.overtook:
            self._pool.repeats_come = True
        self._put(messages)

    def on_error(self, conn: Conn, error: ServerError) -> None:
        if self._expects(error):
            return
        level = logging.ERROR if error.fatal else logging.WARNING
        self._reporter.log(level, "%s: nsqd %s: %s", conn.address, error, address=conn.address)
        self._reporter.tell(self._hooks.server_error, conn.address, error)

    def on_heartbeat(self, conn: Conn) -> None:
        self._reporter.tell(self._hooks.heartbeat, conn.address)

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        self._owner.ask(partial(self._closed, conn, cause))

    def wants_answers(self) -> bool:
        return self._hooked or self.windows.backoff.level > 0 or self.windows.below_target

    def on_finished(self, conn: Conn, message: Message, success: bool) -> bool:
        # The hot path: no calls.
        if self._hooked:
            self._reporter.tell(self._hooks.finished, message)
        windows = self.windows
        if windows.backoff.level:  # the RDY that follows from this answer goes out before it
            outcome = Outcome.SUCCESS if success else Outcome.NEUTRAL
            self._owner.ask(partial(self._answer, outcome, conn, message))
            return True
        if windows.below_target:
            self._request_decision()
        return False

    def on_requeued(self, conn: Conn, message: Message, delay_ms: int, backoff: bool) -> bool:
        self._reporter.tell(self._hooks.requeued, message)
        if backoff or self.windows.backoff.level:
            outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
            self._owner.ask(partial(self._answer, outcome, conn, (message, delay_ms)))
            return True
        if self.windows.below_target:
            self._request_decision()
        return False

    def requeue_delay(self, attempts: int, error: BaseException | None = None) -> float:
        jitter = 1 + self._config.requeue_jitter * random.random()
        return min(jitter * self._requeue_strategy(attempts, error), self._config.max_requeue_delay)

    def on_timed_out(self, conn: Conn, message: Message) -> None:
        fields = self._pool.fields_of(message)
        log.warning("%r from %s timed out here", message, conn.address, extra=fields)
        self._reporter.tell(self._hooks.timed_out, message)
        self._pool.repeats_come = True
        if message.auto_response:  # it was in the inbox, or its handler began it too late
            self._owner.ask(self._handlers_are_late)
        if self.windows.below_target:
            self._request_decision()

    # Windows, and the outcomes that change them.

    def decide_if_due(self) -> None:
        if self._decision_due:
            self._decision_due = False
            self.decide()

    def decide(self) -> None:
        """Send each nsqd its RDY, where that changes."""
        was_below_target = self.windows.below_target
        for conn, rdy in self.windows.decide(time.monotonic(), self.in_flight()):
            assert isinstance(conn, Conn)
            conn.send_rdy(rdy)
        if self.windows.below_target and not was_below_target:
            # Again: an answer given meanwhile did not see ``below_target``, and so requested no decision.
            self.decide()

    def _answer(self, outcome: Outcome, conn: Conn, answer: Message | tuple[Message, int]) -> None:
        """Note an outcome, and send the answer after the RDY: the answer makes room for another message."""
        backoff, now = self.windows.backoff, time.monotonic()
        before = backoff.level, backoff.until
        known, self._successes = self._successes, max(self._successes, self._count_successes())
        first = self._pool.handled_attempts(answer if isinstance(answer, Message) else answer[0]) <= 1
        try:
            changed = self.windows.outcome(outcome, now, first=first, successes=self._successes - known)
            if changed or self.windows.below_target:
                self.decide()
        finally:
            conn.put(answer)
        if (backoff.level, backoff.until) == before:
            self._tell_of_share(now)
            return
        if backoff.until is None:
            self._reporter.log(logging.INFO, "%s: backing off is over")
        else:
            level = logging.WARNING if outcome is Outcome.FAILURE else logging.INFO
            text = "%s: paused for %g s, then one message to try (backing off, step %d)"
            self._reporter.log(level, text, round(backoff.until - now, 3), backoff.level)
        self._reporter.tell(self._hooks.backing_off, backoff.level)

    def _tell_of_share(self, now: float) -> None:
        """Log, once in a while, that handlers have failed too rarely for backing off."""
        backoff = self.windows.backoff
        failed = round(backoff.failure_share * backoff.window)
        if failed and not backoff.level and now >= self._told_of_share_at + _SAY_AGAIN:
            self._told_of_share_at = now
            text = "%s: %d of the last %d calls of handlers failed; no backing off below %g %%"
            self._reporter.log(logging.INFO, text, failed, backoff.window, 100 * backoff.threshold)

    def _handlers_are_late(self) -> None:
        """Lower the handlers' limit: a message has timed out before its handler was done."""
        now, timeout, most = time.monotonic(), self._shortest_timeout(), self.windows.max_in_flight
        if self.windows.handled_late(now, timeout, len(self._pool)):
            text = (
                "%s: messages time out before their handlers are done. At most %d are taken at once from now "
                "on, not max_in_flight (%d), until the handlers are quicker: give more threads, a longer "
                "msg_timeout (now %g s), or a lower max_in_flight"
            )
            level = logging.INFO if self._shrunk else logging.WARNING
            self._reporter.log(level, text, self.windows.allowed, most, timeout)
            self._shrunk = True
            self.decide()

    # The clock.

    def next_tick(self) -> float:
        """Return when to call ``tick`` again."""
        interval = min(self._config.rdy_redistribute_interval, self._shortest_timeout() / 4)
        if self.windows.handling.active:
            interval = min(interval, self._shortest_timeout() / 8)
        until = self.windows.backoff.until
        return min(self._ticked_at + interval, math.inf if until is None else until)

    def _shortest_timeout(self) -> float:
        return min((conn.deliveries.msg_timeout for conn in self.table.values()), default=60.0)

    def tick(self) -> None:
        """Do what the clock asks for, if that is due."""
        now = time.monotonic()
        if now < self.next_tick():
            return
        self._ticked_at, conns = now, list(self.table.values())
        self._touch(now)
        if not self._config.auto_touch:
            self._warn_of_slow_handlers(now)
        for conn in conns:
            conn.expire(now)
        if self._pool.inbox.qsize() > self.windows.max_in_flight:
            self._pool.sweep(now)
        handling = self.windows.handling
        if handling.active:
            waiting = self._config.auto_touch  # a handler may take long with what is touched
            oldest = max((conn.deliveries.oldest(now, waiting=waiting) for conn in conns), default=0.0)
            if handling.relax(now, self._shortest_timeout(), self.windows.max_in_flight, oldest):
                text = "%s: the handlers are quick: at most %d messages now"
                self._reporter.log(logging.INFO, text, self.windows.allowed)
        self.windows.tick(now, self.in_flight())
        self.decide()

    def _touch(self, now: float) -> None:
        """Touch messages past half of their time: those that wait for the end of a late run, and with
        auto_touch those that handlers work on.
        """
        pool, auto_touch = self._pool, self._config.auto_touch
        touched = set(pool.kept.copy().values())
        if auto_touch or pool.rate.per_second > 0:
            # Without auto_touch what a thread has, and has not begun: it waits for its turn.
            touched.update(each for each in pool.in_work() if auto_touch or not begun(each))
        all_begun = auto_touch and pool.handed_over
        if touched or all_begun:
            for conn in self.table.values():
                conn.touch_expiring(now, lambda each: each in touched or (all_begun and begun(each) > 0))

    def _warn_of_slow_handlers(self, now: float) -> None:
        """Warn, once in a while, of a handler that has used half of its message's time."""
        if now < self._warned_of_slowness_at + _WARN_AGAIN:
            return
        timeouts = {conn.address: conn.deliveries.msg_timeout for conn in self.table.values()}
        for message in self._pool.in_work():
            timeout = timeouts.get(message.nsqd_address, math.inf)
            touched = message.expires_at - message.received_at > timeout + _TOUCHED
            late = message.received_at + timeout / 2 <= now < message.expires_at and not touched
            answers = begun(message) and (message.auto_response or self._pool.handed_over)
            if late and answers and not message.responded:
                self._warned_of_slowness_at = now
                text = slowness(message, now, begun(message))
                self._reporter.log(logging.WARNING, "%s: %s", text, address=message.nsqd_address)
                return


def backoff_strategy(config: Config) -> Strategy:
    """Return the option ``backoff_strategy`` as a function."""
    multiplier, given = config.backoff_multiplier, config.backoff_strategy
    named = {EXPONENTIAL: exponential(multiplier), FULL_JITTER: exponential(multiplier, random.random)}
    if isinstance(given, str):
        return named[given]
    return _guarded("backoff_strategy", given, named[EXPONENTIAL], EXPONENTIAL)


def requeue_strategy(config: Config) -> RequeueStrategy:
    """Return the option ``requeue_strategy`` as a function."""
    delay, given = config.default_requeue_delay, config.requeue_strategy
    named: dict[str, RequeueStrategy] = {
        LINEAR: lambda attempts, _: delay * attempts,
        EXPONENTIAL: lambda attempts, _: delay * 2.0 ** min(attempts - 1, 62),
    }
    return (
        named[given] if isinstance(given, str) else _guarded("requeue_strategy", given, named[LINEAR], LINEAR)
    )


def _guarded(
    option: str, function: Callable[P, float], usual: Callable[P, float], name: str
) -> Callable[P, float]:
    """Return a call of the user's function; its failures must not reach the code that answers messages."""

    def seconds(*args: P.args, **kwargs: P.kwargs) -> float:
        try:
            result = float(function(*args, **kwargs))
            if not result >= 0:
                raise ConfigError(f"it returned {result!r}; it must return seconds, from 0 up")
            return result
        except BaseException:  # SystemExit too: the calling thread of ours must go on
            log.exception("%s %r failed for %r: %s this time", option, function, args, name)
            return usual(*args, **kwargs)

    return seconds
