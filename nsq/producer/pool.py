"""The connections of a producer, keyed by the address of their nsqd.

Publishes go round over the connections that are open. One that is missing is dialled in the background, by
a thread of its own for each address, so that an address which swallows everything costs nobody's time while
another one answers. An address that fails is left alone for a while that grows; when no nsqd is left at
all, callers wait and the pause is a second at most.
"""

from __future__ import annotations

import copy
import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence

from nsq.config import Config
from nsq.connection import Conn
from nsq.errors import ConnectionFailed, DialFailed, NsqError, ServerError
from nsq.producer.line import Line
from nsq.producer.pending import Settled
from nsq.producer.reports import ConnectionStats
from nsq.producer.route import Dial, Route
from nsq.producer.transaction import Transaction, failure
from nsq.transport.base import Transport
from nsq.transport.tcp import OwnTransport
from nsq.wire.layers import TlsContext

log = logging.getLogger("nsq.producer")

#: For a dial that was called off, or a connection that was closed, to end. A user's transport that is still
#: connecting cannot be interrupted; its thread ends when its timeout does.
_CLOSING_GRACE = 1.0


class Pool:
    """A Watcher of its lines. ``deliver`` takes what is off its line, and is called by read loops."""

    def __init__(
        self,
        addresses: Iterable[str],
        config: Config,
        transport: Transport,
        context: TlsContext | None,
        deliver: Callable[[Settled], None],
        *,
        clock: Callable[[], float],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.deliver = deliver
        self._config = config
        self._transport = transport
        self._context = context
        self._clock = clock
        self._chance = chance
        self._lock = threading.Lock()  # guards the routes and all below
        self._changed = threading.Condition(self._lock)
        self._changes = 0
        self._closed = False
        self._routes = {address: Route(address, config) for address in addresses}
        self._ending: set[Line] = set()  # not of use any more, and not gone yet
        self._redial_at = 0.0
        self.absence = "none is discovered yet"
        """Why there is no address, for errors."""
        # Snapshots, read without the lock by every publish.
        self._usable: tuple[Line, ...] = ()
        self._turn = itertools.count()

    # Choosing.

    def ready(self) -> Line | None:
        """The next of the open lines, or None at once. Sees to it that missing ones are dialled when they
        are due.
        """
        if self._clock() >= self._redial_at:
            self._dial_due(urgent=False)
        usable = self._usable
        return usable[next(self._turn) % len(usable)] if usable else None

    def line_for(self, transaction: Transaction) -> Line:
        """The next of the open lines, once there is one; raises why there is none by the deadline."""
        while True:
            line = self.ready()
            if line is not None:
                return line
            self._dial_due(urgent=True)
            self._await_line(transaction)

    def _await_line(self, transaction: Transaction) -> None:
        with self._lock:
            if self._closed:
                raise failure(transaction, "the producer was closed before an nsqd was reached")
            if self._usable:
                return
            self._raise_if_hopeless(transaction)
            now = self._clock()
            if now >= transaction.deadline:
                raise failure(transaction, self._reasons())
            until = min(transaction.deadline, self._next_due(urgent=True))
            seen = self._changes
            self._changed.wait_for(lambda: self._changes != seen, max(0.0, until - now))

    def _raise_if_hopeless(self, transaction: Transaction) -> None:
        routes = self._routes.values()
        if not routes or not all(r.standing.hopeless_since(transaction.started) for r in routes):
            return
        if transaction.doubts or len(routes) > 1:
            raise failure(transaction, self._reasons())
        for route in routes:
            # A copy: callers must not share a traceback.
            reason = copy.copy(route.standing.reason)
            assert reason is not None
            reason.add_note(f"said by {route.address}")
            raise reason

    def explain(self) -> str:
        """Why nobody could be reached, for each address."""
        with self._lock:
            return self._reasons()

    def _reasons(self) -> str:
        if not self._routes:
            return f"no nsqd is known: {self.absence}"
        reasons = (route.reason for route in self._routes.values())
        return f"no nsqd could be reached in time: {'; '.join(reasons)}"

    def _next_due(self, *, urgent: bool) -> float:
        return min(
            (route.standing.due_at(urgent=urgent) for route in self._routes.values() if route.idle),
            default=float("inf"),
        )

    # Dialling.

    def _dial_due(self, *, urgent: bool) -> None:
        now = self._clock()
        with self._lock:
            due = [
                route
                for route in self._routes.values()
                if route.idle and route.standing.due_at(urgent=urgent) <= now and not self._closed
            ]
            dials = [(route, self._prepare_dial(route)) for route in due]
            self._redial_at = self._next_due(urgent=False)
        for route, dial in dials:
            try:
                dial.thread.start()
            except RuntimeError as fault:  # no more threads, or the interpreter is ending
                self._dial_failed(route, DialFailed(f"{route.address} was not dialled: {fault}"))

    def _prepare_dial(self, route: Route) -> Dial:
        line = Line(route.address, self._config, self, self._clock)
        line.conn = Conn(
            route.address,
            self._config,
            line,
            transport=self._transport,
            context=self._context,
            name="nsq-producer",
            lends=line.lends,
        )
        name = f"nsq-producer-dial-{route.address}"
        thread = threading.Thread(target=self._dial, args=(route, line), name=name, daemon=True)
        route.dialling = Dial(line, thread)
        return route.dialling

    def _dial(self, route: Route, line: Line) -> None:
        try:
            line.conn.connect(self._clock() + self._config.dial_timeout)
        except NsqError as fault:
            self._dial_failed(route, fault)
            return
        except Exception as fault:
            log.exception("dialling %s failed by a fault of ours", route.address, extra=_extra(route.address))
            self._dial_failed(route, DialFailed(f"{route.address}: {fault!r}"))
            return
        self._dialled(route, line)

    def _forget_line(self, route: Route, line: Line) -> None:
        """It came to nothing before it was started: its end is never told."""
        with self._lock:
            if route.line is line:
                route.line = None

    def _dial_failed(self, route: Route, fault: NsqError) -> None:
        with self._lock:
            route.dialling = None
            route.standing.failed(fault, self._clock(), self._chance(), final=not fault.retry)
            pause = route.standing.pause
            first = route.standing.failures == 1
            self._forget_if_unwanted(route)
            self._change()
            called_off = self._closed
        if called_off:
            return
        log.log(
            logging.WARNING if first else logging.INFO,
            "no connection to %s, next try in %.1f s or when it is needed: %s",
            route.address,
            pause,
            fault,
            extra=_extra(route.address),
        )

    def _dialled(self, route: Route, line: Line) -> None:
        with self._lock:
            if not self._closed:
                route.line = line  # before it is started, as its end may be told at once
        if route.line is not line:
            line.conn.discard()
            return
        try:
            line.conn.start()
        except NsqError as fault:  # no more threads
            self._forget_line(route, line)
            self._dial_failed(route, fault)
            return
        with self._lock:
            route.dialling = None
            self._change()
        log.info("connected to %s", route.address, extra=_extra(route.address))

    # What lines tell.

    def proven(self, line: Line) -> None:
        with self._lock:
            line.was_proven = True
            line.overdue = False
            route = self._routes.get(line.address)
            if route is not None:
                route.standing.proven()
            self._change()

    def suspect(self, line: Line) -> None:
        """A caller has waited for it in vain: others come first until it answers."""
        with self._lock:
            # First: its answer may come in this moment, and whoever reads that must see it as overdue, or it
            # stayed so: with others there, it would never be used again.
            line.overdue = True
            line.overdue = line.pending > 0
            self._change()

    def discard(self, line: Line) -> None:
        """It takes nothing any more; its end is about to be told."""
        with self._lock:
            self._remove(line)

    def lost(self, line: Line, cause: NsqError) -> None:
        with self._lock:
            self._remove(line)
            self._ending.discard(line)
            route = self._routes.get(line.address)
            if route is not None:
                route.published += line.published
                route.failed += line.failed
                self._judge(route, line, cause)
                self._forget_if_unwanted(route)
            self._change()
            expected = self._closed or (route is not None and not route.wanted)
        if not expected:
            log.warning("the connection to %s is lost: %s", line.address, cause, extra=_extra(line.address))

    def _judge(self, route: Route, line: Line, cause: NsqError) -> None:
        now = self._clock()
        if isinstance(cause, ServerError) and not cause.retry:
            # A caller's mistake, which has been told: nothing is wrong with this nsqd.
            route.standing.failed_at = now
        elif line.was_proven and isinstance(cause, ConnectionFailed):
            route.standing.lost(cause, now)
        else:
            route.standing.failed(cause, now, self._chance())

    def _remove(self, line: Line) -> None:
        route = self._routes.get(line.address)
        if route is not None and route.line is line:
            route.line = None
            self._ending.add(line)
            self._change()

    def _lines(self) -> list[Line]:
        return [route.line for route in self._routes.values() if route.line is not None]

    def _change(self) -> None:
        """With the lock: make the snapshots anew and wake whoever waits."""
        started = [] if self._closed else [route.started for route in self._routes.values()]
        takers = [line for line in started if line is not None and line.usable]
        self._usable = tuple(line for line in takers if not line.overdue) or tuple(takers)
        self._redial_at = self._next_due(urgent=False)
        self._changes += 1
        self._changed.notify_all()

    # Addresses that come and go.

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Discovered anew. One that is not among them is kept as long as its connection lasts."""
        wanted = set(addresses)
        with self._lock:
            for route in list(self._routes.values()):
                route.wanted = route.address in wanted
                self._forget_if_unwanted(route)
            for address in wanted - self._routes.keys():
                self._routes[address] = Route(address, self._config)
            self._change()

    def _forget_if_unwanted(self, route: Route) -> None:
        if not route.wanted and route.idle:
            self._routes.pop(route.address, None)

    # What there is to know.

    def stats(self) -> tuple[ConnectionStats, ...]:
        with self._lock:
            now = self._clock()
            return tuple(
                route.stats(now, [line for line in self._ending if line.address == route.address])
                for route in self._routes.values()
            )

    @property
    def connected(self) -> bool:
        return bool(self._usable)

    @property
    def addresses(self) -> Sequence[str]:
        with self._lock:
            return tuple(self._routes)

    # The end.

    def close(self, deadline: float, *, gracefully: bool) -> None:
        """No more lines. ``gracefully``: what is queued goes out first."""
        with self._lock:
            self._closed = True
            lines = [*self._lines(), *self._ending]
            dialling = [route.dialling for route in self._routes.values() if route.dialling is not None]
            self._change()
        for dial in dialling:
            dial.line.conn.discard()
        if isinstance(self._transport, OwnTransport):
            self._transport.interrupt()
        for line in lines:
            if gracefully:
                line.conn.finish_sending()
            else:
                line.conn.close()
        patience = self._clock() + _CLOSING_GRACE
        for dial in dialling:
            if dial.thread.ident is not None:
                dial.thread.join(max(0.0, patience - self._clock()))
        for line in lines:
            if not line.conn.join(max(deadline, patience)):
                line.conn.close()
                line.conn.join(self._clock() + _CLOSING_GRACE)

    def abandon(self) -> None:
        """In a forked child. The lock may be held by a thread that does not exist here."""
        if isinstance(self._transport, OwnTransport):
            self._transport.abandon()
        for line in [*self._lines(), *self._ending]:
            line.conn.abandon()
        for route in self._routes.values():
            if route.dialling is not None:
                route.dialling.line.conn.abandon()


def _extra(address: str) -> dict[str, str]:
    return {"nsqd_address": address}
