"""Producer: publishes to one nsqd, or to any of several."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from nsq.config import Config, Options, SignatureWithOptions, checked_function, checked_functions
from nsq.connection.handshake import describe, dial
from nsq.errors import ConfigError, ConnectionFailed, NsqError, QueueFull, Unanswered, UsageError
from nsq.log import Logger
from nsq.producer.hooks import PublishHook, Watched
from nsq.producer.nsqds import Setup
from nsq.producer.pool import Pool
from nsq.producer.publishes import (
    Defer,
    P,
    Publish,
    PublishFuture,
    PublishOptions,
    checked_timeout,
    with_options_shown,
)
from nsq.producer.reports import Acknowledged, CloseReport, Failed, FlushReport, ProducerHealth, ProducerStats
from nsq.threads.forks import abandon_in_children
from nsq.threads.waiters import SafeEvent, Waiters, refuse_eventlet, start_thread
from nsq.transport.addresses import Addresses, checked, checked_nsqds
from nsq.transport.base import Transport
from nsq.transport.dialing import SocketTransport
from nsq.transport.tls import context_of
from nsq.wire.frames import Published

if TYPE_CHECKING:
    from nsq.discovery.lookups import Discovery
    from nsq.partitioned.routing import Router
    from nsq.partitioned.tracing import Tracing

log = Logger("nsq.producer")


class Producer:
    """``Producer("10.0.0.2:4150", "10.0.0.3:4150")``, or ``Producer(nsqlookupd="10.0.0.7:4161")``.

    Make one for the whole program: any number of threads may share it, signal handlers too, and a forked
    child goes on with connections of its own. Options are those of Config. The producer connects when it is
    first needed.

    Every publish ends in one of these ways:

    - it returns: an nsqd has stored the message;
    - PublishFailed (QueueFull): no nsqd has stored the message; it is safe to publish it again;
    - PublishUncertain: it was sent and not answered, so it may be stored. ``retry_uncertain=True`` tries the
      next nsqd instead, at the price of duplicates;
    - a ServerError such as BadTopic, BadMessage, Unauthorized: nsqd refused it, and would again;
    - UsageError (InvalidName, InvalidMessage): nothing was sent.

    While it is sure that nothing was stored, the producer tries other nsqds, or the same one again, until
    ``timeout``. If an exception out of a signal handler interrupts a publish, the message may be stored.
    """

    __signature__ = SignatureWithOptions()

    def __init__(
        self,
        *addresses: str,
        nsqd: Addresses = (),
        nsqlookupd: Addresses = (),
        config: Config | None = None,
        transport: Transport | None = None,
        on_acknowledged: Callable[[Acknowledged], None] | None = None,
        on_failed: Callable[[Failed], None] | None = None,
        on_refused: Callable[[str, NsqError], object] | None = None,
        around_publish: PublishHook | Sequence[PublishHook] | None = None,
        key_hash: Callable[[Any], int] | None = None,
        key_partitions: Mapping[str, int] | None = None,
        least_pending: bool = False,
        **options: Unpack[Options],
    ) -> None:
        """``nsqd`` and ``nsqlookupd`` take one address or several. ``on_acknowledged`` is called for every
        publish that was stored, ``on_failed`` for every other, on the thread that runs futures' callbacks.
        ``on_refused(topic, error)`` is called on the publishing thread for a call that raises before anything
        is sent, as with QueueFull, InvalidMessage or Closed.

        ``around_publish(topic, bodies)`` is called on the publishing thread, before anything is sent. It
        returns the bodies to send instead, and a function that gets the publish's error, or None; of
        ``publish_async`` that function is called on the thread that runs futures' callbacks. What it raises
        is logged. Several hooks are given as a list: the first sees the caller's bodies, and its function is
        called last. For a partitioned NSQ the hook may return a third value: headers, beside those of the
        publish.

        For a partitioned NSQ: ``key_hash`` maps a key, as it was given, to an int from 0 on; by default it is
        murmur3. The key's partition is that number modulo the topic's number of partitions, or modulo the
        topic's entry in ``key_partitions``. With ``least_pending``, publishes without a key prefer the nsqd
        that owes fewer answers.
        """
        refuse_eventlet()
        self.config = Config.of(config, options)  #: The options, with those that were given as keywords.
        several = (*checked("nsqd", addresses), *checked("nsqd", nsqd))
        self._setup = Setup(
            self.config,
            tuple(dict.fromkeys(several)) if transport is not None else checked_nsqds(several),
            checked("nsqlookupd", nsqlookupd),
            transport,
            context_of(self.config),
            checked_function("on_acknowledged", on_acknowledged),
            checked_function("on_failed", on_failed),
        )
        if not self._setup.addresses and not self._setup.lookupds:
            raise ConfigError("a producer needs nsqd or nsqlookupd addresses, or both")
        # Not the pool's: closing that ends its dials. One for all pings: lookups of a name share a thread.
        self._pings = transport or SocketTransport(self.config.local_address)
        self._around_publish: list[PublishHook] = checked_functions("around_publish", around_publish)
        self._on_refused = checked_function("on_refused", on_refused)
        self._watches = bool(self._around_publish) or on_refused is not None
        self._tracing: Tracing | None = None
        self._key_hash = checked_function("key_hash", key_hash)
        self._key_partitions, self._least_pending = key_partitions, least_pending
        self._pool = self._new_pool()
        abandon_in_children(self)

    def _new_pool(self) -> Pool:
        if not self._setup.lookupds or self.config.cluster == "original":
            return Pool(self._setup)
        pool = Pool(self._setup, self._new_router)
        if self._key_hash or self._key_partitions or self._least_pending or self._tracing:
            pool.detection.with_options()
        return pool

    def _new_router(self, pool: Pool, discovery: Discovery) -> Router:
        from nsq.partitioned.routing import Router

        router = Router(
            pool,
            discovery,
            key_hash=self._key_hash,
            key_partitions=self._key_partitions or {},
            least_pending=self._least_pending,
            tracing=self._tracing,
        )
        self._tracing = router.tracing  # a forked child goes on with it
        return router

    def __repr__(self) -> str:
        pool = self._pool
        state = f"connected to {len(pool.routing.open)}" if pool.routing.open else "not connected"
        pending = f", {len(pool.pending)} pending" if pool.pending else ""
        shown = "closed" if pool.closed else state + pending
        return f"<Producer {' '.join(self._setup.addresses or self._setup.lookupds)} {shown}>"

    # Publishing.

    @with_options_shown
    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        defer: Defer | None = None,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Return when an nsqd has stored the message.

        nsqd delivers it after ``defer``: seconds, a timedelta, or an aware datetime. ``timeout`` (default:
        publish_timeout) covers everything: waiting for room among the pending publishes, connecting, sending,
        nsqd's answer, further attempts.

        The other options need a partitioned NSQ. Messages with the same ``key`` (a str, bytes or int) go to
        the same partition; ``partition`` names one. ``trace`` is a number of your choice for this message,
        ``headers`` a mapping that travels with it as JSON, ``tag`` restricts it to consumers with this tag.
        The result has the ids and the offset that nsqd gave the message.
        """
        if defer is None and not options and not self._watches:
            return self._pool.publish_message(topic, body, timeout)
        watched, publish = self.prepare(Publish, topic, [body], options, defer=defer)
        with watched:
            return self._pool.publish_and_wait(publish, timeout)

    @with_options_shown
    def multi_publish(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Publish all messages at once to one nsqd, which stores all or, unless it fails midway, none.

        The other options are those of ``publish``, for each message. Of a traced batch the result describes
        the first message, and the size of all.
        """
        watched, publish = self.prepare(Publish, topic, bodies, options, several=True)
        with watched:
            return self._pool.publish_and_wait(publish, timeout)

    @with_options_shown
    def publish_async(
        self,
        topic: str,
        body: bytes,
        *,
        defer: Defer | None = None,
        timeout: float | None = None,
        block: bool = True,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """Return at once with a future, which ends as ``publish`` would, after ``timeout`` at the latest. A
        coroutine can ``await`` it.

        Blocks only while max_pending publishes, or max_pending_bytes of them, are unanswered; with
        ``block=False`` it raises QueueFull instead. The future cannot be cancelled. Its callbacks run on a
        thread of the producer, one after the other: they should be quick, and must not flush, close, or wait
        for other futures.
        """
        if self._watches:
            return self._send_async(topic, [body], options, timeout, block, defer=defer)
        pool = self._pool
        routing = pool.detection.with_options() if options else pool.routing
        publish = routing.new_publish(PublishFuture, topic, body, defer, options)
        pool.publish(publish, timeout, block)
        return publish

    @with_options_shown
    def multi_publish_async(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        timeout: float | None = None,
        block: bool = True,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """Do ``multi_publish``, but return a future at once, as ``publish_async`` does: several batches under
        way at a time keep nsqd busy while you make the next one.
        """
        return self._send_async(topic, bodies, options, timeout, block, several=True)

    def trace(self, topic: str, on: bool = True) -> None:
        """Trace every publish to a topic from now on, or no longer: partitioned NSQ tells where it stored a
        traced message, and the logger ``nsq.trace`` gets a line for it.
        """
        self._current().detection.with_options().trace(topic, on)

    def _send_async(
        self,
        topic: str,
        bodies: Iterable[bytes],
        options: PublishOptions,
        timeout: float | None,
        block: bool,
        *,
        several: bool = False,
        defer: Defer | None = None,
    ) -> PublishFuture:
        watched, publish = self.prepare(PublishFuture, topic, bodies, options, several=several, defer=defer)
        try:
            self._pool.publish(publish, timeout, block)
        except BaseException as error:
            watched.end(error)
            raise
        if self._watches:
            publish.add_done_callback(lambda future: watched.end(future.exception()))
        return publish

    # Publishes that are made first and sent later; also for code that may not block, such as nsq.aio.

    def prepare(
        self,
        make: type[P],
        topic: str,
        bodies: Iterable[bytes],
        options: PublishOptions,
        *,
        several: bool = False,
        defer: Defer | None = None,
    ) -> tuple[Watched, P]:
        """Return a publish, and the block in which to send it and wait for its end, which tells the hooks."""
        watched = Watched(self._around_publish, self._on_refused, topic, bodies, options)
        try:
            bodies, options = watched.bodies, watched.options
            routing = self._pool.detection.with_options() if options else self._pool.routing
            if several:
                publish = routing.new_multi_publish(make, topic, bodies, options)
            else:
                (body,) = bodies
                publish = routing.new_publish(make, topic, body, defer, options)
        except BaseException as error:
            watched.end(error)
            raise
        watched.publish = publish
        return watched, publish

    def try_to_send(self, publish: PublishFuture, timeout: float) -> bool:
        """Send a prepared publish; return False if there is no room: wait for ``room``, and try again."""
        try:
            self._pool.publish(publish, timeout, block=False)
        except QueueFull:
            return False
        return True

    def withdraw(self, publish: PublishFuture) -> bool:
        """End a publish that is not sent, without a report; return False if it may be sent."""
        return self._pool.withdraw(publish)

    @property
    def room(self) -> Waiters:
        """Woken when another publish may have become possible, and when the producer is closed."""
        return self._pool.pending.changed

    def _current(self) -> Pool:
        # A child that C code has forked runs no fork hook of Python's.
        if self._pool.pid != os.getpid():
            self.abandon()
        return self._pool

    def set_nsqds(self, addresses: Addresses) -> None:
        """Publish to these nsqds, or to this one, from now on, instead of those given at first. A connection
        to another one is used until it ends.
        """
        addresses = self._checked(addresses)
        if self._setup.lookupds or not addresses:
            raise UsageError("set_nsqds needs addresses, and a producer without nsqlookupds")
        self._setup = replace(self._setup, addresses=addresses)
        self._current().nsqds.set_addresses(addresses)

    def _checked(self, nsqds: Addresses) -> tuple[str, ...]:
        return checked_nsqds(nsqds) if self._setup.transport is None else checked("nsqd", nsqds)

    # Lifetime.

    def flush(self, timeout: float | None = None) -> FlushReport:
        """Wait until nsqd has answered all publishes so far, for publish_timeout by default. The report is
        true when none is left.
        """
        return self._current().flush(time.monotonic() + self._patience(timeout))

    def close(self, timeout: float | None = None) -> CloseReport:
        """Refuse new publishes, wait for pending ones, close the connections, within ``timeout``:
        publish_timeout by default. The report is true when no publish was left.

        Publishes that are left end with PublishUncertain, or PublishFailed if they were never sent. An
        interrupted close goes on in the background; another call waits for it.
        """
        return self._current().close(self._patience(timeout))

    def _patience(self, timeout: float | None) -> float:
        return checked_timeout(timeout, self.config.publish_timeout, may_be_zero=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(
        self,
        getpid: Callable[[], int] = os.getpid,
        finalizing: Callable[[], bool] = sys.is_finalizing,
        warn: Callable[..., None] = warnings.warn,
    ) -> None:
        # Parameters, as the interpreter clears all modules at its end. Then publishes have been flushed.
        pool = getattr(self, "_pool", None)
        if pool is None or pool.closed or pool.pid != getpid():
            return
        shown = repr(self)  # before the line below, after which it looks closed
        if not finalizing():
            # Pending publishes are still sent; then the threads end, which refer to the pool, not to us.
            pool.ask_to_close(time.monotonic() + self.config.publish_timeout)
        if pool.routing.open:
            warn(f"{shown} was not closed", ResourceWarning, source=self, stacklevel=1)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Producer cannot be pickled, as its connections cannot: make one in each process")

    def abandon(self) -> None:
        """Begin anew in a forked child, and leave the parent's connections alone. Runs at each fork."""
        inherited, self._pool = self._pool, self._new_pool()
        self._pool.closed = inherited.closed
        inherited.abandon()

    # State and reports.

    def ping(self, nsqd: str | None = None, *, timeout: float | None = None) -> None:
        """Raise unless this nsqd, by default each known one, answers.

        The protocol has no ping, so this dials a connection of its own, waits for the answers to IDENTIFY,
        TLS and AUTH, and closes it. It proves that nsqd runs and accepts our credentials.
        """
        deadline = time.monotonic() + checked_timeout(timeout, self.config.publish_timeout)
        pool = self._current()
        addresses = pool.nsqds.addresses
        if nsqd is not None:
            addresses = self._checked(nsqd)
        if not addresses:
            raise ConnectionFailed(f"no nsqd is known: {pool.nsqds.discovery.absence}")
        errors = self._ping(addresses, deadline)
        if len(addresses) == len(errors) == 1:
            raise errors[addresses[0]]
        if errors:
            reasons = "; ".join([describe(*each) for each in errors.items()])
            raise ConnectionFailed(f"{len(errors)} of {len(addresses)} nsqds do not answer: {reasons}")

    def _ping(self, addresses: tuple[str, ...], deadline: float) -> dict[str, NsqError]:
        """Return the errors of the nsqds that do not answer. Dials on a thread of ours, not on the user's."""
        late = "{} was not asked, or did not answer, in time".format
        errors: dict[str, NsqError] = {address: Unanswered(late(address)) for address in addresses}
        asked = SafeEvent()

        def ask() -> None:
            for place, address in enumerate(addresses):
                now = time.monotonic()
                by = now + (deadline - now) / (len(addresses) - place)
                try:
                    context = self._setup.context
                    dial(address, self.config, self._pings, context, deadline=by).stream.close()
                    del errors[address]
                except NsqError as error:
                    errors[address] = error
                except Exception as error:
                    errors[address] = ConnectionFailed(f"{address}: {error!r}")
            asked.set()

        def not_asked(error: RuntimeError) -> None:
            errors.update({each: ConnectionFailed(f"{each} was not asked: {error}") for each in addresses})
            asked.set()

        start_thread(ask, "nsq-producer-ping", not_asked)
        # A second more: the dials end at the same deadline, and their errors say more.
        asked.wait(deadline + 1.0 - time.monotonic())
        return errors.copy()

    def stats(self) -> ProducerStats:
        """Return the current counters and states."""
        return self._current().stats()

    def health(self) -> ProducerHealth:
        """Return the health: until ``close`` good with an open connection, or if none has been needed yet."""
        pool, connections = self._current(), self.stats().connections
        problems = {
            each.address: each.reason or each.state
            for each in connections
            if each.reason or each.state == "overdue"
        }
        problems |= pool.routing.problems()
        if pool.owner.begun and not connections:
            problems.setdefault("nsqlookupd", f"no nsqd is known: {pool.nsqds.discovery.absence}")
        is_open = any(each.state == "open" for each in connections)
        healthy = not pool.closed and (is_open or not problems)
        return ProducerHealth(healthy=healthy, problems=problems)
