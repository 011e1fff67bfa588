"""Producer: publishes to one nsqd, or to whichever of several answers."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NoReturn, Self

from nsq.config import Config
from nsq.connection.dialing import describe, dial
from nsq.connection.forks import abandon_in_children
from nsq.errors import ConnectionFailed, NsqError, Unanswered, UsageError
from nsq.producer.engine import Engine
from nsq.producer.reports import Acknowledged, ProducerHealth, ProducerStats
from nsq.producer.request import checked_timeout, multi_publish_request, publish_request
from nsq.transport.addresses import is_unix, split, unix_path
from nsq.transport.base import Transport
from nsq.transport.tcp import transport_of
from nsq.transport.tls import context_of

log = logging.getLogger("nsq.producer")


class Producer:
    """``Producer("10.0.0.2:4150", "10.0.0.3:4150")``, or ``Producer(nsqlookupd=["10.0.0.7:4161"])``.

    One for the whole program: any number of threads may share it, and a process forked from this one goes
    on with connections of its own. Options are those of Config. Connections are made when they are first
    needed.

    Every publish ends in one of these ways:

    - it returns: an nsqd has stored the message;
    - PublishFailed (QueueFull): it is stored nowhere; publish it again when you like;
    - PublishUncertain: it was sent and not answered, it may be stored. ``retry_uncertain=True`` tries the
      next nsqd instead, at the price of duplicates;
    - a ServerError such as BadTopic, BadMessage, Unauthorized: nsqd refused it, and would again;
    - UsageError (InvalidName, InvalidMessage): nothing was sent.

    As long as it is sure that nothing was stored, other nsqds are tried, or the same one again, until
    ``timeout``.
    """

    def __init__(
        self,
        *nsqd: str,
        nsqlookupd: Iterable[str] = (),
        config: Config | None = None,
        transport: Transport | None = None,
        on_acknowledged: Callable[[Acknowledged], None] | None = None,
        **options: Any,
    ) -> None:
        """``on_acknowledged`` is told of all that was stored, by the thread that published, or by the one
        that completes futures.
        """
        self._config = Config.of(config, options)
        self._addresses = tuple(dict.fromkeys(_checked_address(each, transport) for each in nsqd))
        self._lookupds = _checked_lookupds(nsqlookupd)
        if not self._addresses and not self._lookupds:
            raise UsageError(
                'a producer needs an nsqd, such as Producer("127.0.0.1:4150"), or nsqlookupd=[…]'
            )
        self._transport = transport
        # Not the engine's, whose dials end when it closes; one, as lookups of the same name share a thread.
        self._pings = transport or transport_of(self._config)
        self._context = context_of(self._config)
        if on_acknowledged is not None and not callable(on_acknowledged):
            raise UsageError(f"on_acknowledged is {on_acknowledged!r}, must be a function")
        self._on_acknowledged = on_acknowledged
        self._engine = self._new_engine()
        abandon_in_children(self)

    def _new_engine(self) -> Engine:
        return Engine(
            self._addresses,
            self._lookupds,
            self._config,
            self._transport or transport_of(self._config),
            self._context,
            self._on_acknowledged,
        )

    def __repr__(self) -> str:
        return f"<Producer {' '.join(self._addresses or self._lookupds)}>"

    # Publishing.

    def publish(
        self, topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None
    ) -> None:
        """Return when an nsqd has stored the message.

        ``defer``: it is delivered after so many seconds. ``timeout`` covers everything: room among the
        pending, connecting, sending, the answer, and other attempts; publish_timeout by default.
        """
        request = publish_request(topic, body, defer, self._config)
        self._current().publish(request, self._seconds(timeout))

    def multi_publish(self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
        """All of them at once, to one nsqd, which stores all or, unless it fails midway, none."""
        request = multi_publish_request(topic, bodies, self._config)
        self._current().publish(request, self._seconds(timeout))

    def publish_async(
        self, topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None
    ) -> Future[None]:
        """Return at once; the future tells what became of it, as ``publish`` would, after ``timeout`` at
        the latest.

        Waits only while max_pending publishes are unanswered. The future cannot be cancelled. Its callbacks
        run on a thread of the producer, which completes one after the other: they should be quick, and must
        not flush or close.
        """
        request = publish_request(topic, body, defer, self._config)
        return self._current().publish_async(request, self._seconds(timeout))

    def multi_publish_async(
        self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None
    ) -> Future[None]:
        """``multi_publish`` that returns at once, as ``publish_async`` does: several batches under way at a
        time keep nsqd busy while the next one is made.
        """
        request = multi_publish_request(topic, bodies, self._config)
        return self._current().publish_async(request, self._seconds(timeout))

    def _seconds(self, timeout: float | None) -> float:
        default = self._config.publish_timeout
        return default if timeout is None else checked_timeout(timeout, default)

    def _patience(self, timeout: float | None) -> float:
        return checked_timeout(timeout, self._config.publish_timeout, may_be_zero=True)

    def _current(self) -> Engine:
        # A belt: a child made behind Python's back has run no fork hook.
        if self._engine.pid != os.getpid():
            self.abandon()
        return self._engine

    # Lifetime.

    def flush(self, timeout: float | None = None) -> int:
        """Wait until all that was published so far is answered; how many are not. publish_timeout by
        default.
        """
        return self._current().flush(self._patience(timeout))

    def close(self, timeout: float | None = None) -> int:
        """Take nothing new, wait for what is pending, close the connections; how many publishes were left
        unanswered.

        Those end with PublishUncertain, or PublishFailed if they were never sent. Harmless when it is
        closed already.
        """
        left = self._current().close(self._patience(timeout))
        if left:
            log.warning("%r was closed with %d publishes unanswered", self, left, extra={"left": left})
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and engine.pid == os.getpid() and not engine.closed and engine.pool.connected:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=1)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Producer cannot be pickled, as its connections cannot: make one in each process")

    def abandon(self) -> None:
        """In a forked child, where this is called by itself: leave everything of the parent's alone, begin
        anew.
        """
        inherited, self._engine = self._engine, self._new_engine()
        if inherited.closed:
            self._engine.close(0.0)
        inherited.abandon()

    # What there is to know.

    def ping(self, nsqd: str | None = None, *, timeout: float | None = None) -> None:
        """Raise unless this nsqd, by default each known one, answers.

        The protocol has no question for that beside its first: so this dials a connection of its own, waits
        for the answers to IDENTIFY, TLS and AUTH, and closes it. It proves that nsqd is there and takes our
        credentials.
        """
        deadline = time.monotonic() + self._seconds(timeout)
        addresses = (
            self._current().pool.addresses if nsqd is None else (_checked_address(nsqd, self._transport),)
        )
        faults = []
        for place, address in enumerate(addresses):
            share = (deadline - time.monotonic()) / (len(addresses) - place)
            try:
                self._ping(address, time.monotonic() + share)
            except NsqError as fault:
                if len(addresses) == 1:
                    raise
                faults.append(describe(address, fault))
        if faults:
            raise ConnectionFailed(
                f"{len(faults)} of {len(addresses)} nsqds do not answer: {'; '.join(faults)}"
            )
        if not addresses:
            raise ConnectionFailed(f"no nsqd is known: {self._engine.pool.absence}")

    def _ping(self, address: str, deadline: float) -> None:
        if deadline <= time.monotonic():
            raise Unanswered(f"{address} was not asked: there was no time left")
        ready = dial(address, self._config, self._pings, self._context, deadline=deadline)
        ready.stream.close()

    def stats(self) -> ProducerStats:
        """Counters and states as they are now."""
        return self._current().stats()

    def health(self) -> ProducerHealth:
        """Healthy is who has an open connection, or has not needed one yet."""
        connections = self.stats().connections
        problems = {
            each.address: each.reason or each.state
            for each in connections
            if each.reason or each.state == "overdue"
        }
        return ProducerHealth(
            healthy=any(each.state == "open" for each in connections) or (not problems and bool(connections)),
            problems=problems,
        )


def _checked_address(address: object, transport: Transport | None) -> str:
    if not isinstance(address, str) or not address:
        raise UsageError(f"nsqd address {address!r} must be host:port, as text")
    if transport is None:  # another one may have addresses of its own
        if is_unix(address):
            unix_path(address)
        else:
            split(address)
    return address


def _checked_lookupds(addresses: Iterable[str]) -> tuple[str, ...]:
    if isinstance(addresses, str) or not isinstance(addresses, Iterable):
        raise UsageError(f"nsqlookupd is {addresses!r}, must be a list of addresses")
    return tuple(dict.fromkeys(addresses))
