"""Network: its links, the thread that moves their bytes, and the thread that plays a schedule."""

from __future__ import annotations

import math
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple, Self

from nsq.errors import Closed, UsageError

from .faults import LISTENING, Fault, ListenerVerbs, checked
from .link import ADOPTING, Link
from .loop import Loop
from .schedule import Schedule, Strike

_CLOSE_TIMEOUT = 30.0


class Hit(NamedTuple):
    """A fault that was inflicted: the monotonic time, the link, and the number of connections hit."""

    at: float
    link: str
    fault: Fault
    connections: int


class Network(ListenerVerbs):
    """``with Network() as network: link = network.link(nsqd.tcp_address)``; clients dial ``link.address``.

    Faults hit all links (``network.cut()``), one link (``link.stall(2.0)``) or one connection
    (``link.connections[0].reset()``), and have happened when the call returns. ``seed`` decides which bits
    are flipped. A link works for any TCP protocol: nsqd's, nsqlookupd's and HTTP.

    A client is connected to the link before the link is connected to the daemon. So if the daemon does not
    listen, the client's connection is reset; use ``refuse`` to have it refused.
    """

    def __init__(self, seed: object = 0) -> None:
        #: As it was given.
        self.seed = seed
        #: All faults, in order.
        self.history: list[Hit] = []
        self._chance = random.Random(f"{seed}")
        self._links: list[Link] = []
        self._loop = Loop("nsq-network", self._tick)
        self._closed = False
        try:
            self._loop.start()
        except BaseException:
            self._loop.close()
            raise
        _remember(self)

    def link(self, target: str) -> Link:
        """Make a link to ``target``: ``host:port``, or the path of a Unix socket."""

        def make() -> Link:
            made = Link(target, self._loop, self._chance, self._record)
            made.begin()
            self._links.append(made)
            return made

        return self._loop.call(make)

    @property
    def links(self) -> list[Link]:
        return list(self._links)

    # Faults.

    def inflict(self, fault: Fault) -> int:
        checked(fault)
        return self._loop.call(lambda: sum(link.suffer(fault) for link in self._links))

    def strike(self, strike: Strike, link: Link | None = None) -> int:
        """Inflict the strike's fault now, on this link or on the one that the strike selects."""
        checked(strike.fault)
        if not self._links:
            raise UsageError("the network has no link that could be hit")
        hit = link or strike.one_of(self._links)
        return self._loop.call(lambda: self._hit(hit, strike))

    def _hit(self, link: Link, strike: Strike) -> int:
        connections = list(link._connections.values())
        if strike.connection is None or strike.fault.kind in LISTENING or not connections:
            return link.suffer(strike.fault)
        return link.suffer(strike.fault, [strike.one_of(connections, strike.connection)])

    @contextmanager
    def playing(self, schedule: Schedule) -> Iterator[None]:
        """Play the schedule in a thread during the ``with`` block; afterwards heal all faults."""
        ended = threading.Event()
        errors: list[BaseException] = []

        def play() -> None:
            try:
                for strike in schedule:
                    if ended.wait(strike.after):
                        return
                    self.strike(strike)
            except Closed:
                pass  # the network has ended first; its ``close`` raises the error if it has failed
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=play, name="nsq-network-schedule", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_CLOSE_TIMEOUT)
            with suppress(Closed):
                self.heal()
        if errors:
            raise errors[0]

    def _record(self, link: Link, fault: Fault, connections: int) -> None:
        self.history.append(Hit(time.monotonic(), link.address, fault, connections))

    # Lifetime.

    def close(self) -> None:
        """End every connection and listener; a second call does nothing."""
        self._closed = True
        self._loop.stop(self._end)

    def _end(self) -> None:
        for link in self._links:
            link.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _tick(self, now: float) -> float:
        return min((link.move(now) for link in self._links), default=math.inf)

    def forget(self) -> None:
        """Close all descriptors in a forked child: copies would keep the parent's connections open."""
        self._closed = True
        for link in self._links:
            link.forget()
        self._links = []
        self._loop.abandon()


_NETWORKS: weakref.WeakSet[Network] = weakref.WeakSet()
_hooked = threading.Lock()  # acquired once, by the first network, which registers the hook


def _remember(network: Network) -> None:
    _NETWORKS.add(network)
    if _hooked.acquire(blocking=False):
        os.register_at_fork(
            before=ADOPTING.acquire, after_in_parent=ADOPTING.release, after_in_child=_forget_all
        )


def _forget_all() -> None:
    ADOPTING.release()
    for network in list(_NETWORKS):
        if not network._closed:
            network.forget()
