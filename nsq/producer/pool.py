"""The publishes of a producer: handed to the connections of its nsqds, and ended.

    a user's thread   adds a publish to ``pending``, and to the queue of an open connection or to ``waiting``
    endpoints' loops  send, read answers, and report each publish's end to ``complete``
    the pool's thread hands ``waiting`` out when a connection opens, takes back the publishes that a closed
                      one left, ends publishes at their deadline, and closes
    callbacks' thread runs futures' callbacks and hooks

A user's thread shares with the others ``pending`` (a set), ``waiting`` (a deque), the queue of a connection,
``usable`` (a tuple that is replaced), and the queue of the pool's thread. No lock: a publish may be
interrupted at any bytecode, or come from a signal handler that has interrupted another publish.
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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from nsq.errors import Closed, Forked, NsqError, PublishFailed, QueueFull, UsageError
from nsq.log import Logger
from nsq.producer import at_exit
from nsq.producer.book import AddressBook, Takers
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.nsqds import NAME, Nsqds, Setup
from nsq.producer.own import OwnConn
from nsq.producer.publishes import (
    ANY_THREAD,
    QUEUED,
    SENT,
    Publish,
    Verdict,
    checked_timeout,
    unanswered,
    unsent,
)
from nsq.producer.reports import Acknowledged, CloseReport, Failed, FlushReport, ProducerStats
from nsq.threads.owner import Ending, Owner, last_moment
from nsq.threads.waiters import Callbacks, Waiters, event_loop

log = Logger("nsq.producer")

#: Seconds; connections get half of this to say goodbye before they are cut off.
_FAREWELL_SECONDS = 2.0
#: How often, and every how many seconds, to look what another thread does with a claim that it has just got.
_LOOKS, _MOMENT = 50, 0.01


class Pool:
    """The publishes of one process; a forked child makes its own pool from the same ``setup``."""

    def __init__(self, setup: Setup, book: AddressBook | None = None) -> None:
        self.pid = os.getpid()
        self.pending: set[Publish] = set()
        """Publishes that have not ended, and ended ones whose connection still owes an answer."""
        self.futures: set[Publish] = set()
        """Those of them that came from ``publish_async``."""
        self.waiting: deque[Publish] = deque()  # publishes for which no connection is open
        self.usable: Takers = ()
        """The connections that take a publish of any lane that ``lanes`` does not name."""
        self.lanes: Mapping[str, Takers] = {}
        """By lane: the connections that take its publishes. Replaced, never changed."""
        self.closed = False
        """Whether new publishes are refused."""
        self.exiting = False
        """Whether the program ends: every publish is then waited for, as background work may not go on."""
        self.room = Waiters()
        """Woken when another publish may have become possible, and when the pool is closed."""
        self.report: CloseReport | None = None  # once it is closed
        self.callbacks = Callbacks(f"{NAME}-callbacks", log)
        self.book = book or AddressBook()
        self.owner = Owner(
            NAME,
            log,
            begin=self._start_threads,
            turn=self._take_turn,
            failed=self._end_unstarted,
            clock=setup.clock,
        )
        self.nsqds = Nsqds(self, setup)
        # The endpoints read these.
        self.name, self.endpoints, self.discovery = NAME, self.nsqds.endpoints, self.nsqds.discovery
        self.transport, self.context = self.nsqds.transport, setup.context
        self._config, self._clock = setup.config, setup.clock
        self._hooks = (setup.on_acknowledged, setup.on_failed)
        self._turn = itertools.count()
        self._bytes_left = 0  # a hint: see ``_has_room``
        self._wakes_at = math.inf  # when the pool's thread looks at deadlines next
        self._closers: set[int] = set()  # threads that have called ``close``
        self._ending = Ending()
        self._gone = False  # the owner ends: it carries out no more requests
        self._left = 0  # publishes that the close has ended
        self._warned_of_loop = False
        self._redial_requested = False  # endpoints know that a publish waits
        self.book.begin(self)

    # Publishing: any of the user's threads.

    def publish_and_wait(self, publish: Publish, timeout: float | None) -> None:
        """Send a publish by a round trip of its own, or else through the loops. Return when nsqd has stored
        it, or raise its error.
        """
        publish.caller = caller = _thread.get_ident()
        if caller in self.nsqds.own_threads:
            self.refuse_own_thread("publish")
        self._admit(publish, timeout, block=True)
        try:
            self.pending.add(publish)
            self._bytes_left -= publish.size
            usable = self.lanes.get(publish.lane, self.usable) if self.lanes else self.usable
            turn = next(self._turn)
            if usable and publish.started < usable[turn % len(usable)][0].own.rests_until:
                turn += 1
            # Keep order: stay behind unanswered futures, and behind what waits for a connection.
            if usable and not self.futures and not self.waiting and self.pid == os.getpid():
                endpoint, conn = usable[turn % len(usable)]
                own = None if conn.closed else endpoint.own.take(publish)
                if own is None:
                    if endpoint.own.miss(publish.started):
                        self.owner.ask(partial(self.nsqds.grow, endpoint))
                elif not publish.claim.acquire(False):  # the pool's thread has given it up
                    endpoint.own.put_back(own)
                else:
                    publish.endpoint, publish.state = endpoint, SENT
                    verdicts = endpoint.own.send(publish, own)
                    if not verdicts:
                        self.complete([publish], None)
                        return
                    self._carry_out(verdicts)
            if not publish.done():
                self._queue(publish, turn)
                if publish.endpoint is None and event_loop() is not None:
                    self._warn_of_event_loop(publish.topic)
                if not publish.wait_for(publish.done, publish.deadline):
                    self.give_up(publish)
        except BaseException:
            self.cancel(publish)
            raise
        error = publish.error
        if error is not None:
            raise error

    def _carry_out(self, verdicts: list[Verdict]) -> None:
        for publish, error, again in verdicts:
            if again and not publish.done():
                publish.try_again()
            else:
                self.complete([publish], error)

    def publish(self, publish: Publish, timeout: float | None, block: bool = True) -> None:
        """Queue a publish, which ends by itself. A caller interrupted after this must call ``cancel``."""
        publish.caller = ANY_THREAD
        self._admit(publish, timeout, block)
        try:
            self.futures.add(publish)
            self.pending.add(publish)
            self._bytes_left -= publish.size
            self._queue(publish, next(self._turn))
            if self.exiting and not publish.wait_for(publish.done, publish.deadline):
                self.give_up(publish)
        except BaseException:
            self.cancel(publish)
            raise

    def _admit(self, publish: Publish, timeout: float | None, block: bool) -> None:
        """Start the threads and wait for room, or raise."""
        seconds = self._config.publish_timeout if timeout is None else checked_timeout(timeout, 0.0)
        publish.started = started = self._clock()
        publish.deadline = deadline = started + seconds
        if not self.owner.begun:
            self._start(deadline)
        if len(self.pending) >= self._config.max_pending or self._bytes_left <= 0:
            self._await_room(publish.topic, deadline, block)
        if self.closed:
            raise Closed("the producer is closed")

    def _queue(self, publish: Publish, turn: int) -> None:
        """Put a publish into a connection's queue, or among those that wait for a connection."""
        usable = self.lanes.get(publish.lane, self.usable) if self.lanes else self.usable
        publish.state = QUEUED
        # Keep order: queue behind publishes that wait for a connection.
        if usable and not self.waiting:
            publish.endpoint, conn = usable[turn % len(usable)]
            conn.put(publish)
            if conn.closed:  # closed meanwhile: take the publish back, if the endpoint has not
                self.take_back(conn.waiting)
        else:
            self.waiting.append(publish)
            self.owner.wake()
        # Only now: ``flush`` and ``close`` wait for publishes without a caller. If a signal handler on this
        # thread calls them before this line, they must not wait for a publish that is not queued yet.
        publish.caller = 0
        if publish.deadline < self._wakes_at:
            self.owner.ask(self.look_at_deadlines)
        if self._gone:
            self.give_up(publish, "the producer was closed")

    def _await_room(self, topic: str, deadline: float, block: bool) -> None:
        if self._has_room():
            return
        full = (
            f"{len(self.pending)} publishes are unanswered, as many as max_pending or max_pending_bytes allow"
        )
        if not block:
            raise QueueFull(full)
        self.refuse_own_thread("publish, which would wait for room,")
        if event_loop() is not None:
            self._warn_of_event_loop(topic)
        if not self.room.wait_for(lambda: self.closed or self._has_room(), deadline):
            raise QueueFull(f"{full}, and none was answered in time")

    def _has_room(self) -> bool:
        """Whether the limits allow another publish. Summing the bytes visits every publish: do it only when
        the last result is used up.

        Without the GIL most of the subtractions of several threads may get lost. So only an eighth of what is
        left is given out before the next sum.
        """
        if len(self.pending) >= self._config.max_pending:
            return False
        if self._bytes_left <= 0:
            used = sum([publish.size for publish in self.pending.copy()])
            self._bytes_left = math.ceil((self._config.max_pending_bytes - used) / 8)
        return self._bytes_left > 0

    def cancel(self, publish: Publish) -> None:
        """End a publish whose caller was interrupted, unless a loop has claimed it."""
        if not self.withdraw(publish) and (publish.caller or publish.state is not SENT):
            # No loop has it: we sent it, or had the claim before.
            address = "an nsqd" if publish.endpoint is None else publish.endpoint.address
            self.complete([publish], unanswered(publish, address, "the call was interrupted"))

    def withdraw(self, publish: Publish) -> bool:
        """End a publish that is not sent, without a report; return False if it is claimed: perhaps sent."""
        if not publish.claim.acquire(False):
            return False
        self.forget(publish)
        publish.end(unsent(publish, "the call was interrupted"))
        publish.body, publish.command = b"", None  # it may stay queued for long
        if self.closed or self.book.bursts:
            self.owner.wake()
        return True

    def give_up(self, publish: Publish, reason: str = "") -> None:
        """End a publish at its deadline or at the producer's close. For its caller and the pool's thread."""
        if not reason and sys.is_finalizing():
            reason = "the interpreter is finalizing, and other threads no longer run"
        for _ in range(_LOOKS):
            if publish.claim.acquire(False):
                if not reason and publish.endpoint is not None:
                    reason = f"{publish.endpoint.address} did not take it in time"
                reason = reason or self.book.reason(publish) or self.nsqds.reasons()
                self.complete([publish], unsent(publish, reason))
                publish.body, publish.command = b"", None  # it may stay queued for long
                return
            # If it is not SENT, the thread with the claim is about to write that, or to end the publish.
            if publish.wait_for(lambda: publish.state is SENT or publish.done(), time.monotonic() + _MOMENT):
                break
        # It keeps its place on the connection: its answer must not be taken for that of the next.
        endpoint = publish.endpoint
        address = "an nsqd" if endpoint is None else endpoint.address
        error = unanswered(publish, address, reason or "no answer in time")
        if publish.end(error):
            self._tell(publish, error)
            if endpoint is not None:
                self.owner.ask(partial(self._suspect, endpoint))
        if publish.state is not SENT:  # its caller was interrupted when it had just got the claim
            self.forget(publish)

    def refuse_own_thread(self, what: str) -> None:
        """Raise UsageError on one of our threads: it would wait for itself. Idents of ended threads recur."""
        current = threading.current_thread()
        if self.nsqds.own_threads.get(_thread.get_ident()) is current:
            raise UsageError(
                f"{what} was called on {current.name}, a thread of the producer's own "
                "that it would have to wait for: use publish_async, or another thread"
            )

    def _warn_of_event_loop(self, topic: str) -> None:
        """Warn once that a publish stops the event loop of its thread while it waits. The cells of a notebook
        run on a loop too, but wait for each other anyway.
        """
        if not self._warned_of_loop and "ipykernel" not in sys.modules:
            self._warned_of_loop = True
            text = (
                "publish to %r waits on the thread of an event loop, and stops everything there for up to "
                "its timeout: use nsq.aio.Producer"
            )
            self.owner.ask(partial(log.warning, text, topic))  # not on the user's thread

    # Ends of publishes: the endpoints' loops, and threads that give up.

    def complete(self, publishes: list[Publish], error: NsqError | None) -> None:
        """End publishes that have left their connection: with ``error``, or stored."""
        hook = self._hooks[error is not None]
        for publish in publishes:
            if publish.end(error) and hook is not None:
                self._tell(publish, error)
        self.pending.difference_update(publishes)
        self.futures.difference_update(publishes)
        if self.room.locks.copy():  # locks the list, as ``bool`` does not: a thread may be about to wait
            self.room.wake()
        if self.closed or self.book.bursts:
            self.owner.wake()

    def _tell(self, publish: Publish, error: NsqError | None) -> None:
        """Have the callbacks' thread call the hook, if there is one."""
        hook = self._hooks[error is not None]
        if hook is None:
            return
        topic, messages, size = publish.topic, publish.messages, publish.size
        latency = self._clock() - publish.started
        if error is not None:
            self.callbacks.tell(hook, Failed(topic, messages, size, error, latency))
        else:
            address = publish.endpoint.address if publish.endpoint is not None else ""
            self.callbacks.tell(hook, Acknowledged(topic, messages, size, address, latency))

    def take_back(self, *left: deque[Any]) -> None:
        """Queue the publishes that a closed connection has not sent, in front of all that wait."""
        self.owner.ask(partial(self._take_back, left))

    # Beginning.

    def _start(self, deadline: float) -> None:
        """Start all threads that the producer will ever need, and return when they run."""
        if self.closed:
            raise Closed("the producer is closed")
        self.owner.start(deadline)
        if self.closed:
            raise Closed("the producer is closed")
        if self.owner.failure is not None:
            raise PublishFailed(
                f"no thread can be started ({self.owner.failure}): publish once before the main thread ends"
            )
        if not self.owner.begun:
            raise PublishFailed("the producer's threads did not start in time")

    def _start_threads(self) -> None:
        """Start all other threads. Runs on the owner's."""
        if self.closed:
            raise Closed("the producer is closed")
        self.callbacks.start()
        self.nsqds.start()
        at_exit.flush_at_exit(self)

    def _end_unstarted(self) -> None:
        if self.closed:
            self._close_unstarted()

    # The pool's thread.

    def _take_turn(self) -> float | None:
        self._choose()
        self.nsqds.dial_due()
        if self.nsqds.sweep():
            self.look_at_deadlines()
        self._expire()
        if self._ending.work_by < math.inf:
            self._close_when_done()
        if self._gone:
            return None
        return min(self._wakes_at, self._ending.work_by, self.book.due_at, self.nsqds.next_due())

    def _choose(self) -> None:
        """Choose the connections to use from now on. Waiting publishes go first."""
        takers = self.nsqds.takers()
        if self.book.assign(takers):
            return
        usable = tuple(each for each in takers if not each[0].overdue) or takers
        if usable:
            self._redial_requested = False
            self._hand_out(usable)
            self.usable = usable
            if self.waiting:  # a publish came between the two lines above
                self._hand_out(usable)
            return
        self.usable = ()
        self._forget_ended()
        if self.waiting:
            self._raise_if_none_can_succeed()
        if not self.waiting:
            self._redial_requested = False
        elif not self._redial_requested:
            self._redial_requested = True
            if self.discovery.asks:
                self.discovery.ask_soon()
            self.endpoints.hurry()

    @property
    def urgent(self) -> bool:
        """Whether a publish waits for any connection."""
        return self.book.urgent or (bool(self.waiting) and not self.usable)

    def _hand_out(self, usable: Takers) -> None:
        while self.waiting:
            publish = self.waiting[0]
            self.book.prepare(publish)
            if publish.done():
                self.forget(publish)
            else:
                publish.endpoint, conn = usable[next(self._turn) % len(usable)]
                conn.put(publish)
                if conn.closed:
                    self.take_back(conn.waiting)
            self.waiting.popleft()  # last: while ``waiting`` is empty, newer publishes overtake

    def forget(self, publish: Publish) -> None:
        """Forget a publish that ended while it waited to be sent again."""
        self.pending.discard(publish)
        self.futures.discard(publish)
        self.room.wake()

    def _forget_ended(self) -> None:
        """Forget ended publishes in ``waiting``: they must not pile up while no nsqd can be reached."""
        while self.waiting and self.waiting[0].done():
            self.forget(self.waiting.popleft())
        if len(self.waiting) > 2 * len(self.pending):  # most have ended, after one with a long timeout
            for publish in self.waiting.copy():
                if publish.done():
                    self.forget(publish)
                    with suppress(ValueError):
                        self.waiting.remove(publish)

    def _take_back(self, left: Iterable[deque[Any]]) -> None:
        publishes = []
        for each in left:
            with suppress(IndexError):  # not ``while each``: ``popleft`` locks the deque
                while True:
                    item = each.popleft()
                    if type(item) is not bytes:
                        item.endpoint = None
                        publishes.append(item)
        # In front of newer publishes: all of them, except some that were taken back a moment ago.
        older = []
        while publishes and self.waiting and self.waiting[0].started < publishes[0].started:
            older.append(self.waiting.popleft())
        self.waiting.extendleft(reversed(older + publishes))

    def _raise_if_none_can_succeed(self) -> None:
        endpoints = self.endpoints.all
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
        """Look soon. If no publish is left then, the next one through the loops wakes the pool's thread."""
        self._wakes_at = -math.inf

    def _expire(self) -> None:
        """End the publishes that have reached their deadline, and set the time of the next look."""
        now = self._clock()
        if now < self._wakes_at:
            return
        # First: a publish added from now on is either seen below, or sees ``_wakes_at`` and wakes us.
        self._wakes_at = earliest = math.inf
        for publish in self.pending.copy():
            if publish.done():
                if publish.state is not SENT or publish.caller:  # its caller was interrupted while it gave up
                    self.forget(publish)
                continue
            if publish.deadline <= now:
                self.give_up(publish)
            else:
                earliest = min(earliest, publish.deadline)
        self._wakes_at = earliest

    def _suspect(self, endpoint: PublishingEndpoint) -> None:
        """Mark an nsqd that left a publish unanswered: other nsqds come first until it answers."""
        # First: the answer may come this moment, and the read thread clears only an ``overdue`` that it sees.
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
        publishes = self._unended()
        left = sum([not publish.wait_for(publish.done, deadline) for publish in publishes])
        all_called = self.callbacks.wait_until_run(deadline) if self.owner.begun else True
        return FlushReport(clean=all_called and not left, unanswered=left)

    def _unended(self) -> list[Publish]:
        """Omit publishes that wait for the calling thread itself, which may be a signal handler: those not
        queued yet, and round trips.
        """
        waiting_for = {*self._closers, _thread.get_ident(), ANY_THREAD}
        return [each for each in self.pending.copy() if each.caller not in waiting_for and not each.done()]

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
            unanswered = max(self.unended, self._left)
            return CloseReport(clean=False, unanswered=unanswered, unfinished_threads=[NAME])
        return self.report

    def _close_unstarted(self) -> None:
        """Close a pool of which no thread runs or is being started."""
        self.nsqds.stop()
        self.callbacks.stop(-math.inf)
        self.report = CloseReport(clean=True)
        self.owner.changed.wake()

    def ask_to_close(self, deadline: float) -> None:
        """Refuse new publishes and begin to close. Does not wait."""
        self._closers.add(_thread.get_ident())
        self.owner.ask(partial(self._begin_close, deadline))
        self.closed = True
        self.room.wake()

    def _begin_close(self, deadline: float) -> None:
        self.closed = True  # ``ask_to_close`` may have been interrupted
        self._ending.hasten(deadline, self._clock())

    def _close_when_done(self) -> None:
        """End the publishes left when the time is up, then all threads. Runs on the pool's thread."""
        left = self._unended()
        if left and self._clock() < self._ending.work_by:
            return
        self._left = len(left)
        for publish in left:
            self.give_up(publish, "the producer was closed")
        self.nsqds.stop()
        if not self.pending:  # else a connection still owes an answer: cut it off
            now = self._clock()
            self.endpoints.join(now + min(self._ending.join_by - now, _FAREWELL_SECONDS) / 2)
        unfinished = self.nsqds.cut_off(self._closers, self._ending.join_by)
        self._gone = True
        self.owner.run_requests()
        for publish in self.pending.copy():  # added while we closed; later ones look at ``_gone``
            if publish.caller not in self._closers:
                self.give_up(publish, "the producer was closed")
        for endpoint in self.endpoints.all:
            endpoint.own.dispose_of_lost()
        unfinished += self.callbacks.stop(self._ending.join_by)
        at_exit.forget(self)
        if left:
            log.warning("closed with %d publishes unanswered", len(left), extra={"left": len(left)})
        self.report = CloseReport(
            clean=not (left or unfinished), unanswered=len(left), unfinished_threads=unfinished
        )
        self.owner.changed.wake()

    def _refuse_callback(self, verb: str) -> None:
        self.refuse_own_thread(verb)
        if self.callbacks.owns_current_thread():
            raise UsageError(
                f"{verb} was called by a future's callback, whose return it would wait for: "
                "call it from another thread"
            )

    def abandon(self) -> None:
        """Drop everything in a forked child: the parent completes its publishes."""
        self.closed = self._gone = True
        at_exit.forget(self)
        self.nsqds.abandon()
        for publish in self.pending.copy():
            publish.end(Forked("it was published by the parent process, which sees to it"))

    # Reports.

    @property
    def unended(self) -> int:
        return sum([not publish.done() for publish in self.pending.copy()])

    def stats(self) -> ProducerStats:
        connections, published, failed = self.nsqds.stats()
        return ProducerStats(
            pending=self.unended, published=published, failed=failed, connections=connections
        )
