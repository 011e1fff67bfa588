"""The network in memory: hosts, connections, and what the package gets in place of ``socket`` and ``select``.

A connection is two ends; what one sends arrives at the other after the delay of the link between their hosts,
in order, in pieces, and as fast as the other makes room. Faults: a link that is *silent* keeps everything
back until it is mended, as TCP does that sends again; ``reset`` breaks connections; a host without power says
nothing.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import select as real_select
import socket as real_socket
import struct
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from select import POLLIN, POLLNVAL, POLLOUT
from typing import Any

from tests.simulation.scheduler import Process, Waiters, scheduler
from tests.simulation.threads import stand_in

_SHOWN = 160  # bytes of a transfer that a story shows


@dataclass(eq=False)
class Host:
    """A machine: an address, listeners, and the ends of connections."""

    name: str
    address: str = ""
    powered: bool = True
    clock_error: float = 0.0  # how wrong its wall clock is
    listeners: dict[int, End] = field(default_factory=dict)
    ends: dict[End, None] = field(default_factory=dict)


class Link:
    """What lies between two hosts. It keeps what it cannot deliver yet, as TCP does that sends again."""

    def __init__(self, delay: float) -> None:
        self.delay = self._usual = delay
        self.silent = False
        self._kept: list[tuple[Host, Callable[[], None]]] = []

    def send(self, there: Host, arrive: Callable[[], None], after: float = 0.0) -> float:
        """Have something arrive at a host, not before ``after``; return when."""
        when = max(scheduler.now + self.delay * (0.5 + scheduler.chance.random()), after)
        scheduler.at(when, lambda: self._arrive(there, arrive))
        return when

    def _arrive(self, there: Host, arrive: Callable[[], None]) -> None:
        if self.silent or not there.powered:
            self._kept.append((there, arrive))
        else:
            arrive()

    def mend(self) -> None:
        self.silent, self.delay = False, self._usual
        self.send_again()

    def send_again(self) -> None:
        kept, self._kept = self._kept, []
        for there, arrive in kept:
            self._arrive(there, arrive)


class End:
    """One end of a connection, or a listener, which is ``accepting``: what duplicates of a socket share."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name, self.peer_name = ("0.0.0.0", 0), ("", 0)
        self.peer: End | None = None
        self.descriptors = 0
        self.read_timeout: float | None = None
        self.accepting: deque[End] | None = None
        self.received = bytearray()
        self.on_way, self.last_arrival = 0, 0.0  # of what it sent: how many bytes, and when all is there
        self.connecting = self.broken = False
        self.at_end = False  # the other end sends nothing more
        self.deaf = False  # this end reads only what is there already
        self.finished = False  # this end sends nothing more
        self.error = 0  # an errno, until a call has raised it
        self.watchers = Waiters()
        self.said: list[tuple[float, bytes]] = []  # what it sent, and when: for the auditor
        self.closed_at = math.inf

    @property
    def room(self) -> int:
        return 0 if self.peer is None else max(0, network.window - len(self.peer.received) - self.on_way)

    @property
    def readable(self) -> bool:
        waits = self.accepting or self.received or self.at_end or self.broken or self.deaf
        return bool(waits) and not self.connecting

    @property
    def writable(self) -> bool:
        return bool(self.room or self.broken or self.finished) and not self.connecting

    # Connecting.

    def connect(self, address: tuple[str, int]) -> None:
        scheduler.note("connect", address)
        self.name, self.peer_name = (self.host.address, next(network.numbers)), address
        self.host.ends[self] = None
        self.connecting = True
        there = network.hosts.get(address[0])
        if there is not None:
            network.link(self.host, there).send(there, lambda: self._knock(there))

    def _knock(self, there: Host) -> None:
        """The first packet arrives at the other host."""
        listener = there.listeners.get(self.peer_name[1])
        if listener is not None and listener.accepting is not None:
            other = End(there)
            other.name, other.peer_name, other.peer, self.peer = self.peer_name, self.name, self, other
            there.ends[other] = None
            network.connections.append(self)
            listener.accepting.append(other)
            listener.watchers.wake()
        network.link(self.host, there).send(self.host, self._answered)

    def _answered(self) -> None:
        if self.connecting and self in self.host.ends:
            self.connected(0 if self.peer else errno.ECONNREFUSED)
        elif self.peer is not None:  # closed meanwhile
            self._send(self.peer.reset)

    def connected(self, code: int) -> None:
        """End connecting, with an error if ``code`` is not 0."""
        self.connecting, self.broken, self.error = False, bool(code), code
        self.watchers.wake()

    # Talking.

    def send(self, data: bytes) -> int:
        """Take as much as there is room for."""
        if not self.writable:
            raise _error(errno.EAGAIN)
        self.raise_error()
        if self.broken or self.finished or self.peer is None:
            raise _error(errno.EPIPE)
        taken = bytes(data[: self.room])
        scheduler.note("sent", self.name, taken)
        self.said.append((scheduler.now, taken))
        if self.host is not self.peer.host:
            network.watch(self)
        if scheduler.tell and taken and self.host is not self.peer.host:
            more = f" … {len(taken)} bytes" if len(taken) > _SHOWN else ""
            scheduler.story(f"{self.host.name} to {self.peer.host.name}: {taken[:_SHOWN]!r}{more}")
        self.on_way += len(taken)
        rest = taken
        while rest:  # a small window makes small pieces
            size = 1 + int(scheduler.chance.random() * network.window)
            piece, rest = rest[:size], rest[size:]
            self._send(partial(self._arrived, piece))
        return len(taken)

    def raise_error(self) -> None:
        """Raise what has broken the connection; only one call learns it."""
        code, self.error = self.error, 0
        if code:
            raise _error(code)

    def _send(self, arrive: Callable[[], None]) -> None:
        assert self.peer is not None
        there = self.peer.host
        self.last_arrival = network.link(self.host, there).send(there, arrive, self.last_arrival)

    def _arrived(self, piece: bytes) -> None:
        self.on_way -= len(piece)
        peer = self.peer
        assert peer is not None
        if peer not in peer.host.ends or peer.broken or (peer.deaf and peer.finished):
            # That end is closed, or no longer read: the answer is a reset.
            peer.reset()
            peer._send(self.reset)
        else:
            peer.received += piece
            peer.watchers.wake()

    def finish(self) -> None:
        """Send nothing more, and tell the other end so."""
        if not self.finished and not self.broken:
            self.finished = True
            if self.peer is not None:
                self._send(self.peer._ended)
            self.watchers.wake()

    def _ended(self) -> None:
        self.at_end = True
        self.watchers.wake()

    def reset(self) -> None:
        if not self.broken:
            self.broken, self.error = True, errno.EPIPE if self.at_end else errno.ECONNRESET
            self.closed_at = min(self.closed_at, scheduler.now)
            self.watchers.wake()

    def close(self) -> None:
        """Close it, as the kernel does when the last descriptor is gone."""
        if self.accepting is not None:
            self.host.listeners.pop(self.name[1], None)
            for end in self.accepting:
                end.received += b"unread"  # so that it is reset
                end.close()
            return
        self.closed_at = min(self.closed_at, scheduler.now)
        self.host.ends.pop(self, None)
        if self.connecting:
            self.connected(errno.ECONNRESET)
        if self.peer is not None and self.received and not self.broken:
            self._send(self.peer.reset)
            self.finished = True
        self.finish()


class Socket:
    """Stands in for ``socket.socket``. A duplicate shares the end."""

    family, type, proto = real_socket.AF_INET, real_socket.SOCK_STREAM, real_socket.IPPROTO_TCP
    closed = True

    def __init__(self, *_: int, end: End | None = None, **__: int) -> None:
        self.process = scheduler.me().process
        self._end = end or End(self.process.host)
        self._end.descriptors += 1
        self._number = network.descriptor(self.process, weakref.proxy(self))
        self.closed, self._blocking = False, True

    @property
    def end(self) -> End:
        """Its end, for all calls that a closed socket refuses."""
        if self.closed:
            raise _error(errno.EBADF)
        return self._end

    def dup(self) -> Socket:
        return Socket(end=self.end)

    def setsockopt(self, _level: int, name: int, value: Any) -> None:
        end = self.end
        if name == real_socket.SO_RCVTIMEO:
            seconds, micros = struct.unpack("@ll", value)
            end.read_timeout = seconds + micros / 1e6 or None

    def getsockopt(self, _level: int, name: int) -> int:
        assert name == real_socket.SO_ERROR
        code, self.end.error = self.end.error, 0
        return code

    def setblocking(self, flag: bool) -> None:
        self._blocking = flag

    def fileno(self) -> int:
        return -1 if self.closed else self._number

    def getsockname(self) -> tuple[str, int]:
        return self.end.name

    def getpeername(self) -> tuple[str, int]:
        if self.end.broken or self.end.peer is None:
            raise _error(errno.ENOTCONN)
        return self.end.peer_name

    def bind(self, address: Any) -> None:
        self.end.name = (self.end.host.address, address[1])

    def listen(self, _backlog: int = 128) -> None:
        end = self.end
        end.accepting = end.accepting or deque()
        end.host.listeners[end.name[1]] = end

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self.end.accepting:
            raise _error(errno.EAGAIN)
        end = self.end.accepting.popleft()
        return Socket(end=end), end.peer_name

    def connect(self, address: Any) -> None:
        assert not self._blocking
        self.end.connect((str(address[0]), int(address[1])))
        raise _error(errno.EINPROGRESS)

    def recv(self, limit: int) -> bytes:
        end = self.end
        timeout = end.read_timeout if self._blocking else 0
        if not scheduler.wait_until(lambda: end.readable, timeout, end.watchers):
            raise _error(errno.EAGAIN)
        if not end.received:
            end.raise_error()
        data = bytes(end.received[:limit])
        del end.received[:limit]
        if end.peer is not None:
            end.peer.watchers.wake()
        return data

    def send(self, data: Any, flags: int = real_socket.MSG_DONTWAIT) -> int:
        assert not self._blocking or flags & real_socket.MSG_DONTWAIT
        return self.end.send(data)

    def sendmsg(self, buffers: Any) -> int:
        """Send several buffers: asyncio does since Python 3.12."""
        return self.send(b"".join(buffers))

    def shutdown(self, how: int) -> None:
        end = self.end
        if end.connecting:
            end.connected(errno.ECONNRESET)
            return
        if end.broken or end.peer is None:
            raise _error(errno.ENOTCONN)
        end.deaf = end.deaf or how != real_socket.SHUT_WR
        if how != real_socket.SHUT_RD:
            end.finish()
        end.watchers.wake()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        del self.process.descriptors[self._number]
        self._end.descriptors -= 1
        if self._end.descriptors == 0:
            self._end.close()

    def __del__(self) -> None:
        """Close it when the last reference goes, as CPython does: at once, and so at the same time again."""
        if self.process.alive:
            self.close()


def socketpair() -> tuple[Socket, Socket]:
    """Return two connected sockets: an event loop wakes itself with them."""
    one, other = Socket(), Socket()
    one.end.peer, other.end.peer = other.end, one.end
    for each in (one, other):
        each.end.host.ends[each.end] = None
    return one, other


class Poll:
    """Stands in for ``select.poll``, of the package and of event loops. Sockets are known by descriptors."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, sock: Any, events: int) -> None:
        self._wanted[sock if isinstance(sock, int) else sock.fileno()] = events

    modify = register

    def unregister(self, descriptor: int) -> None:
        del self._wanted[descriptor]

    def poll(self, milliseconds: float | None) -> list[tuple[int, int]]:
        open_ = scheduler.me().process.descriptors

        def state(number: int) -> int:
            end = open_[number].end if number in open_ else None
            return POLLIN * end.readable | POLLOUT * end.writable if end else POLLNVAL

        found: list[tuple[int, int]] = []

        def ready() -> list[tuple[int, int]]:
            seen = ((number, state(number) & (wanted | POLLNVAL)) for number, wanted in self._wanted.items())
            found[:] = [each for each in seen if each[1]]
            return found

        if milliseconds == 0 and not ready():
            scheduler.give_way()  # an event loop that is never idle lets other threads run too
            ready()
        else:
            places = [open_[number].end.watchers for number in self._wanted if number in open_]
            seconds = None if milliseconds is None else milliseconds / 1000
            scheduler.wait_until(ready, seconds, *places)
        return found


class Network:
    """All hosts and the links between them."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.window, self.delay = 65536, 0.0003
        self.watch: Callable[[End], object] = lambda _end: None  # called when an end sends something
        self.connections: list[End] = []  # the dialing end of every connection that there was
        self.numbers = itertools.count(1)  # of addresses, of ports that are dialed from, of descriptors
        self._links: dict[frozenset[str], Link] = {}

    def host(self, name: str) -> Host:
        host = Host(name)
        self.move(host)
        return host

    def move(self, host: Host) -> None:
        """Give a host an address, or another one."""
        self.hosts.pop(host.address, None)
        number = next(self.numbers)
        host.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.hosts[host.address] = host

    def link(self, one: Host, other: Host) -> Link:
        delay = 0.0 if one is other else self.delay
        return self._links.setdefault(frozenset((one.name, other.name)), Link(delay))

    def reset(self, end: End) -> None:
        """Break a connection for both ends."""
        for each in (end, end.peer):
            if each is not None:
                each.reset()

    def mend(self) -> None:
        for link in self._links.values():
            link.mend()

    def power_off(self, host: Host) -> None:
        """Silence: the other ends learn nothing, until what they send meanwhile arrives when it is back."""
        host.powered = False
        host.listeners.clear()
        host.ends.clear()

    def power_on(self, host: Host) -> None:
        host.powered = True
        for link in self._links.values():
            link.send_again()

    def descriptor(self, process: Process, item: Any) -> int:
        number = 1_000_000 + next(self.numbers)
        process.descriptors[number] = item
        return number


network = Network()


def begin() -> None:
    network.__init__()  # type: ignore[misc]


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def getaddrinfo(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
    """Know addresses only: no run has names of hosts."""
    text = host.decode() if isinstance(host, bytes) else host
    return [(Socket.family, Socket.type, Socket.proto, "", (text, int(port)))]


def modules() -> dict[str, Any]:
    """Return the stand-ins by the name under which the package imports them."""
    return {
        "socket": stand_in(
            real_socket,
            socket=Socket,
            socketpair=socketpair,
            getaddrinfo=getaddrinfo,
            gethostname=lambda: scheduler.me().process.host.name,
            has_dualstack_ipv6=lambda: False,
        ),
        "select": stand_in(real_select, poll=Poll),
    }
