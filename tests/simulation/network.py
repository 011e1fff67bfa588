"""The network in memory: hosts, connections, and what the package gets in place of ``socket`` and ``select``.

A connection is two ends; what one sends arrives at the other after the delay of the link between their hosts,
in order, in pieces, and as fast as the other makes room. Faults: a link that is *silent* keeps everything back
until it is mended, as TCP does that sends again; ``reset`` breaks connections; a host without power says nothing.
"""

from __future__ import annotations

import errno
import math
import os
import select as real_select
import socket as real_socket
import struct
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.simulation.scheduler import Process, Thread, scheduler
from tests.simulation.threads import StandIn

_FIRST_PORT = 40_000
_TIMEVAL = struct.Struct("@ll")
_OPTIONS = {real_socket.SO_RCVTIMEO: "receive_timeout", real_socket.SO_SNDTIMEO: "send_timeout"}


class Host:
    """A machine: an address, listeners, and the ends of connections."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.powered = True
        self.listeners: dict[int, Socket] = {}
        self.ends: dict[End, None] = {}
        self.next_port = _FIRST_PORT

    def __repr__(self) -> str:
        return self.name


class Link:
    """What lies between two hosts."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.silent = False
        self.kept: list[Callable[[], None]] = []

    def send(self, arrive: Callable[[], None], after: float) -> float:
        """Have something arrive, not before ``after``; return when."""
        when = max(scheduler.now + self.delay * (0.5 + network.chance()), after)
        scheduler.at(when, lambda: self._arrive(arrive))
        return when

    def _arrive(self, arrive: Callable[[], None]) -> None:
        if self.silent:
            self.kept.append(arrive)
        else:
            arrive()

    def mend(self) -> None:
        self.silent = False
        kept, self.kept = self.kept, []
        for arrive in kept:
            arrive()


class End:
    """One end of a connection."""

    def __init__(self, host: Host, name: tuple[str, int], peer_name: tuple[str, int]) -> None:
        self.host, self.name, self.peer_name = host, name, peer_name
        self.peer: End | None = None
        self.received = bytearray()
        self.on_way = 0
        self.at_end = False  # the other end sends nothing more
        self.deaf = False  # this end reads nothing more
        self.finished = False  # this end sends nothing more
        self.broken = 0  # an errno
        self.watchers: dict[Thread, None] = {}
        self.last_arrival = 0.0
        self.said: list[tuple[float, bytes]] = []
        """What it sent, and when: for the auditor."""
        self.closed_at = math.inf
        host.ends[self] = None

    def changed(self) -> None:
        watchers, self.watchers = self.watchers, {}
        for thread in watchers:
            scheduler.wake(thread)

    @property
    def room(self) -> int:
        peer = self.peer
        return 0 if peer is None else network.window - len(peer.received) - self.on_way

    @property
    def readable(self) -> bool:
        return bool(self.received or self.at_end or self.broken or self.deaf)

    @property
    def writable(self) -> bool:
        return bool(self.room > 0 or self.broken or self.finished)

    def send(self, data: bytes) -> int:
        """Take as much as there is room for."""
        if self.broken:
            raise _error(self.broken)
        if self.finished or self.peer is None:
            raise _error(errno.EPIPE)
        taken = bytes(data[: max(self.room, 0)])
        scheduler.note("sent", self.name, taken)
        self.said.append((scheduler.now, taken))
        if scheduler.telling and taken:
            scheduler.story(f"{self.host} to {self.peer.host}: {_shown(taken)}")
        start = 0
        while start < len(taken):
            piece = taken[start : start + network.piece()]
            start += len(piece)
            self.on_way += len(piece)
            self._send(lambda piece=piece: self._arrived(piece))
        return len(taken)

    def _send(self, arrive: Callable[[], None]) -> None:
        assert self.peer is not None
        link = network.link(self.host, self.peer.host)
        self.last_arrival = link.send(arrive, self.last_arrival)

    def _arrived(self, piece: bytes) -> None:
        self.on_way -= len(piece)
        peer = self.peer
        assert peer is not None
        if not peer.host.powered:
            return
        if peer not in peer.host.ends or peer.broken:
            # Nobody has that end any more: the answer is a reset.
            peer._send(lambda: self.break_off(errno.ECONNRESET))
            return
        if not peer.deaf:
            peer.received += piece
        peer.changed()

    def finish(self) -> None:
        """Send nothing more, and tell the other end so."""
        if self.finished or self.broken:
            return
        self.finished = True
        peer = self.peer
        if peer is not None:
            self._send(peer._ended)
        self.changed()

    def _ended(self) -> None:
        if self.host.powered:
            self.at_end = True
            self.changed()

    def break_off(self, code: int) -> None:
        if self.host.powered and not self.broken:
            self.broken = code
            self.closed_at = min(self.closed_at, scheduler.now)
            self.changed()

    def close(self) -> None:
        """Close it, as the kernel does when the last descriptor is gone."""
        peer = self.peer
        self.closed_at = min(self.closed_at, scheduler.now)
        self.host.ends.pop(self, None)
        if peer is not None and (self.received or self.broken) and not peer.broken:
            self._send(lambda: peer.break_off(errno.ECONNRESET))
            self.finished = True
        self.finish()


class Socket:
    """Stands in for ``socket.socket``. A duplicate shares the connection."""

    def __init__(self, family: int = real_socket.AF_INET, type: int = -1, proto: int = -1, fileno: Any = None):
        self.family = real_socket.AddressFamily(family)
        self.type = real_socket.SOCK_STREAM if type in (-1, real_socket.SOCK_STREAM) else type
        self.proto = 6
        self.process = scheduler.me().process
        self._shared = _Shared(self.process.host)
        self._open()

    def _open(self) -> None:
        self._shared.descriptors += 1
        self._number = network.descriptor(self.process, self)
        self.closed = False
        self.blocking = True

    def dup(self) -> Socket:
        copy = object.__new__(Socket)
        copy.family, copy.type, copy.proto = self.family, self.type, self.proto
        copy.process, copy._shared = self.process, self._shared
        copy._open()
        return copy

    # What is not simulated in detail.

    def setsockopt(self, _level: int, name: int, value: Any) -> None:
        self._check()
        if name in _OPTIONS:
            seconds, micros = _TIMEVAL.unpack(value)
            setattr(self._shared, _OPTIONS[name], seconds + micros / 1e6 or None)

    def getsockopt(self, _level: int, name: int, *_: Any) -> int:
        self._check()
        if name == real_socket.SO_ERROR:
            code, self._shared.connect_error = self._shared.connect_error, 0
            return code
        return 0

    def setblocking(self, flag: bool) -> None:
        self._check()
        self.blocking = flag

    def getblocking(self) -> bool:
        return self.blocking

    def settimeout(self, seconds: float | None) -> None:
        self.blocking = seconds is None or seconds > 0

    def gettimeout(self) -> float | None:
        return None if self.blocking else 0.0

    def fileno(self) -> int:
        return -1 if self.closed else self._number

    def getsockname(self) -> tuple[str, int]:
        self._check()
        end = self._shared.end
        return self._shared.name if end is None else end.name

    def getpeername(self) -> tuple[str, int]:
        end = self._end()
        if end.broken:
            raise _error(errno.ENOTCONN)
        return end.peer_name

    # Connections.

    def bind(self, address: Any) -> None:
        host, shared = self._shared.host, self._shared
        port = address[1] or _free_port(host)
        if port in host.listeners:
            raise _error(errno.EADDRINUSE)
        shared.name = (host.address, port)

    def listen(self, backlog: int = 128) -> None:
        if self._shared.accepting is None:
            self._shared.accepting = deque()
            self._shared.host.listeners[self._shared.name[1]] = self

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        self._check()
        accepting = self._shared.accepting
        assert accepting is not None
        while not accepting:
            self._wait_if_blocking()
        end = accepting.popleft()
        sock = object.__new__(Socket)
        sock.family, sock.type, sock.proto, sock.process = self.family, self.type, self.proto, self.process
        sock._shared = _Shared(self._shared.host)
        sock._shared.end = end
        sock._open()
        return sock, end.peer_name

    def connect(self, address: Any) -> None:
        shared = self._shared
        here = shared.host
        end = End(here, (here.address, _free_port(here)), (str(address[0]), int(address[1])))
        shared.end = end
        scheduler.note("connect", address)
        there = network.hosts.get(end.peer_name[0])
        shared.connecting = True
        if there is not None:
            link = network.link(here, there)
            link.send(lambda: self._knock(end, there, link), 0.0)
        if not self.blocking:
            raise BlockingIOError(errno.EINPROGRESS, "in progress")
        deadline = scheduler.now + (shared.send_timeout or math.inf)
        while shared.connecting:
            if scheduler.now >= deadline:
                raise BlockingIOError(errno.EAGAIN, "timed out")
            end.watchers[scheduler.me()] = None
            scheduler.wait(deadline - scheduler.now)
        if shared.connect_error:
            raise _error(shared.connect_error)

    def _knock(self, end: End, there: Host, link: Link) -> None:
        """The first packet arrives at the other host."""
        listener = there.listeners.get(end.peer_name[1])
        if not there.powered:
            return
        if listener is None:
            link.send(lambda: self._connected(end, errno.ECONNREFUSED), 0.0)
            return
        other = End(there, end.peer_name, end.name)
        other.peer, end.peer = end, other
        network.connections.append(end)
        accepting = listener._shared.accepting
        assert accepting is not None
        accepting.append(other)
        listener.changed()
        link.send(lambda: self._connected(end, 0), 0.0)

    def _connected(self, end: End, code: int) -> None:
        if end in end.host.ends:
            self._shared.connecting = False
            self._shared.connect_error = code
            if code:
                end.broken = code
            end.changed()

    def recv(self, limit: int, _flags: int = 0) -> bytes:
        end = self._end()
        deadline = scheduler.now + (self._shared.receive_timeout or math.inf)
        while not end.readable:
            self._wait_if_blocking(deadline)
        if end.received and not end.deaf:
            data = bytes(end.received[:limit])
            del end.received[:limit]
            if end.peer is not None and end.peer.watchers:
                end.peer.changed()
            return data
        if end.broken:
            raise _error(end.broken)
        return b""

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        data = self.recv(nbytes or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        end = self._end()
        while not end.writable or (not end.room > 0 and not end.broken and not end.finished):
            if flags & real_socket.MSG_DONTWAIT:
                raise BlockingIOError(errno.EAGAIN, "would block")
            self._wait_if_blocking()
        return end.send(data)

    def sendmsg(self, buffers: Any) -> int:
        return self.send(b"".join(buffers))

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def shutdown(self, how: int) -> None:
        end = self._end()
        if end.broken or self._shared.connecting:
            if self._shared.connecting:
                self._connected(end, errno.ECONNABORTED)
            raise _error(errno.ENOTCONN)
        if how in (real_socket.SHUT_RD, real_socket.SHUT_RDWR):
            end.deaf = True
        if how in (real_socket.SHUT_WR, real_socket.SHUT_RDWR):
            end.finish()
        end.changed()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        del self.process.descriptors[self._number]
        self._shared.descriptors -= 1
        if self._shared.descriptors == 0:
            self._shared.close()

    def detach(self) -> int:
        raise NotImplementedError("a simulated socket stays what it is")

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Waiting.

    @property
    def readable(self) -> bool:
        shared = self._shared
        if shared.accepting is not None:
            return bool(shared.accepting)
        return shared.end is not None and not shared.connecting and shared.end.readable

    @property
    def writable(self) -> bool:
        shared = self._shared
        return shared.end is not None and not shared.connecting and (shared.end.writable)

    def watch(self, thread: Thread) -> None:
        """Wake the thread at the next change."""
        shared = self._shared
        (shared.watchers if shared.end is None else shared.end.watchers)[thread] = None

    def changed(self) -> None:
        watchers, self._shared.watchers = self._shared.watchers, {}
        for thread in watchers:
            scheduler.wake(thread)

    def _wait_if_blocking(self, deadline: float = math.inf) -> None:
        if not self.blocking or scheduler.now >= deadline:
            raise BlockingIOError(errno.EAGAIN, "would block")
        self.watch(scheduler.me())
        scheduler.wait(deadline - scheduler.now)
        self._check()

    def _end(self) -> End:
        self._check()
        if self._shared.end is None:
            raise _error(errno.ENOTCONN)
        return self._shared.end

    def _check(self) -> None:
        if self.closed:
            raise _error(errno.EBADF)

    def __repr__(self) -> str:
        return f"<socket {self._number}>"


class _Shared:
    """What duplicates of a socket share."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.descriptors = 0
        self.name = ("0.0.0.0", 0)
        self.end: End | None = None
        self.accepting: deque[End] | None = None
        self.watchers: dict[Thread, None] = {}
        self.connecting = False
        self.connect_error = 0
        self.receive_timeout: float | None = None
        self.send_timeout: float | None = None

    def close(self) -> None:
        if self.accepting is not None:
            self.host.listeners.pop(self.name[1], None)
            for end in self.accepting:
                end.received += b"unread"  # so that it is reset
                end.close()
        if self.end is not None:
            self.end.close()


class Poll:
    """Stands in for ``select.poll``."""

    def __init__(self) -> None:
        self._sockets: dict[int, tuple[Socket, int]] = {}

    def register(self, sock: Socket, events: int) -> None:
        self._sockets[sock.fileno()] = (sock, events)

    def unregister(self, descriptor: int) -> None:
        del self._sockets[descriptor]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        deadline = math.inf if milliseconds is None else scheduler.now + milliseconds / 1000
        while True:
            ready = [(number, events) for number in self._sockets if (events := self._ready(number))]
            if ready or scheduler.now >= deadline:
                return ready
            for sock, _ in self._sockets.values():
                sock.watch(scheduler.me())
            scheduler.wait(deadline - scheduler.now)

    def _ready(self, number: int) -> int:
        sock, events = self._sockets[number]
        if sock.closed:
            return real_select.POLLNVAL
        readable = real_select.POLLIN if sock.readable else 0
        writable = real_select.POLLOUT if sock.writable else 0
        return events & (readable | writable)


class Network:
    """All hosts and the links between them."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.window = 65536
        self.delay = 0.0003
        self.in_pieces = 0.0
        """How often a transfer arrives in several pieces."""
        self.connections: list[End] = []
        """The dialing end of every connection that there was."""
        self._links: dict[frozenset[str], Link] = {}
        self._descriptors = 1_000_000
        self._addresses = 0

    def host(self, name: str) -> Host:
        host = Host(name, self._free_address())
        self.hosts[host.address] = host
        return host

    def _free_address(self) -> str:
        self._addresses += 1
        return f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"

    def move(self, host: Host) -> None:
        """Give a host that is off another address."""
        del self.hosts[host.address]
        host.address = self._free_address()
        self.hosts[host.address] = host

    def link(self, one: Host, other: Host) -> Link:
        key = frozenset((one.name, other.name))
        if key not in self._links:
            self._links[key] = Link(self.delay)
        return self._links[key]

    def reset(self, end: End) -> None:
        """Break a connection for both ends."""
        for each in (end, end.peer):
            if each is not None:
                each.break_off(errno.ECONNRESET)

    def process_died(self, process: Process) -> None:
        """Close what a killed process had open, as the kernel does."""
        for item in list(process.descriptors.values()):
            item.close()

    def power_off(self, host: Host) -> None:
        """Silence: the other ends learn nothing until they send something after the host is back."""
        host.powered = False
        host.listeners.clear()
        host.ends.clear()

    def power_on(self, host: Host) -> None:
        host.powered = True

    def chance(self) -> float:
        return scheduler.chance.random()

    def piece(self) -> int:
        if self.in_pieces and self.chance() < self.in_pieces:
            return 1 + int(self.chance() ** 3 * 3000)
        return self.window

    def descriptor(self, process: Process, item: Any) -> int:
        self._descriptors += 1
        process.descriptors[self._descriptors] = item
        return self._descriptors


network = Network()


def begin() -> None:
    network.__init__()  # type: ignore[misc]


def _shown(data: bytes) -> str:
    return f"{data[:160]!r}" + (f" … {len(data)} bytes" if len(data) > 160 else "")


def _free_port(host: Host) -> int:
    host.next_port += 1
    return host.next_port


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def getaddrinfo(host: Any, port: Any, *_: Any, flags: int = 0, **__: Any) -> list[Any]:
    text = host.decode() if isinstance(host, bytes) else str(host)
    if not text.replace(".", "").isdigit():
        found = next((each.address for each in network.hosts.values() if each.name == text), None)
        if flags & real_socket.AI_NUMERICHOST or found is None:
            raise real_socket.gaierror(real_socket.EAI_NONAME, "Name or service not known")
        scheduler.stand_still(0.001)
        text = found
    return [(real_socket.AF_INET, real_socket.SOCK_STREAM, 6, "", (text, int(port)))]


def modules() -> dict[str, ModuleType]:
    """Return the stand-ins by the name under which the package imports them."""
    return {
        "socket": StandIn(
            real_socket,
            socket=Socket,
            getaddrinfo=getaddrinfo,
            gethostname=lambda: scheduler.me().process.host.name,
            has_dualstack_ipv6=lambda: False,
        ),
        "select": StandIn(real_select, poll=Poll),
    }
