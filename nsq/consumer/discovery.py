"""How a consumer finds its nsqds: one thread that has nsqlookupds asked and nsqds dialled.

What to do and when is decided by ``Directory`` and ``Polling``, which belong to that thread alone: whoever
has something to tell sends it an event. Must not import socket.
"""

from __future__ import annotations

import logging
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from nsq.api.nsqlookupd_calls import nsqlookupd_address
from nsq.config import Config
from nsq.connection.handshake import describe
from nsq.consumer.admission import Accept, Admission, Rewrite
from nsq.consumer.complaints import Complaints
from nsq.consumer.directory import Directory, Pauses
from nsq.consumer.discovered import DiscoveryState
from nsq.consumer.errands import Errands, Event
from nsq.consumer.lookups import Asker, Lookups
from nsq.consumer.polling import Polling
from nsq.errors import Closed, ConfigError, NsqError, UsageError
from nsq.transport import addresses

log = logging.getLogger("nsq.consumer")

#: After a fault of ours; not to fail as fast as the machine can.
_RESPITE = 1.0


class Host(Protocol):
    """The consumer. ``drop`` and ``expect`` are called on the discovery thread and must not block."""

    def dial(self, address: str) -> None:
        """Return when there is a connection, NsqError when there is none. Has a thread of its own."""

    def drop(self, address: str) -> None:
        """Begin to close the connection. Like any other, its end is told to ``Discovery.lost``."""

    def expect(self, connections: int) -> None:
        """So many connections there will be shortly, those that are there included."""


class Discovery:
    """Its threads are NAME-lookupd and, each for a short while, NAME-ask-LOOKUPD and NAME-dial-NSQD.

    ``rewrite`` and ``accept`` are the user's, see ``Admission``; they run on the discovery thread, so a
    slow one delays the finding of nsqds and nothing else.
    """

    def __init__(
        self,
        topic: str,
        config: Config,
        host: Host,
        *,
        name: str,
        nsqds: Iterable[str],
        nsqlookupds: Iterable[str],
        rewrite: Rewrite | None = None,
        accept: Accept | None = None,
        asker: Asker | None = None,
        interrupt_dials: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._host = host
        self._interrupt_dials = interrupt_dials
        self._clock = clock
        self._asker = asker or Lookups(topic, config)
        self._lock = threading.Lock()  # guards the two below, what the user has configured
        self._nsqds = {_checked(address) for address in nsqds}
        self._nsqlookupds = {nsqlookupd_address(text): text for text in nsqlookupds}
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-lookupd", daemon=True)
        # From here on everything belongs to the thread, once it runs; the snapshot is replaced, never
        # changed.
        self._errands = Errands(name, self._events.put)
        self._complaints = Complaints()
        pauses = Pauses(config.reconnect_initial, config.reconnect_max, chance)
        self._directory = Directory(pauses, config.lookupd_poll_interval, prune=config.prune)
        self._polling = Polling(
            config,
            self._asker,
            self._errands,
            self._directory,
            Admission(rewrite, accept, self._complaints),
            self._complaints,
            clock=clock,
            chance=chance,
        )
        self._expected = 0
        for address in sorted(self._nsqds):
            self._directory.add(address, clock())
        for url, text in self._nsqlookupds.items():
            self._polling.add(url, text)
        self._snapshot = DiscoveryState(self._polling.states, self._directory.known())

    # Beginning and end.

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is asked or dialled from here on. A dial that is past connecting is the host's to end."""
        self._stopping = True
        self._events.put(None)
        self._asker.cancel()
        self._interrupt_dials()

    def abandon(self) -> None:
        """In a forked child, where none of its threads exist."""
        self._asker.abandon()

    def join(self, deadline: float) -> bool:
        """After ``stop``, wait for all threads to end; whether they have by the deadline (monotonic)."""
        if self._thread.ident is None:
            return True
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive() and self._errands.join(deadline)

    def owns_current_thread(self) -> bool:
        """Whether this is where ``rewrite`` and ``accept`` run."""
        return threading.current_thread() is self._thread

    # What is wanted. Events are sent under the lock, so that they come in the order of the calls.

    def add_nsqd(self, address: str) -> None:
        """Connect to it, and again whenever it is lost. Does nothing for one that was added before."""
        with self._lock:
            self._nsqds.add(_checked(address))
            self._events.put(lambda: self._directory.add(address, self._clock()))

    def remove_nsqd(self, address: str) -> None:
        """Disconnect from it, unless an nsqlookupd lists it."""
        with self._lock:
            self._refuse_removing(address, f"nsqd {address}", self._nsqds)
            self._nsqds.discard(address)
            self._events.put(partial(self._directory.remove, address))

    def add_nsqlookupd(self, address: str) -> None:
        """Ask it too, and at once. Does nothing for one that was added before."""
        url = nsqlookupd_address(address)
        with self._lock:
            if url not in self._nsqlookupds:
                self._nsqlookupds[url] = address
                self._events.put(partial(self._polling.add, url, address))

    def remove_nsqlookupd(self, address: str) -> None:
        """Ask it no more. Connections to what it listed stay as long as they last."""
        url = nsqlookupd_address(address)
        with self._lock:
            self._refuse_removing(url, f"nsqlookupd {url}", self._nsqlookupds)
            del self._nsqlookupds[url]
            self._events.put(partial(self._polling.remove, url))

    def _refuse_removing(self, address: object, what: str, known: Iterable[object]) -> None:
        if address not in known:
            names = ", ".join(sorted(map(str, known))) or "none"
            raise UsageError(f"{what} was never added, or has been removed; there are: {names}")
        if len(self._nsqds) + len(self._nsqlookupds) == 1:
            raise UsageError(
                f"{what} is the last address of this consumer, which would never receive a message again: "
                "add another one first, or stop the consumer"
            )

    def lost(self, address: str, lived: float, cause: NsqError | None) -> None:
        """A connection has ended, as ordered or not, after ``lived`` seconds. Once for each that ``dial``
        made.
        """
        error = "" if cause is None else describe(address, cause)
        self._events.put(lambda: self._directory.lost(address, lived, error, self._clock()))

    # What there is to know.

    def state(self) -> DiscoveryState:
        return self._snapshot

    def health(self) -> list[str]:
        """A line for each nsqlookupd and for each nsqd, for people."""
        return self._snapshot.words(self._clock())

    # The thread.

    def _run(self) -> None:
        while not self._stopping:
            respite = 0.0
            try:
                self._act()
            except Exception:
                # A discovery that died would leave the consumer with the connections it has.
                log.exception("%s failed by a fault of ours; it goes on", self._thread.name)
                respite = _RESPITE
            self._snapshot = DiscoveryState(self._polling.states, self._directory.known())
            self._take_events(respite)

    def _take_events(self, respite: float) -> None:
        """Wait until something happens or is due; take in all that has happened."""
        dial_due = self._directory.next_due()
        due = min(self._polling.next_due(), math.inf if dial_due is None else dial_due)
        timeout = min(max(respite, due - self._clock()), threading.TIMEOUT_MAX)
        with suppress(queue.Empty):
            event = self._events.get(timeout=timeout)
            while event is not None and not self._stopping:
                self._guarded("an event", event)
                event = self._events.get_nowait()

    def _act(self) -> None:
        """Do what is due."""
        now = self._clock()
        self._polling.turn(now)
        due = self._directory.due(now)
        if self._directory.wants_round():
            self._polling.request(now)
            self._polling.turn(now)
        # Before the dials: shares are then cut for all connections that come, not for the first ones.
        drops = self._directory.to_drop()
        self._tell_expected(self._directory.expected(now))
        for address in drops:
            self._guarded(f"dropping {address}", partial(self._host.drop, address))
        for address in due:
            self._errands.run(
                f"dial-{address}",
                partial(self._dial, address),
                partial(self._dialed, address),
                partial(self._refused, address),
            )

    def _tell_expected(self, expected: int) -> None:
        if expected != self._expected:
            self._expected = expected
            self._guarded("announcing connections", partial(self._host.expect, expected))

    def _guarded(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("%s: %s failed by a fault of ours", self._thread.name, what)

    # Dials.

    def _dial(self, address: str) -> None:
        """In a thread of its own."""
        if self._stopping:
            raise Closed("the consumer is being stopped")
        self._host.dial(address)

    def _dialed(self, address: str, _: None) -> None:
        self._complaints.settle(("dial", address))
        self._directory.dialed(address, None, self._clock())

    def _refused(self, address: str, fault: NsqError) -> None:
        error = describe(address, fault)
        if self._complaints.is_news(("dial", address), error):
            log.warning("no connection to an nsqd, trying again: %s", error)
        self._directory.dialed(address, error, self._clock())


def _checked(address: object) -> str:
    """The address of an nsqd; ConfigError when it is none."""
    if not isinstance(address, str):
        raise ConfigError(f"nsqd address {address!r} must be host:port, as text")
    if addresses.is_unix(address):
        addresses.unix_path(address)
    else:
        addresses.split(address)
    return address
