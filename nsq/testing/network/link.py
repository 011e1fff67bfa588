"""One address in front of one daemon: its listener, its connections, and the faults of both."""

from __future__ import annotations

import contextlib
import errno
import math
import random
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..daemons.addresses import is_path, split
from .connection import Connection, dialled
from .faults import CLIENT, HEAL, LISTENING, SERVER, STANDING, Fault, ListenerVerbs, checked
from .flow import Conditions
from .loop import Loop

_BACKLOG = 1024
#: Connections that fill the queue of a listener with a backlog of 0, and how long to wait for each.
_FILLERS = 8
_FILLED_AFTER = 50  # milliseconds
_ANYWHERE = ("127.0.0.1", 0)
#: Held while a new connection is not registered yet, and during a fork: a child closes only registered
#: connections, and would keep any other one open.
ADOPTING = threading.Lock()

Recorder = Callable[["Link", Fault, int], None]


class Link(ListenerVerbs):
    """A proxy: clients dial ``address``, and their connections are forwarded to ``target``."""

    def __init__(self, target: str, loop: Loop, chance: random.Random, record: Recorder) -> None:
        #: The daemon's address.
        self.target = target
        #: How many connections clients have made.
        self.accepted = 0
        self._loop = loop
        self._chance = chance
        self._record = record
        self._family, self._destination = _resolved(target)
        # A bound socket that never listens: it reserves the port while there is no listener.
        self._keeper = _bound(_ANYWHERE)
        self._place = self._keeper.getsockname()
        #: The address for clients.
        self.address = f"{self._place[0]}:{self._place[1]}"
        self._listener: socket.socket | None = None
        self._fillers: list[socket.socket] = []
        self._open_again_at = math.inf
        self._connections: dict[int, Connection] = {}
        self._conditions = {CLIENT: Conditions(), SERVER: Conditions()}

    def __repr__(self) -> str:
        return f"<Link {self.address} to {self.target}>"

    @property
    def connections(self) -> list[Connection]:
        """The current connections, oldest first."""
        return self._loop.call(lambda: list(self._connections.values()))

    def inflict(self, fault: Fault) -> int:
        """Inflict a fault; return how many connections it hits. Standing faults also hit later ones."""
        checked(fault)
        return self._loop.call(lambda: self.suffer(fault))

    # On the loop's thread.

    def suffer(self, fault: Fault, only: Iterable[Connection] | None = None) -> int:
        now = time.monotonic()
        hit = list(self._connections.values()) if only is None else list(only)
        if fault.kind in LISTENING:
            hit = []
            self._stop_listening()
            self._open_again_at = now + fault.seconds
            if fault.kind != "refuse":
                self._listener = self._listening(_BACKLOG if fault.kind == "ignore" else 0)
            if fault.kind == "swallow":
                self._fill()
        elif fault.kind == HEAL and only is None:
            self._heal()
        elif fault.kind in STANDING and only is None:
            for end in fault.directions:
                self._conditions[end].impose(fault, now)
            for each in hit:
                each.move(now)
            self._record(self, fault, len(hit))
            return len(hit)
        count = sum(each.suffer(fault, now) for each in hit)
        self._record(self, fault, count)
        return count

    def begin(self) -> None:
        self._listener = self._listening(_BACKLOG)
        self._loop.watch(self._listener, selectors.EVENT_READ, self._accept)

    def move(self, now: float) -> float:
        """Do what is due; return when to call this next."""
        if now >= self._open_again_at:
            self._heal_listener()
        due = self._open_again_at
        for each in list(self._connections.values()):
            if each.next_due(now) <= now:
                each.move(now)
            due = min(due, each.next_due(now))
        return due

    def end(self) -> None:
        for each in list(self._connections.values()):
            each.end()
        self._stop_listening()
        self._keeper.close()

    def forget(self) -> None:
        """Close everything in a forked child."""
        listening = [self._listener] if self._listener is not None else []
        for sock in (self._keeper, *listening, *self._fillers):
            sock.close()
        for each in self._connections.values():
            each.forget()

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        with (
            ADOPTING,
            contextlib.suppress(BlockingIOError, ConnectionError),  # the client has closed again
        ):
            client, _ = self._listener.accept()
            self._adopt(client)

    def _adopt(self, client: socket.socket) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        try:
            server = dialled(self._family, self._destination)
        except OSError:
            client.close()
            return
        number = self.accepted
        connection = Connection(
            number, client, server, self._loop, self._conditions, self._chance, self._forget_one
        )
        self._connections[number] = connection
        connection.begin()

    def _forget_one(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)

    # The listener.

    def _heal(self) -> None:
        for conditions in self._conditions.values():
            conditions.heal()
        if self._open_again_at < math.inf or self._fillers or not self._serving:
            self._heal_listener()

    @property
    def _serving(self) -> bool:
        return self._listener is not None and self._loop.watches(self._listener)

    def _heal_listener(self) -> None:
        """Listen again. The listener of ``ignore`` is kept, so that clients in its queue are served now."""
        self._open_again_at = math.inf
        if self._listener is None or self._fillers:
            self._stop_listening()
            self._listener = self._listening(_BACKLOG)
        self._loop.watch(self._listener, selectors.EVENT_READ, self._accept)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.watch(listener, 0, self._accept)
            listener.close()
        for filler in self._fillers:
            filler.close()
        self._fillers = []

    def _listening(self, backlog: int) -> socket.socket:
        listener = _bound(self._place)
        listener.setblocking(False)
        listener.listen(backlog)
        return listener

    def _fill(self) -> None:
        """Connect to ourselves until the listener's queue is full: then the system drops further dials."""
        for _ in range(_FILLERS):
            filler = socket.socket()
            self._fillers.append(filler)
            filler.setblocking(False)
            if filler.connect_ex(self._place) not in (0, errno.EINPROGRESS):
                return
            poll = select.poll()
            poll.register(filler, select.POLLOUT)
            if not poll.poll(_FILLED_AFTER):
                return


def _bound(place: Any) -> socket.socket:
    """Make a bound socket. With SO_REUSEADDR several may have the same address, and one may listen."""
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolved(target: str) -> tuple[socket.AddressFamily, Any]:
    if is_path(target):
        return socket.AF_UNIX, target
    host, port = split(target)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return found[0][0], found[0][4]
