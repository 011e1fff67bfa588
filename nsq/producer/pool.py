"""The publishes of a producer: handed to the connections of its nsqds, and ended.

The state is the set of publishes that have not ended (``pending``), the queue of those that no connection has
got yet (``waiting``), and the nsqds with their connections, by address (``nsqds``). ``routing`` says which
connections take which publish.

    a user's thread   makes a round trip over an idle connection that it has for itself; or adds a publish to
                      ``pending``, and to the queue of an open connection or to ``waiting``
    endpoints' loops  send, read answers, and report each publish's end to ``complete``
    the pool's thread hands ``waiting`` out when a connection opens, takes back the publishes that a closed
                      one left, ends publishes at their deadline, and closes
    callbacks' thread runs futures' callbacks and hooks

A user's thread shares with the others a set, deques and lists, and tuples that are replaced. No lock: a
publish may be interrupted at any bytecode, or come from a signal handler that has interrupted another one.
"""

from __future__ import annotations

import _thread
import copy
import itertools
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from nsq.errors import Closed, Forked, NsqError, PublishFailed, QueueFull, ServerError, Unanswered, UsageError
from nsq.log import Logger
from nsq.producer import at_exit
from nsq.producer.answers import PLAIN, Verdict, unanswered, unsent
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.nsqds import NAME, Nsqds, Setup
from nsq.producer.own import OwnConn
from nsq.producer.publishes import NO_OPTIONS, QUEUED, SENT, Publish, PublishFuture, checked_timeout
from nsq.producer.reports import Acknowledged, CloseReport, Failed, FlushReport, ProducerStats
from nsq.producer.routing import Detection, NewOther, Plain, Routing, Target, Targets
from nsq.threads.owner import Ending, Owner, last_moment
from nsq.threads.waiters import Callbacks, Waiters, event_loop
from nsq.wire import commands
from nsq.wire.frames import PUBLISHED, Published

log = Logger("nsq.producer")

_FAREWELL_SECONDS = 2.0  # seconds; connections get half of this to say goodbye before they are cut off
#: Seconds within which a thread has ended a publish after it claimed it for that, unless it was interrupted.
_MOMENT = 0.5


class Pending(set[Publish]):
    """The publishes that have not ended, and ended ones whose connection still owes an answer. A publish that
    makes a round trip of its own is not among them.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        super().__init__()
        self.futures: set[Publish] = set()  # those of them that came from ``publish_async``
        # Woken when another publish may be possible, when a round trip has ended, and at the close.
        self.changed = Waiters()
        self.bytes_left = 0  # a hint: see ``has_room``
        self._most, self._most_bytes = most, most_bytes

    def has_room(self) -> bool:
        """Whether the limits allow another publish. Summing the bytes visits every publish: do it only when
        the last result is used up.

        Without the GIL most of the subtractions of several threads may get lost. So only an eighth of what is
        left is given out before the next sum.
        """
        if len(self) >= self._most:
            return False
        if self.bytes_left <= 0:
            used = sum([publish.size for publish in self.copy()])
            self.bytes_left = math.ceil((self._most_bytes - used) / 8)
        return self.bytes_left > 0

    def forget(self, publishes: Iterable[Publish]) -> None:
        """Remove publishes, and wake those that wait for a change."""
        self.difference_update(publishes)
        self.futures.difference_update(publishes)
        if self.changed.locks.copy():  # locks the list, as ``bool`` does not: a thread may be about to wait
            self.changed.wake()


class Pool:
    """The publishes of one process; a forked child makes its own pool from the same ``setup``."""

    def __init__(self, setup: Setup, new_other: NewOther | None = None) -> None:
        self.pid = os.getpid()
        self.setup, self._config, self._clock = setup, setup.config, setup.clock
        self.pending = Pending(setup.config.max_pending, setup.config.max_pending_bytes)
        self.waiting: deque[Publish] = deque()
        self.callbacks = Callbacks(f"{NAME}-callbacks", log)
        self.owner = Owner(
            NAME,
            log,
            begin=self._start_threads,
            turn=self._take_turn,
            failed=self._close_unstarted,
            clock=setup.clock,
        )
        self.routing: Routing = Plain(self, setup.config)
        self.detection = Detection(self, new_other)
        self.nsqds = Nsqds(self)
        self.closed = False  # whether new publishes are refused
        self.exiting = False  # the program ends: publishes are waited for, as background work may not go on
        self.report: CloseReport | None = None  # once it is closed
        self._turn = itertools.count()
        self._expires_at = math.inf  # when the pool's thread looks at deadlines next
        self._ending = Ending()
        self._closers: set[int] = set()  # threads that have called ``close``
        self._gone = False  # the owner ends: it carries out no more requests
        self._ended_by_close = 0  # publishes
        self._warned_of_loop = False

    # Publishing: any of the user's threads.

    def publish_message(self, topic: str, body: bytes, timeout: float | None) -> Published:
        """Return when nsqd has stored a message without options, or raise the error.

        Usually an idle connection takes it at once. Then it needs no ``Publish``: no other thread sees it.
        """
        config, pending, routing = self._config, self.pending, self.routing
        usual = type(topic) is str and type(body) is bytes and 0 < len(body) <= config.max_msg_size
        route = routing.route(topic) if usual else None
        if route is None:
            return self.publish_and_wait(routing.new_publish(Publish, topic, body, None, NO_OPTIONS), timeout)
        where, targets = route
        seconds = config.publish_timeout if timeout is None else checked_timeout(timeout, 0.0)
        started = self._clock()
        full = pending.bytes_left <= 0 or len(pending) >= config.max_pending
        if full or self.closed or not self.owner.begun:
            self._admit(topic, started + seconds)
        if _thread.get_ident() in self.nsqds.threads:
            self.refuse_our_thread("publish")

        # ``where`` and ``routing`` belong together: the pool may have another routing by now.
        def made(endpoint: PublishingEndpoint | None = None) -> Publish:
            publish = Publish(topic, body)
            publish.destination, publish.rules, publish.endpoint = where, routing.rules, endpoint
            publish.started, publish.deadline = started, started + seconds
            return publish

        taken = self._take(targets, started, seconds)
        if taken is None:
            return self._send_through_loops(made())
        endpoint, conn = taken
        try:
            endpoint.own.send(conn, commands.pub(where, body), seconds, routing.patience)
        except BaseException as error:
            publish = made(endpoint)
            self._note_failure(publish, conn, error)
        else:
            if self.setup.on_acknowledged is not None:
                self._tell(made(endpoint), None)
            if pending.changed.locks.copy() or self.closed:  # locks the list, as ``bool`` does not
                self._note_end_of_trip()
            return PUBLISHED
        return self._send_through_loops(publish)

    def publish_and_wait(self, publish: Publish, timeout: float | None) -> Published:
        """Do the same for a publish that was made before: with options, hooks, or several messages."""
        seconds = self._config.publish_timeout if timeout is None else checked_timeout(timeout, 0.0)
        publish.started = started = self._clock()
        publish.deadline = started + seconds
        routing, pending = self.routing, self.pending
        full = pending.bytes_left <= 0 or len(pending) >= self._config.max_pending
        if full or self.closed or not self.owner.begun:
            self._admit(publish.topic, publish.deadline)
        if _thread.get_ident() in self.nsqds.threads:
            self.refuse_our_thread("publish")
        targets = routing.open if publish.rules is PLAIN else routing.targets(publish)
        taken = self._take(targets, started, seconds)
        if taken is not None:
            publish.endpoint, conn = taken
            command = publish.command or commands.pub(publish.destination, publish.body)
            try:
                publish.endpoint.own.send(conn, command, seconds, routing.patience, publish)
            except BaseException as error:
                self._note_failure(publish, conn, error)
            else:
                self.complete([publish], None)
        return self._send_through_loops(publish)

    def _take(
        self, targets: Targets, now: float, seconds: float
    ) -> tuple[PublishingEndpoint, OwnConn] | None:
        """Take an idle connection of one of these nsqds, unless the publish must queue behind others."""
        # Keep order: stay behind unanswered futures, and behind what waits for a connection.
        if not targets or self.pending.futures or self.waiting or self.pid != os.getpid():
            return None
        endpoint, shared = targets[next(self._turn) % len(targets)]
        if now < endpoint.own.suspended_until:
            endpoint, shared = targets[next(self._turn) % len(targets)]
        conn = None if shared.closed else endpoint.own.take(now)
        if conn is None:
            if endpoint.own.miss(now):
                self.owner.ask(partial(self.nsqds.grow, endpoint))
            return None
        conn.deadline = now + seconds
        return endpoint, conn

    def _note_failure(self, publish: Publish, conn: OwnConn, error: BaseException) -> None:
        """End a publish whose round trip has failed, or leave it for another try; raise an interrupt."""
        rules, retry = publish.rules, self._config.retry_uncertain
        now, address = self._clock(), conn.address
        if isinstance(error, Unanswered):
            rules.note_silence(publish, address)
        if isinstance(error, ServerError):
            took = now - publish.started
            verdicts = rules.refused([publish], error, address, retry_uncertain=retry, took=took)
        elif isinstance(error, NsqError) and now < publish.deadline and not self._gone:
            verdicts = rules.lost([publish], error, address, executed=True, retry_uncertain=retry)
        else:
            reason, cause = "the call was interrupted", None
            if isinstance(error, NsqError):
                reason, cause = "the producer was closed" if self._gone else "no answer in time", error
            verdicts = [Verdict(publish, unanswered(publish, address, reason, cause), again=False)]
        for _, final, again in verdicts:
            if again:
                publish.try_again()
                publish.caller = conn.caller
                self.pending.add(publish)  # before the trip ends: ``close`` sees one or the other
            else:
                self.complete([publish], final)
        conn.caller = None
        self._note_end_of_trip()
        if not isinstance(error, NsqError):
            raise error

    def _note_end_of_trip(self) -> None:
        """Tell those that wait for the end of round trips: ``flush`` and ``close``."""
        self.pending.changed.wake()
        if self.closed:
            self.owner.wake()

    def _send_through_loops(self, publish: Publish) -> Published:
        """Queue a publish and wait for its end, unless it has ended."""
        if publish.done():
            return publish.outcome()
        try:
            self._queue(publish)
            if publish.endpoint is None:
                self._warn_of_event_loop(publish.topic)
            if not publish.wait_for(publish.done, publish.deadline):
                self.give_up(publish)
        except BaseException:
            self.cancel(publish)
            raise
        return publish.outcome()

    def publish(self, publish: PublishFuture, timeout: float | None, block: bool = True) -> None:
        """Queue a publish, which ends by itself. A caller interrupted after this must call ``cancel``."""
        seconds = self._config.publish_timeout if timeout is None else checked_timeout(timeout, 0.0)
        publish.callbacks = self.callbacks
        publish.started = started = self._clock()
        publish.deadline = started + seconds
        pending = self.pending
        full = pending.bytes_left <= 0 or len(pending) >= self._config.max_pending
        if full or self.closed or not self.owner.begun:
            self._admit(publish.topic, publish.deadline, block)
        try:
            pending.futures.add(publish)
            self._queue(publish)
            if self.exiting and not publish.wait_for(publish.done, publish.deadline):
                self.give_up(publish)
        except BaseException:
            self.cancel(publish)
            raise

    def _admit(self, topic: str, deadline: float, block: bool = True) -> None:
        """Start the threads and wait for room, or raise."""
        if not self.owner.begun and not self.closed:
            self.owner.start(deadline)
        if self.closed:
            raise Closed("the producer is closed")
        if self.owner.failure is not None:
            raise PublishFailed(
                f"no thread can be started ({self.owner.failure}): publish once before the main thread ends"
            )
        if not self.owner.begun:
            raise PublishFailed("the producer's threads did not start in time")
        pending = self.pending
        if pending.has_room():
            return
        full = f"{len(pending)} publishes are unanswered, as many as max_pending or max_pending_bytes allow"
        if not block:
            raise QueueFull(full)
        self.refuse_our_thread("publish, which would wait for room,")
        self._warn_of_event_loop(topic)
        self.owner.ask(self.look_at_deadlines)  # for publishes whose caller was interrupted twice
        if not pending.changed.wait_for(lambda: self.closed or pending.has_room(), deadline):
            raise QueueFull(f"{full}, and none was answered in time")
        if self.closed:  # while it waited
            raise Closed("the producer is closed")

    def _queue(self, publish: Publish) -> None:
        """Put a publish into a connection's queue, or among those that wait for a connection."""
        publish.caller = _thread.get_ident()
        self.pending.add(publish)
        self.pending.bytes_left -= publish.size
        routing = self.routing
        targets = routing.open if publish.rules is PLAIN else routing.targets(publish)
        publish.state = QUEUED
        # Keep order: queue behind publishes that wait for a connection.
        if targets and not self.waiting:
            # As in ``put``: this runs for every message.
            publish.endpoint, conn = targets[next(self._turn) % len(targets)]
            conn.put(publish)
            if conn.closed:  # closed meanwhile: take the publish back, if the endpoint has not
                self.take_back(conn.waiting)
        else:
            self.waiting.append(publish)
            self.owner.wake()
        publish.caller = None  # only now: it can be sent without this thread
        if publish.deadline < self._expires_at:
            self.owner.ask(self.look_at_deadlines)
        if self._gone:
            self.give_up(publish, "the producer was closed")

    def put(self, publish: Publish, target: Target) -> None:
        """Put a publish into a connection's queue."""
        publish.endpoint, conn = target
        conn.put(publish)
        if conn.closed:
            self.take_back(conn.waiting)

    def cancel(self, publish: Publish) -> None:
        """End a publish whose caller was interrupted, unless a loop has claimed it."""
        if not self.withdraw(publish) and publish.state is not SENT:  # we had the claim before
            self.complete([publish], unsent(publish, "the call was interrupted"))

    def withdraw(self, publish: Publish) -> bool:
        """End a publish that is not sent, without a report; return False if it is claimed: perhaps sent."""
        if not publish.claim.acquire(False):
            return False
        self.pending.forget([publish])
        publish.end(unsent(publish, "the call was interrupted"))
        publish.body, publish.command = b"", None  # it may stay queued for long
        if self.closed or self.routing.awaits_ends:
            self.owner.wake()
        return True

    def refuse(self, publish: Publish, error: NsqError) -> None:
        """End a publish that no nsqd can take."""
        if publish.claim.acquire(False):
            self.complete([publish], unsent(publish, str(error)) if publish.uncertain_at else error)

    def give_up(self, publish: Publish, reason: str = "") -> None:
        """End a publish at its deadline or at the producer's close. For its caller and the pool's thread."""
        if not reason and sys.is_finalizing():
            reason = "the interpreter is finalizing, and other threads no longer run"
        if publish.claim.acquire(False):
            if not reason and publish.endpoint is not None:
                reason = f"{publish.endpoint.address} did not take it in time"
            reason = reason or self.routing.reason(publish) or self.nsqds.reasons()
            self.complete([publish], unsent(publish, reason))
            publish.body, publish.command = b"", None  # it may stay queued for long
            return
        if publish.state is not SENT:  # another thread has the claim in order to end it
            publish.wait_for(publish.done, time.monotonic() + _MOMENT)
        # It keeps its place on the connection: its answer must not be taken for that of the next.
        endpoint = publish.endpoint
        address = "an nsqd" if endpoint is None else endpoint.address
        error = unanswered(publish, address, reason or "no answer in time")
        if publish.end(error):
            self._tell(publish, error)
            if endpoint is not None:
                self.owner.ask(partial(self._note_overdue, endpoint))
        if publish.state is not SENT:
            self.pending.forget([publish])

    def refuse_our_thread(self, what: str) -> None:
        """Raise UsageError on one of our threads: it would wait for itself. Idents of ended threads recur."""
        current = threading.current_thread()
        if self.nsqds.threads.get(_thread.get_ident()) is current:
            raise UsageError(
                f"{what} was called on {current.name}, a thread of the producer's own "
                "that it would have to wait for: use publish_async, or another thread"
            )

    def _warn_of_event_loop(self, topic: str) -> None:
        """Warn once that a publish stops its thread's event loop. Cells of a notebook wait anyway."""
        if event_loop() is not None and not self._warned_of_loop and "ipykernel" not in sys.modules:
            self._warned_of_loop = True
            text = (
                "publish to %r waits on the thread of an event loop, and stops everything there for up to "
                "its timeout: use nsq.aio.Producer"
            )
            self.owner.ask(partial(log.warning, text, topic))  # not on the user's thread

    # Ends of publishes: the endpoints' loops, and threads that give up.

    def complete(self, publishes: list[Publish], error: NsqError | None) -> None:
        """End publishes that have left their connection: with ``error``, or stored."""
        hooks = self.setup
        told = (hooks.on_acknowledged if error is None else hooks.on_failed) is not None
        for publish in publishes:
            if publish.end(error) and told:
                self._tell(publish, error)
        self.pending.forget(publishes)
        if self.closed or self.routing.awaits_ends:
            self.owner.wake()

    def _tell(self, publish: Publish, error: NsqError | None) -> None:
        """Have the callbacks' thread call the hook, if there is one."""
        hooks, latency = self.setup, self._clock() - publish.started
        about = publish.topic, publish.messages, publish.size
        if error is not None and hooks.on_failed is not None:
            self.callbacks.tell(hooks.on_failed, Failed(*about, error, latency))
        elif error is None and hooks.on_acknowledged is not None:
            address = "" if publish.endpoint is None else publish.endpoint.address
            self.callbacks.tell(hooks.on_acknowledged, Acknowledged(*about, address, latency))

    def take_back(self, *left: deque[Publish] | deque[Publish | bytes]) -> None:
        """Queue the publishes that a closed connection has not sent, in front of all that wait."""
        self.owner.ask(partial(self._take_back, left))

    # Beginning.

    def _start_threads(self) -> None:
        """Start all other threads that the producer will ever need. Runs on the owner's."""
        if self.closed:
            raise Closed("the producer is closed")
        self.callbacks.start()
        self.nsqds.start()
        at_exit.flush_at_exit(self)

    # The pool's thread.

    def _take_turn(self) -> float | None:
        self._assign()
        self.nsqds.dial_due()
        if self.nsqds.reap():
            self.look_at_deadlines()
        self._expire()
        if self._ending.work_by < math.inf:
            self._close_when_done()
        if self._gone:
            return None
        return min(self._expires_at, self._ending.work_by, self.routing.due_at, self.nsqds.next_due())

    def _assign(self) -> None:
        """Give waiting publishes to the connections that are open."""
        if self.routing.assign(self.nsqds.open()):
            self.nsqds.hurry(False)
            return
        self._forget_ended()
        if self.waiting:
            self._raise_if_none_can_succeed()
        self.nsqds.hurry(bool(self.waiting))

    def _forget_ended(self) -> None:
        """Forget ended publishes in ``waiting``: they must not pile up while no nsqd can be reached."""
        while self.waiting and self.waiting[0].done():
            self.pending.forget([self.waiting.popleft()])
        if len(self.waiting) > 2 * len(self.pending):  # most have ended, after one with a long timeout
            for publish in self.waiting.copy():
                if publish.done():
                    self.pending.forget([publish])
                    with suppress(ValueError):
                        self.waiting.remove(publish)

    def _take_back(self, left: Iterable[deque[Publish] | deque[Publish | bytes]]) -> None:
        publishes: list[Publish] = []
        for each in left:
            with suppress(IndexError):  # not ``while each``: ``popleft`` locks the deque
                while True:
                    item = each.popleft()
                    if not isinstance(item, bytes):
                        item.endpoint = None
                        publishes.append(item)
        # Put them before all that wait, except older ones, which another connection has just given back.
        older = []
        while publishes and self.waiting and self.waiting[0].started < publishes[0].started:
            older.append(self.waiting.popleft())
        self.waiting.extendleft(reversed(older + publishes))

    def _raise_if_none_can_succeed(self) -> None:
        endpoints = self.nsqds.endpoints.all
        if not all(each.backoff.final for each in endpoints):
            return
        for publish in self.waiting.copy():
            if not endpoints or not all(each.cannot_succeed(publish.started) for each in endpoints):
                continue
            with suppress(ValueError):
                self.waiting.remove(publish)
            error = unsent(publish, self.nsqds.reasons())
            reason = endpoints[0].backoff.reason
            if len(endpoints) == 1 and not publish.uncertain_at and reason is not None:
                error = copy.copy(reason)  # callers must not share a traceback
                error.add_note(f"said by {endpoints[0].address}")
            if publish.claim.acquire(False):
                self.complete([publish], error)

    def look_at_deadlines(self) -> None:
        """Have the next turn of the pool's thread look at the deadlines of all publishes."""
        self._expires_at = -math.inf

    def _expire(self) -> None:
        """End the publishes that have reached their deadline, and set the time of the next look."""
        now = self._clock()
        if now < self._expires_at:
            return
        # First: a publish added from now on is either seen below, or sees ``_expires_at`` and wakes us.
        self._expires_at = earliest = math.inf
        for publish in self.pending.copy():
            if publish.done():
                if publish.state is not SENT:  # its caller was interrupted while it gave up
                    self.pending.forget([publish])
                continue
            if publish.deadline <= now:
                self.give_up(publish)
            else:
                earliest = min(earliest, publish.deadline)
        self._expires_at = earliest

    def _note_overdue(self, endpoint: PublishingEndpoint) -> None:
        """Mark an nsqd that left a publish unanswered: other nsqds come first until it answers."""
        # Set it first: the answer may come now, and the read thread clears ``overdue`` only if it is set.
        endpoint.overdue = True
        if not endpoint.pending:
            endpoint.overdue = False

    def dispose(self, conn: OwnConn) -> None:
        """Have the pool's thread close a connection. Any thread may call this."""
        self.ask_about(conn, conn.dispose)

    def ask_about(self, conn: OwnConn, request: Callable[[], object]) -> None:
        """Have the pool's thread do something with a connection. If that thread has ended, close it."""
        self.owner.ask(request)
        if self._gone:  # after the line above: either the pool's thread has seen the request, or we see this
            conn.dispose()

    # The end.

    def flush(self, deadline: float) -> FlushReport:
        """Wait for all publishes that are pending now, and for their callbacks and hooks."""
        self._refuse_callback("flush")
        self.owner.ask(self.look_at_deadlines)
        publishes = self._unended()
        trips = [(conn, conn.used_at) for conn in self.nsqds.in_use(self._exempt)]

        def under_way() -> int:
            return sum([conn.caller is not None and conn.used_at == began for conn, began in trips])

        left = sum([not publish.wait_for(publish.done, deadline) for publish in publishes])
        self.pending.changed.wait_for(lambda: not under_way(), deadline)
        left += under_way()
        all_called = self.callbacks.wait_until_run(deadline) if self.owner.begun else True
        return FlushReport(clean=all_called and not left, unanswered=left)

    def _unended(self) -> list[Publish]:
        """Return the publishes to wait for: none that this thread, in a signal handler, has interrupted."""
        exempt = self._exempt
        return [each for each in self.pending.copy() if each.caller not in exempt and not each.done()]

    @property
    def _exempt(self) -> set[int]:
        return {*self._closers, _thread.get_ident()}

    def close(self, seconds: float) -> CloseReport:
        """Ask the pool's thread to close, and wait for it."""
        self._refuse_callback("close")
        deadline = self._clock() + seconds
        self.ask_to_close(deadline)
        if not self.owner.exists:
            self._close_unstarted()
        end = last_moment(deadline, self._clock())
        self.owner.changed.wait_for(lambda: self.report is not None, end)
        self.owner.join(end)
        if self.report is None:
            left = max(self.unended, self._ended_by_close)
            return CloseReport(clean=False, unanswered=left, unfinished_threads=[NAME])
        return self.report

    def _close_unstarted(self) -> None:
        """Close a pool of which no thread runs or is being started, if it was asked to."""
        if not self.closed:
            return
        self.nsqds.stop()
        self.callbacks.stop(-math.inf)
        self.report = CloseReport(clean=True)
        self.owner.changed.wake()

    def ask_to_close(self, deadline: float) -> None:
        """Refuse new publishes and begin to close. Does not wait."""
        self._closers.add(_thread.get_ident())
        self.owner.ask(partial(self._begin_close, deadline))
        self.closed = True
        self.pending.changed.wake()

    def _begin_close(self, deadline: float) -> None:
        self.closed = True  # ``ask_to_close`` may have been interrupted
        self.look_at_deadlines()
        self._ending.hasten(deadline, self._clock())

    def _close_when_done(self) -> None:
        """End the publishes left when the time is up, then all threads. Runs on the pool's thread."""
        left, trips = self._unended(), self.nsqds.in_use(self._exempt)
        if (left or trips) and self._clock() < self._ending.work_by:
            return
        self._ended_by_close = count = len(left) + len(trips)
        for publish in left:
            self.give_up(publish, "the producer was closed")
        self.nsqds.stop()
        endpoints = self.nsqds.endpoints
        if not (self.pending or trips):  # else a connection still owes an answer: cut it off
            now = self._clock()
            endpoints.join(now + min(self._ending.join_by - now, _FAREWELL_SECONDS) / 2)
        self._gone = True
        unfinished = self.nsqds.cut_off(self._closers, self._ending.join_by)
        self.owner.run_requests()
        for publish in self.pending.copy():  # added while we closed; later ones look at ``_gone``
            if publish.caller not in self._closers:
                self.give_up(publish, "the producer was closed")
        self.nsqds.close_lost()
        unfinished += self.callbacks.stop(self._ending.join_by)
        at_exit.running.discard(self)
        if count:
            log.warning("closed with %d publishes unanswered", count, extra={"left": count})
        self.report = CloseReport(
            clean=not (count or unfinished), unanswered=count, unfinished_threads=unfinished
        )
        self.owner.changed.wake()

    def _refuse_callback(self, verb: str) -> None:
        self.refuse_our_thread(verb)
        if self.callbacks.owns_current_thread():
            raise UsageError(
                f"{verb} was called by a future's callback, whose return it would wait for: "
                "call it from another thread"
            )

    def abandon(self) -> None:
        """Drop everything in a forked child: the parent completes its publishes."""
        self.closed = self._gone = True
        at_exit.running.discard(self)
        self.nsqds.abandon()
        for publish in self.pending.copy():
            publish.end(Forked("it was published by the parent process, which sees to it"))

    # Reports.

    @property
    def unended(self) -> int:
        pending = sum([not publish.done() for publish in self.pending.copy()])
        return pending + len(self.nsqds.in_use(()))

    def stats(self) -> ProducerStats:
        connections, published, failed = self.nsqds.stats()
        return ProducerStats(
            pending=self.unended, published=published, failed=failed, connections=connections
        )
