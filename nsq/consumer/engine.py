"""The engine of a consumer: one thread that has its connections and windows, and starts and stops the others.

    a user's thread   makes a request for start, stop, pause …, and waits until it is carried out
    read loops        put messages into the inbox; a connection's end is a request
    handler threads   answer; an answer that changes the backoff is a request, and the owner sends it
    endpoints         dial on their read threads; a new connection is a request, and so is a failure
    discovery         finds the nsqds to connect to; each change is a request
    the owner         (NAME-rdy) carries out the requests, one after the other, and looks at the clock

Connections, windows and the stop belong to the owner alone, so they need no lock, and a signal may interrupt
a user's thread at any bytecode. ``Connections`` has what is open: messages, answers, RDY. Here: which nsqds
are dialed, what becomes of a connection that comes or goes, the start and the stop.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from nsq.config import Config
from nsq.connection.backoff import Pauses
from nsq.connection.conn import Conn
from nsq.connection.endpoint import Endpoint, Endpoints, Key, Status, Wanted
from nsq.connection.handshake import describe
from nsq.connection.subscription import Subscription
from nsq.consumer.connections import Connections
from nsq.consumer.dead_letters import GiveUpPolicy
from nsq.consumer.decisions import ToGiveUp
from nsq.consumer.dialect import Dialect, Original, OtherDialect
from nsq.consumer.reports import ConsumerHooks, Reporter, StopReport
from nsq.discovery.lookups import Discovery
from nsq.errors import Closed, NsqError, ServerError
from nsq.log import Logger
from nsq.threads.forks import abandon_in_children
from nsq.threads.owner import Ending, Owner, last_moment
from nsq.transport.base import Transport
from nsq.transport.dialing import SocketTransport
from nsq.transport.tls import context_of

log = Logger("nsq.consumer")

#: During a stop, seconds between two checks whether it has become more urgent.
_STEP = 0.05
#: Seconds to wait during a stop for the answer to CLS of an nsqd whose messages are answered, since its last
#: message, as others may be on their way.
_CLS_PATIENCE = 5.0
#: Seconds between two log lines that tell of messages that were too old.
_TELL_OF_OLD = 60.0
#: Seconds. The pauses before dials begin anew after a connection that lived at least so long, and longer than
#: the next pause may be: not after one that an nsqd accepted and closed at once.
_STEADY = 10.0


class Watch(Protocol):
    """A wait for the end of a consumer, such as ``SignalWatch``."""

    def wake(self) -> object: ...

    def abandon(self) -> None: ...


class ConsumingEndpoint(Endpoint):
    """One nsqd of a consumer, for one subscription. Its read thread calls the methods."""

    def __init__(self, wanted: Wanted, engine: Engine, pauses: Pauses) -> None:
        super().__init__(wanted, engine.config, time.monotonic, pauses.draw)
        self._engine, self._pauses = engine, pauses

    def make_conn(self) -> Conn:
        engine = self._engine
        return Conn(
            self.address,
            self._config,
            engine.connections,
            transport=engine.transport,
            context=engine.context,
            subscription=self.subscription,
        )

    def connected(self, conn: Conn) -> None:
        engine = self._engine
        engine.owner.do(partial(engine.adopt, self, conn), math.inf, lambda: engine.connections.stopping)
        if self.status is not Status.CONNECTED:  # the owner has ended, and did not carry the request out
            raise Closed(f"the connection to {self.address} is not needed any more")

    def refused(self, error: NsqError, news: bool) -> None:
        """Log and report that a dial has failed, unless it failed so before."""
        reporter, wanted = self._engine.reporter, self.wanted
        passing = wanted is not None and self._engine.dialect.refused(wanted.key, error)
        if not news or isinstance(error, Closed):
            return
        level, reason = logging.INFO if passing else logging.WARNING, describe(self.address, error)
        fields = reporter.fields(self.address)
        log.log(level, "no connection to an nsqd, trying again: %s", reason, extra=fields)
        if isinstance(error, ServerError) and not error.retry:
            reporter.tell(reporter.hooks.server_error, self.address, error)

    def ended(self, conn: Conn, cause: NsqError | None) -> None:
        now = self._clock()
        if cause is None:  # we asked for the end; by now the nsqd may be wanted again
            self.backoff.lost(None, now)
            return
        if now - conn.connected_at >= max(_STEADY, self._pauses.ceiling(self.backoff.failures)):
            self.backoff.failures = 0
        self.backoff.failed(cause, now)
        self._engine.discovery.ask_soon()


class Engine:
    """The owner and its state. ``discovery`` are arguments of ``Discovery``, ``handlers`` of ``HandlerPool``.
    ``options`` are those that the original NSQ does not have.
    """

    # What stands here has not happened yet.
    report: StopReport | None = None  # set when the consumer has stopped
    refusal: NsqError | None = None  # see ``Consumer.refusal``
    watch: Watch | None = None  # see ``Consumer.wake_at_end``
    given_up = 0
    _old_untold, _told_of_old_at = 0, -math.inf  # given up for age, and not in the log yet
    _warned_of_kind = False
    _failed: Exception | None = None  # why not all threads could be started
    _stop_requested = False  # the owner may not have begun it: see ``Connections.stopping``
    _cls_by = math.inf
    _left: StopReport | None = None  # for a ``stop`` whose time is up before the threads have ended

    def __init__(
        self,
        subscription: Subscription,
        config: Config,
        discovery: Mapping[str, Any],
        options: Mapping[str, Any],
        give_up_policy: GiveUpPolicy,
        *,
        other_dialect: OtherDialect,
        transport: Transport | None = None,
        hooks: ConsumerHooks | None = None,
        **handlers: Any,
    ) -> None:
        self.config, self.subscription, self.topic = config, subscription, subscription.topic
        self.reporter = Reporter(self.topic, subscription.channel, hooks)
        self.name = self.reporter.name
        self.owner = Owner(f"{self.name}-rdy", log, begin=self._begin, turn=self._turn)
        self._own_transport = SocketTransport(config.local_address)
        self.transport = transport or self._own_transport
        self.context, self._give_up_policy = context_of(config), give_up_policy
        self._counting = threading.Lock()  # of given up messages; handler threads alone take it
        self.options = options
        self.traced = bool(options.get("trace"))  # whether each message is logged: a partitioned NSQ can
        self.other_dialect = other_dialect
        self.dialect: Dialect = other_dialect(self, options) if options else Original(self)
        self.pool = self.dialect.make_pool(
            name=self.name,
            fields=self.reporter.fields(),
            give_up=self._give_up,
            max_age=config.max_age,
            rate=config.rate,
            gives_up_at_last_failure=give_up_policy.wants_error,
            starved=lambda: self.connections.starved,
            **handlers,
        )
        self.connections: Connections = Connections(
            config, self.owner, self.pool, self.dialect, self.reporter, self._forget
        )
        pauses = Pauses(config.reconnect_initial, config.reconnect_max, random.random)
        self.endpoints: Endpoints[ConsumingEndpoint] = Endpoints(
            self.name,
            self.owner,
            lambda wanted: ConsumingEndpoint(wanted, self, pauses),
            time.monotonic,
            search=lambda: self.discovery.ask_soon(),
        )
        self.discovery: Discovery = Discovery(
            subscription,
            config,
            found=lambda wanted: self.owner.ask(partial(self.endpoints.want, wanted)),
            dropped=lambda key: self.owner.ask(partial(self.leave, key)),
            other=lambda discovery: self.dialect.asker(discovery),
            is_other=bool(options),
            name=self.name,
            **discovery,
        )
        self._ending = Ending()
        self._unheard: list[str] = []  # nsqds that have not answered CLS

    # Beginning and end: any thread.

    @property
    def running(self) -> bool:
        """Whether all threads have been started."""
        return self.owner.begun and self._failed is None

    @property
    def state(self) -> str:
        if self.pool.inherited:
            return "inherited from the parent process, inert"
        if self.report is not None or (self._stop_requested and not self.owner.exists):
            return "stopped"
        if self._stop_requested:
            return "stopping"
        return "running" if self.running else "new"

    def start(self) -> None:
        """Start all threads, and return when they run. Raises NsqError when threads cannot be started."""
        abandon_in_children(self)
        self.owner.start()
        failure = self._failed or self.owner.failure
        if failure is not None:
            raise NsqError(f"the consumer cannot start, as no thread can be had: {failure}")

    def ask_to_stop(self, deadline: float) -> None:
        self.owner.ask(partial(self._begin_to_stop, deadline))
        self._stop_requested = True
        self.owner.changed.wake()
        self._wake_watch()

    def _wake_watch(self) -> None:
        watch = self.watch
        if watch is not None:
            watch.wake()

    def stop(self, deadline: float) -> StopReport:
        """Take no more messages, wait for those in flight, cut off the connections that are left."""
        self.ask_to_stop(deadline)
        # After the line above: an owner that begins now sees ``_stop_requested``.
        if not self.owner.exists:
            return StopReport(clean=True)
        # Those that run user code cannot wait for their own end.
        owners = self.owner.is_current or self.discovery.owner.is_current
        if not (owners or self.pool.owns_current_thread() or self.reporter.callbacks.owns_current_thread()):
            end = last_moment(deadline, time.monotonic())
            self.owner.changed.wait_for(lambda: self.report is not None, end)
            self.owner.join(end)
        for report in (self.report, self._left):  # not ``or``: an unclean report is false
            if report is not None:
                return report
        return StopReport(clean=False, in_flight=sum(self.connections.in_flight().values()))

    def abandon(self) -> None:
        self.owner.abandon()
        self.pool.inherited = True
        self.discovery.abandon()
        self._own_transport.abandon()
        self.endpoints.abandon()
        self.connections.abandon()
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.abandon()

    # The owner.

    def _begin(self) -> None:
        try:
            if not self._stop_requested:
                if self.reporter.hooked:
                    self.reporter.callbacks.start()
                self.pool.start()
                self.discovery.start()
        except RuntimeError as error:
            self._failed = error
            self._begin_to_stop(time.monotonic())
        if self._stop_requested:
            self._begin_to_stop(math.inf)

    def _turn(self) -> float | None:
        self.connections.tick()
        if not self.connections.stopping:
            if self.endpoints.changed:
                self.endpoints.changed = False
                # Before the dials, so that RDY is shared among all connections to come, not among the first.
                each_room = self.discovery.kind == "partitioned"
                self.connections.expect(self.endpoints.expected(), each_room)
                self._see_whether_all_refuse()
            self.endpoints.dial_due()
        self.connections.decide_if_due()
        if self.connections.stopping:
            self._stop_when_done()
        if self.report is not None:
            self._wake_watch()
            return None
        due = self.dialect.turn(time.monotonic())
        return min(due, self.connections.next_tick(), self._ending.work_by, self.endpoints.next_due())

    # The stop: the owner.

    def _begin_to_stop(self, deadline: float) -> None:
        """Begin to stop, or make the stop under way more urgent."""
        self._stop_requested = True
        now = time.monotonic()
        self._ending.hasten(deadline, now)
        if self.connections.stopping:
            return
        self._cls_by = now + _CLS_PATIENCE
        self.connections.stopping = True
        self.owner.changed.wake()
        self.discovery.stop()
        self.endpoints.stop()
        self._own_transport.interrupt()
        self.connections.send_cls(self.connections.table.values())

    def _stop_when_done(self) -> None:
        now, ending, conns = time.monotonic(), self._ending, self.connections
        if now >= self._cls_by:  # close connections whose nsqd should have answered CLS
            for conn in conns.table.values():
                silent = now >= conn.last_message_at + _CLS_PATIENCE
                if silent and conn.open and conn.deliveries.answered and not conn.deliveries.close_wait:
                    self._unheard.append(conn.address)
                    conn.close(after_writing=True)
        if conns.table and now < ending.work_by:
            return
        left = list(conns.table.values())
        self._left = StopReport(
            clean=False,
            in_flight=sum(conn.deliveries.in_flight for conn in left),
            cut_off=sorted({*self._unheard, *[conn.address for conn in left]}),
        )
        answered = all(conn.deliveries.answered for conn in left)
        for conn in left:
            conn.close()
        # First the threads of connections, which bring messages and report events. Those that dial come last.
        self._join(partial(self.endpoints.join, dialing=False), lambda: ending.join_by)
        # Close this before the handlers' threads are joined: one may wait until a dead letter is stored. nsqd
        # delivers that message again anyway, as its connection is cut off.
        seconds = max(0.0, (ending.users_by - time.monotonic()) / 2)
        threads = [*self._left.unfinished_threads, *self._give_up_policy.close(seconds)]
        self._left = replace(self._left, unfinished_threads=threads)
        self._join(self.pool.stop, lambda: ending.users_by)
        self._join(self.endpoints.join, lambda: ending.join_by)
        self._join(self.discovery.join, lambda: ending.join_by)
        self.owner.run_requests()
        for conn in list(conns.table.values()):  # closed, but its threads have not ended in time
            self._forget(conn, None)
        self._join(self.reporter.callbacks.stop, lambda: ending.join_by)
        report = self._left
        if not (report.in_flight or report.cut_off or report.unfinished_threads):
            report = StopReport(clean=True)
        elif answered and not report.unfinished_threads:  # as after ``stop(0)``
            text = "%s stopped, nothing was in flight; cut off: %s"
            self.reporter.log(logging.INFO, text, ", ".join(report.cut_off))
        else:
            self.reporter.log(logging.WARNING, "%s did not stop cleanly: %s", report)
        self.report = report

    def _join(self, join: Callable[[float], list[str]], by: Callable[[], float]) -> None:
        """Wait for threads, in steps: a more urgent stop may come meanwhile, and changes ``by``. ``_left``
        names the threads that have not ended.
        """
        assert self._left is not None
        before = self._left
        step = 0.0  # the first join does not wait: it fills in ``_left``
        while left := join(min(by(), time.monotonic() + step)):
            names = dict.fromkeys([*before.unfinished_threads, *left])
            self._left = replace(before, unfinished_threads=list(names))
            self.owner.run_requests()
            if time.monotonic() >= by():
                return
            step = _STEP
        self._left = before

    # Connections come and go: the owner.

    def leave(self, key: Key) -> Conn | None:
        """Close a connection that is not wanted any more, once its messages are answered. Return it, unless
        it is gone or leaves already.
        """
        conn = self.connections.table.get(key)
        if conn is None or conn.deliveries.closing:
            return None
        self.connections.send_cls([conn])
        return conn

    def adopt(self, endpoint: ConsumingEndpoint, conn: Conn) -> None:
        """Accept a new connection. Raises Closed if it is not needed any more."""
        if self._stop_requested or endpoint.wanted is None:
            raise Closed(f"the connection to {conn.address} is not needed any more")
        endpoint.status = Status.CONNECTED  # from now on ``Endpoint.stop`` does not close the connection
        endpoint.backoff.reason, endpoint.backoff.final = None, False
        self.connections.add(conn)
        if conn.reply.partitioned and conn.key[1] is None and not self._warned_of_kind:
            self._warned_of_kind = True
            text = (
                "%s: nsqd %s (version %s) belongs to a partitioned NSQ, of which nsqd= reaches one partition "
                "at most: give nsqlookupd="
            )
            self.reporter.log(logging.WARNING, text, conn.address, conn.reply.version, address=conn.address)

    def _forget(self, conn: Conn, cause: NsqError | None) -> None:
        self.connections.remove(conn, cause)
        self.dialect.lost(conn.key, cause)

    def _see_whether_all_refuse(self) -> None:
        """End ``run`` if every known nsqd has refused the subscription for good."""
        if self.refusal is not None or self.connections.table:
            return
        reasons = [each.backoff.reason for each in self.endpoints.all]
        refusals = [each for each in reasons if isinstance(each, ServerError) and not each.retry]
        if refusals and len(refusals) == len(reasons):
            self._refuse(refusals[0])

    def refuse(self, error: NsqError) -> None:
        """Note that the topic cannot be consumed with the user's options. Called by discovery."""
        self.reporter.log(logging.ERROR, "%s: %s", error)
        self.owner.ask(partial(self._refuse, error))

    def _refuse(self, error: NsqError) -> None:
        if self.refusal is None:
            self.refusal = error
            self._wake_watch()

    # The handlers' threads.

    def _give_up(self, given_up: ToGiveUp) -> None:
        if self.discovery.kind == "partitioned":
            nsqds, nsqlookupds = set[str](), {each.text for each in self.discovery.nsqlookupds}
        else:
            nsqds, nsqlookupds = {each.address for each in self.endpoints.all}, set()
        fate = self._give_up_policy(given_up, nsqds, nsqlookupds)
        message, why = given_up[0]
        fields = self.pool.fields_of(message)
        untold = 0
        with self._counting:
            self.given_up += len(given_up)
            self._old_untold += len(given_up) * why.too_old
            if why.too_old and time.monotonic() >= self._told_of_old_at + _TELL_OF_OLD:
                untold, self._old_untold, self._told_of_old_at = self._old_untold, 0, time.monotonic()
        if not why.too_old:
            text = "gave up on %r from %s: %s: %s"
            log.error(text, message, message.nsqd_address, why, fate, extra=fields)
        elif untold:
            text = "%s: gave up %d messages, the last of them %r: %s: %s"
            log.warning(text, self.name, untold, message, why, fate, extra=fields)
        for message, _ in given_up:
            self.reporter.tell(self.reporter.hooks.given_up, message)

    # Any thread.

    def wait_until_connected(self, connections: int, deadline: float) -> bool:
        changed, conns = self.owner.changed, self.connections
        changed.wait_for(lambda: len(conns.table) >= connections or self._stop_requested, deadline)
        return len(conns.table) >= connections
