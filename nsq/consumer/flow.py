"""Flow control: keeps as many messages coming as the handlers can take.

``RdyWindows`` decides, this obeys: it sends RDY, has messages touched and timed out when the clock says so,
and passes on what answers tell about backing off. The owner calls the methods, except where noted.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING

from nsq.config import Config
from nsq.connection.conn import Conn
from nsq.consumer.rdy import Backoff, Outcome, RdyWindows, Strategy, exponential
from nsq.log import Logger
from nsq.message import Message

if TYPE_CHECKING:
    from nsq.consumer.engine import Engine

log = Logger("nsq.consumer")

#: Messages that keep one handler busy, a thread or a task: one in work and the next one at hand. More would
#: only wait in the inbox, while their timeout runs.
_IN_FLIGHT_PER_HANDLER = 2
#: The share of RDY in flight from which on hardly more messages can come.
_STARVED_AT = 0.85
#: Seconds that a caller waits for the owner to carry out a request such as ``pause``.
_PATIENCE = 5.0


class FlowControl:
    """The windows of a consumer's connections. With ``touches_unanswered`` auto_touch also touches messages
    that the program answers after their handler's end.
    """

    def __init__(self, engine: Engine, windows: type[RdyWindows], touches_unanswered: bool) -> None:
        config = engine.config
        self.windows = windows(
            config.max_in_flight or 0,
            Backoff(backoff_strategy(config), config.max_backoff_duration),
            random.choice,
            config.low_rdy_idle_timeout,
            config.low_rdy_timeout,
        )
        self.max_in_flight_given = config.max_in_flight is not None
        """Whether max_in_flight is the user's. Otherwise it follows from the handlers."""
        self.decision_due = False  # the windows may have to change
        self._engine, self._config = engine, config
        self._touches_unanswered = touches_unanswered
        self._ticked_at = 0.0
        self._warned_of_turns = False
        self._shrunk = False  # the log has a warning about the handlers' limit

    # Settings and requests: any thread.

    def set_max_in_flight(self, max_in_flight: int) -> None:
        self.max_in_flight_given = True
        self.windows.max_in_flight = max_in_flight
        self._decide_soon()

    def pause(self, paused: bool) -> None:
        self.windows.paused = paused
        self._decide_soon()

    def _decide_soon(self) -> None:
        """Have the owner decide about RDY with the new settings, and wait for that."""
        if self._engine.owner.is_current or not self._engine.running:  # a user's backoff_strategy
            self.request_decision()
        else:
            self._engine.do(self.decide, time.monotonic() + _PATIENCE)

    def follow_handlers(self, at_once: int) -> None:
        """Let max_in_flight follow from the messages that the handlers work on at once, unless the user has
        set it.
        """
        if not self.max_in_flight_given:
            self.windows.max_in_flight = at_once * _IN_FLIGHT_PER_HANDLER

    def request_decision(self) -> None:
        """Have the owner check soon whether windows change."""
        if not self.decision_due:
            self.decision_due = True
            self._engine.owner.wake()

    @property
    def starved(self) -> bool:
        """Whether some nsqd can hardly send more before messages that are here are answered."""
        sessions = [conn.session for conn in self._engine.conns.values()]
        return any(each.in_flight > 0 and each.in_flight >= each.rdy * _STARVED_AT for each in sessions)

    # The clock.

    def next_tick(self) -> float:
        """Return when to call ``tick`` again."""
        interval = self._config.rdy_redistribute_interval
        if self._config.auto_touch:
            interval = min(interval, self._shortest_timeout() / 4)
        if self.windows.handling.active:
            interval = min(interval, self._shortest_timeout() / 8)
        until = self.windows.backoff.until
        return min(self._ticked_at + interval, math.inf if until is None else until)

    def _shortest_timeout(self) -> float:
        return min((conn.session.msg_timeout for conn in self._engine.conns.values()), default=60.0)

    def tick(self) -> None:
        """Do what the clock asks for, if that is due."""
        now = time.monotonic()
        if now < self.next_tick():
            return
        self._ticked_at = now
        conns = list(self._engine.conns.values())
        if self._config.auto_touch:
            working = None if self._touches_unanswered else set(self._engine.pool.in_work())
            for conn in conns:
                conn.touch_expiring(now, working)
        for conn in conns:
            conn.expire(now)
        if self._engine.pool.inbox.qsize() > self.windows.max_in_flight:
            self._engine.pool.sweep(now)
        handling = self.windows.handling
        if handling.active:
            oldest = max((conn.session.oldest(now) for conn in conns), default=0.0)
            if handling.relax(now, self._handling_time(), self.windows.max_in_flight, oldest):
                self._log(
                    logging.INFO, "%s: the handlers are quick: at most %d messages now", self.windows.allowed
                )
        self.windows.tick(now, self.in_flight())
        self.decide()

    def _handling_time(self) -> float:
        """Return the seconds within which a handler must begin with a message."""
        if not self._config.auto_touch:
            return self._shortest_timeout()
        return min((conn.session.max_msg_timeout for conn in self._engine.conns.values()), default=900.0)

    def handlers_are_late(self) -> None:
        """Lower the handlers' limit: a message has timed out before its handler was done."""
        now, timeout, most = time.monotonic(), self._handling_time(), self.windows.max_in_flight
        if self.windows.handled_late(now, timeout, len(self._engine.pool)):
            self._log(
                logging.INFO if self._shrunk else logging.WARNING,
                "%s: messages time out before their handlers are done. At most %d are taken at once from "
                "now on, not max_in_flight (%d), until the handlers are quicker: give more threads, a longer "
                "msg_timeout (now %g s), or a lower max_in_flight",
                self.windows.allowed,
                most,
                timeout,
            )
            self._shrunk = True
            self.decide()

    # Windows.

    def in_flight(self) -> dict[Hashable, int]:
        return {conn: conn.session.in_flight for conn in self._engine.conns.values()}

    def decide_if_due(self) -> None:
        if self.decision_due:
            self.decision_due = False
            self.decide()

    def decide(self) -> None:
        """Send each nsqd its RDY, where that changes."""
        was_below_target = self.windows.below_target
        self._send_rdy()
        if self.windows.below_target and not was_below_target:
            # Again: an answer given meanwhile did not see ``below_target``, and so requested no decision.
            self._send_rdy()

    def _send_rdy(self) -> None:
        for conn, rdy in self.windows.decide(time.monotonic(), self.in_flight()):
            assert isinstance(conn, Conn)
            conn.send_rdy(rdy)

    def outcome(self, outcome: Outcome, conn: Conn, answer: Message | tuple[Message, int]) -> None:
        """Note an outcome, and send the answer after the RDY: the answer makes room for another message."""
        backoff, now = self.windows.backoff, time.monotonic()
        before = backoff.level, backoff.until
        try:
            if self.windows.outcome(outcome, now) or self.windows.below_target:
                self.decide()
        finally:
            conn.put(answer)
        if (backoff.level, backoff.until) != before:
            if backoff.until is None:
                self._log(logging.INFO, "%s: backing off is over")
            else:
                self._log(
                    logging.WARNING if outcome is Outcome.FAILURE else logging.INFO,
                    "%s: paused for %.3g s, then one message to try (backing off, step %d)",
                    backoff.until - now,
                    backoff.level,
                )
            self._engine.tell(self._engine.hooks.backing_off, backoff.level)

    def give_each_room(self) -> None:
        self.windows.grows = not self.max_in_flight_given
        self.decision_due = True
        connections = len(self._engine.endpoints.table)
        if self.windows.must_take_turns(connections) and not self._warned_of_turns:
            self._warned_of_turns = True
            self._log(
                logging.WARNING,
                "%s: max_in_flight is %d, but there are %d partitions: they take turns, one message each. "
                "Leave it out, or give at least their number",
                self.windows.max_in_flight,
                connections,
            )

    def _log(self, level: int, text: str, *values: object) -> None:
        """Log a line that begins with the consumer's name."""
        log.log(level, text, self._engine.name, *values, extra=self._engine.fields())


def backoff_strategy(config: Config) -> Strategy:
    """Return the option ``backoff_strategy`` as a function."""
    fallback = exponential(config.backoff_multiplier)
    strategy = config.backoff_strategy
    if strategy == "full_jitter":
        return exponential(config.backoff_multiplier, random.random)
    if not callable(strategy):
        return fallback

    def wait(level: int) -> float:
        """Call the user's function; its exceptions must not reach the code that answers messages."""
        try:
            return float(strategy(level))
        except BaseException:  # SystemExit too: the calling thread of ours must go on
            log.exception("backoff_strategy %r failed at level %d: exponential this time", strategy, level)
            return fallback(level)

    return wait
