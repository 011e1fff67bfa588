"""The nsqds of a producer: how it finds them, connects to them and closes the connections.

Its state is the table of endpoints, by nsqd address. Each has one connection with two loops, which all
threads share, and a stack of idle connections that serve one blocking publish at a time.

    the pool's thread    decides which to connect to and when to dial them, and closes idle connections
    endpoints' threads   dial, and run the loops of the shared connections
    the dialing thread   dials connections for the round trips of blocking publishes
    discovery's thread   asks nsqlookupds

Only the pool's thread calls the methods here, except where a method says otherwise.
"""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsq.config import Config
from nsq.connection.endpoint import Endpoints, Key, Wanted
from nsq.discovery.lookups import Discovery
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.own import OwnConn
from nsq.producer.reports import Acknowledged, ConnectionStats, Failed
from nsq.producer.routing import Targets
from nsq.threads.waiters import join_threads
from nsq.transport.base import Transport
from nsq.transport.dialing import SocketTransport
from nsq.wire.layers import TlsContext

if TYPE_CHECKING:
    from nsq.producer.pool import Pool

NAME = "nsq-producer"

_MOST_REASONS = 10  # the most nsqds whose reasons an error lists


@dataclass(frozen=True)
class Setup:
    """What a producer was made with. A forked child makes its own pool from it."""

    config: Config
    addresses: tuple[str, ...] = ()
    lookupds: tuple[str, ...] = ()
    transport: Transport | None = None
    context: TlsContext | None = None
    on_acknowledged: Callable[[Acknowledged], object] | None = None
    on_failed: Callable[[Failed], object] | None = None
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random


class Nsqds:
    """The nsqds of one pool, their connections, and the threads that serve them."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._clock, setup = pool, pool.setup.clock, pool.setup
        config = setup.config
        self._sockets = SocketTransport(config.local_address)
        self.transport = setup.transport or self._sockets
        self.threads: dict[int, threading.Thread] = {}  # by ident, without the callbacks' thread
        self.discovery = Discovery(
            None,
            config,
            found=self._found,
            name=NAME,
            nsqds=setup.addresses,
            nsqlookupds=setup.lookupds,
            original=pool.detection.is_original,
            other=pool.detection.is_other,
        )
        self.endpoints: Endpoints[PublishingEndpoint] = Endpoints(
            NAME,
            pool.owner,
            lambda wanted: PublishingEndpoint(wanted, pool),
            setup.clock,
            removed=self._note_removed,
            urgent=lambda: pool.routing.urgent or (bool(pool.waiting) and not pool.routing.open),
            spare=self.discovery.asks,
        )
        self._given = setup.addresses  # by the user
        self._wanted: Mapping[Key, Wanted] = {}
        self._more: Mapping[Key, Wanted] = {}
        self._hurried = False  # a publish waits, and the nsqlookupds have been asked
        self._reap_interval = (config.heartbeat_interval if config.heartbeat_interval > 0 else 30.0) / 2
        self._reaps_at = math.inf  # when the pool's thread looks at the idle connections next
        self._dials: queue.SimpleQueue[PublishingEndpoint | None] = queue.SimpleQueue()
        self._dialer: threading.Thread | None = None
        self._gone = 0, 0  # published and failed, of endpoints that are gone
        self._leaving: list[PublishingEndpoint] = []  # removed; a caller may still have a connection
        # The endpoints, those that leave, and those counts: swapped together, so that none is missed.
        self._counted: tuple[Sequence[PublishingEndpoint], Sequence[PublishingEndpoint], tuple[int, int]]
        self._counted = (), (), self._gone

    # Which nsqds.

    def start(self) -> None:
        """Start the threads ahead of the dials. Those of an earlier attempt still run."""
        self._wanted = _wanted(self._given)
        self.endpoints.want(self._wanted)
        self.endpoints.start_threads()
        if self._pool.setup.config.publish_connections and self._dialer is None:
            dialer = threading.Thread(target=self._dial, name=f"{NAME}-dial", daemon=True)
            dialer.start()
            self._dialer = dialer
        if self.discovery.asks:
            self.discovery.start()
        self.note_threads()
        self._pool.owner.ask(self.note_threads)  # once more when discovery's thread has started

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Replace the nsqds. One that is left out is kept while its connection lasts. For any thread."""
        self._given = given = tuple(addresses)  # first: ``start`` takes these, or the request comes after it
        self._pool.owner.ask(partial(self._set_wanted, _wanted(given)))

    def _found(self, nsqds: dict[Key, Wanted]) -> None:
        # Without those that no nsqlookupd lists any more: others are there to publish to.
        wanted = {key: each for key, each in nsqds.items() if each.dial}
        self._pool.owner.ask(partial(self._set_wanted, wanted))

    def also_want(self, more: Mapping[Key, Wanted]) -> None:
        """Have these endpoints too, beside those for the nsqds that the user or discovery names."""
        if more != self._more:
            self._more = more
            self._set_wanted(self._wanted)

    def _set_wanted(self, wanted: Mapping[Key, Wanted]) -> None:
        self._wanted = wanted
        self.endpoints.want({**wanted, **self._more})
        with suppress(RuntimeError):  # no more threads: ``dial_due`` says so
            self.endpoints.start_threads()
        self.note_threads()

    def note_threads(self) -> None:
        ours = [self._pool.owner.thread, self._dialer, *self.endpoints.threads, *self.discovery.threads]
        self.threads = {each.ident: each for each in ours if each is not None and each.ident is not None}

    # Connections.

    def open(self) -> Targets:
        """Return the endpoints that have an open connection, with it."""
        if self.endpoints.changed:
            self.endpoints.changed = False
            self._counted = self.endpoints.all, tuple(self._leaving), self._gone
        return tuple((each, conn) for each in self.endpoints.all if (conn := each.open) is not None)

    def dial_due(self) -> None:
        if self.endpoints.dial_due():
            self.note_threads()

    def hurry(self, needed: bool) -> None:
        """Have the nsqlookupds asked when a publish begins to need a connection."""
        if needed and not self._hurried and self.discovery.asks:
            self.discovery.ask_soon()
        self._hurried = needed

    def grow(self, endpoint: PublishingEndpoint) -> None:
        """Have one more connection dialed for round trips."""
        if endpoint.own.may_grow:
            self._dials.put(endpoint)

    def _dial(self) -> None:
        while (endpoint := self._dials.get()) is not None:
            conn = endpoint.own.dial(self.transport, self._pool.setup.context)
            if conn is not None:
                self._pool.ask_about(conn, partial(self._adopt, endpoint, conn))

    def _adopt(self, endpoint: PublishingEndpoint, conn: OwnConn) -> None:
        endpoint.own.adopt(conn)
        self._reaps_at = min(self._reaps_at, self._clock() + self._reap_interval)

    def reap(self) -> bool:
        """Close connections that have been idle for long, if it is time to look; return whether it was."""
        now = self._clock()
        if now < self._reaps_at:
            return False
        for endpoint in self._everyone:
            endpoint.own.reap()
        for endpoint in [each for each in self._leaving if not each.own.everyone]:
            self._leaving.remove(endpoint)
            self._note_removed(endpoint)
            self.endpoints.changed = True
        any_left = any(each.own.everyone for each in self._everyone)
        self._reaps_at = now + self._reap_interval if any_left else math.inf
        return True

    @property
    def _everyone(self) -> tuple[PublishingEndpoint, ...]:
        """All endpoints, also removed ones of which callers have connections."""
        return *self.endpoints.all, *self._leaving

    def in_use(self, exempt: Collection[int]) -> list[OwnConn]:
        """Return those over which other threads than the ``exempt`` make a round trip now. For any thread."""
        return [conn for each in self._everyone for conn in each.own.in_use(exempt)]

    def next_due(self) -> float:
        """Return when ``dial_due`` or ``reap`` has something to do."""
        return min(self._reaps_at, self.endpoints.next_due())

    # The end.

    def stop(self) -> None:
        """End discovery and dials, and connections once they have written what waits. Does not wait."""
        self.discovery.stop()
        self.endpoints.stop()
        self._dials.put(None)
        self._sockets.interrupt()

    def cut_off(self, exempt: set[int], deadline: float) -> list[str]:
        """End all threads, and connections but those that ``exempt`` threads use; return who still runs."""
        for endpoint in self._everyone:
            endpoint.cut_off(exempt)
        unfinished = self.endpoints.join(deadline)
        unfinished += join_threads(filter(None, [self._dialer]), deadline)
        return unfinished + self.discovery.join(deadline)

    def close_lost(self) -> None:
        """Close the connections that interrupted callers have lost, after ``cut_off``."""
        for conn in [conn for each in self._everyone for conn in each.own.everyone]:
            if conn.caller is None:
                conn.dispose()

    def abandon(self) -> None:
        self.discovery.abandon()
        self._sockets.abandon()
        for endpoint in self._everyone:
            endpoint.abandon()

    # Counters and reasons: any thread.

    def _note_removed(self, gone: PublishingEndpoint) -> None:
        """Keep a removed endpoint's counts, or all of it while callers have connections of it."""
        if gone.own.everyone:
            self._leaving.append(gone)
            return
        counts = gone.stats()
        self._gone = self._gone[0] + counts.published, self._gone[1] + counts.failed

    def stats(self) -> tuple[tuple[ConnectionStats, ...], int, int]:
        """Return the state of each, how many messages were published, and how many publishes failed."""
        endpoints, leaving, (published, failed) = self._counted
        for counts in [each.stats() for each in leaving]:
            published, failed = published + counts.published, failed + counts.failed
        by_address: dict[str, ConnectionStats] = {}
        for each in (endpoint.stats() for endpoint in endpoints):
            known = by_address.get(each.address)
            by_address[each.address] = each if known is None else known.with_further(each)
        connections = tuple(by_address.values())
        if not connections:
            connections = tuple(ConnectionStats(address=address) for address in self._given)
        return (
            connections,
            published + sum([each.published for each in connections]),
            failed + sum([each.failed for each in connections]),
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(endpoint.address for endpoint in self.endpoints.all)) or self._given

    def reasons(self) -> str:
        """Return for each address why its nsqd could not be reached."""
        endpoints = self.endpoints.all
        if not endpoints:
            return f"no nsqd is known: {self.discovery.absence}"
        reasons = [endpoint.reason for endpoint in endpoints[:_MOST_REASONS]]
        if len(endpoints) > _MOST_REASONS:
            reasons.append(f"and {len(endpoints) - _MOST_REASONS} more")
        return f"no nsqd could be reached in time: {'; '.join(reasons)}"


def _wanted(addresses: Iterable[str]) -> dict[Key, Wanted]:
    return {(each := Wanted(address, given=True)).key: each for address in addresses}
