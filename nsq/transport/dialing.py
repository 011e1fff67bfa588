"""Turns an address into a connected stream: resolves the name, races its addresses, can be interrupted.

    host:port   resolver.resolve -> race -> SocketStream
    unix:/path  one connect -> SocketStream

**Names.** The C library's lookup can take half a minute and cannot be interrupted, so it runs in a thread of
its own. A caller whose time is up leaves that thread running; another caller with the same name waits for the
same thread, so there is at most one per name. Addresses in digits need no lookup and no thread.

**The race.** The next address is tried as soon as one fails or has been silent for a moment, and the earlier
ones go on: a dead address in front (usually IPv6 without a route) costs that moment, not the whole timeout.

**Interrupting.** A close must not wait for a dead address. This takes no lock: one that is held at a fork
would block the child's dials. ``interrupt`` shuts down a duplicate of each socket, and only the thread that
has popped the duplicate may touch it: no thread shuts down a descriptor that the process has reused.

Every OSError of a dial becomes DialFailed here; SocketStream handles those of a connection.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from nsq.errors import ConfigError, DialFailed
from nsq.wire.layers.tls import codecless

from . import addresses
from .base import Stream, Transport
from .sockets import SocketStream, poll_milliseconds, timeval

# Names


class Target(NamedTuple):
    """One socket address of a name."""

    family: int
    protocol: int
    address: tuple[Any, ...]

    @property
    def words(self) -> str:
        return addresses.join(str(self.address[0]), int(self.address[1]))


Lookup = Callable[[str, int], list[Target]]

_INTERRUPTED = "interrupted, as this client is closed"


def look_up(host: str, port: int, flags: int = 0) -> list[Target]:
    """Resolve a name; blocks as long as the C library does. OSError or UnicodeError for a bad name."""
    found = socket.getaddrinfo(codecless(host), port, type=socket.SOCK_STREAM, flags=flags)
    targets = (Target(family, protocol, address) for family, _, protocol, _, address in found)
    return list(dict.fromkeys(targets))


def literal(host: str, port: int) -> list[Target]:
    """Return the one target of an address in digits, none for a name; never sends a query."""
    try:
        return look_up(host, port, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []


class _Asked:
    """A lookup that is under way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.targets: list[Target] = []
        self.failure: OSError | UnicodeError | None = None


class Resolver:
    """Looks names up in threads, at most one for each name at a time."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._interrupted = False
        # By name, port and process: a lookup under way at a fork has no thread in the child.
        self._under_way: dict[tuple[str, int, int], _Asked] = {}

    def resolve(self, host: str, port: int, timeout: float) -> list[Target]:
        """Return at least one target, or raise OSError (also TimeoutError) or UnicodeError."""
        targets = literal(host, port)
        if targets:
            return targets
        key = (host, port, os.getpid())
        fresh = _Asked()
        # Atomic, without a lock that a fork could leave held.
        asked = self._under_way.setdefault(key, fresh)
        if asked is fresh:
            self._start(key, fresh)
        if self._interrupted:
            raise OSError(_INTERRUPTED)
        if not asked.done.wait(min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            raise TimeoutError(f"the name was not resolved within {timeout:.3g} s")
        if asked.failure is not None:
            raise asked.failure
        return asked.targets

    def interrupt(self) -> None:
        """End every wait, and refuse later ones. The threads end when the C library returns."""
        self._interrupted = True
        for asked in list(self._under_way.values()):
            asked.failure = OSError(_INTERRUPTED)
            asked.done.set()

    def _start(self, key: tuple[str, int, int], asked: _Asked) -> None:
        # A daemon thread: it can neither be stopped nor joined, and must not keep a program from ending.
        thread = threading.Thread(
            target=self._ask, args=(key, asked), name=f"nsq-resolve-{key[0]}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._ask(key, asked)

    def _ask(self, key: tuple[str, int, int], asked: _Asked) -> None:
        try:
            asked.targets = self._lookup(key[0], key[1])
            if not asked.targets:
                asked.failure = OSError("the name has no address")
        except (OSError, UnicodeError) as error:
            asked.failure = error
        finally:
            # Remove it first: later callers look the name up anew, earlier ones hold ``asked``.
            self._under_way.pop(key, None)
            asked.done.set()


# The race

#: Seconds of silence after which the next address is tried as well.
_ATTEMPT_DELAY = 0.25
Opened = Callable[[Target], socket.socket]
"""Makes an unconnected socket for a target, with its options set, and bound if need be."""


def race(targets: Sequence[Target], opened: Opened, timeout: float) -> socket.socket:
    """Return the winner's socket, connected and blocking. Raises OSError when none connects in time: its text
    has the reason for each address, its ``__cause__`` is the last refusal.
    """
    deadline = time.monotonic() + timeout
    delay = min(_ATTEMPT_DELAY, timeout / len(targets))
    runners = _Runners(opened)
    waiting = list(targets)
    try:
        while waiting or (runners.running and time.monotonic() < deadline):
            if waiting:
                runners.start(waiting.pop(0))
            winner = runners.first(min(time.monotonic() + delay, deadline) if waiting else deadline)
            if winner is not None:
                return winner
        words = f"no answer within {max(timeout, 0.0):.2g} s"
        silent = [f"{target.words}: {words}" for _, target in runners.running.values()]
        raise OSError("; ".join(runners.lost + silent)) from runners.failure
    finally:
        for sock, _ in runners.running.values():
            sock.close()


class _Runners:
    """The sockets that are connecting, and the failures of the others."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._poll = select.poll()
        self.running: dict[int, tuple[socket.socket, Target]] = {}
        self.lost: list[str] = []
        self.failure: OSError | None = None

    def start(self, target: Target) -> None:
        try:
            sock = self._opened(target)
        except OSError as error:
            self._note(target, error)
            return
        try:
            sock.setblocking(False)
            sock.connect(target.address)
        except (BlockingIOError, InterruptedError):
            pass  # it is connecting
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            self._note(target, error)
            return
        self.running[sock.fileno()] = (sock, target)
        self._poll.register(sock, select.POLLOUT)

    def first(self, until: float) -> socket.socket | None:
        """Return the first socket to connect, or None as soon as one fails or the time is ``until``."""
        milliseconds = poll_milliseconds(until - time.monotonic())
        for descriptor, _ in self._poll.poll(milliseconds) if self.running else ():
            sock, target = self.running.pop(descriptor)
            self._poll.unregister(descriptor)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not code and _met_itself(sock):
                code = errno.ECONNREFUSED
            if not code:
                sock.setblocking(True)
                return sock
            sock.close()
            self._note(target, OSError(code, os.strerror(code)))
        return None

    def _note(self, target: Target, error: OSError) -> None:
        self.failure = error
        self.lost.append(f"{target.words}: {error.strerror or error}")


def _met_itself(sock: socket.socket) -> bool:
    """Whether the socket is connected to itself: TCP does that if a dial of a local port without a listener
    happens to pick that very port as its source."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # reset already; the first read will raise


# The transport

# TCP probes an idle connection after a minute and gives it up a minute later. That keeps NATs from forgetting
# the connection, and finds dead peers where heartbeats are switched off.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class SocketTransport:
    """TCP for ``host:port`` and ``[::1]:4150``, over IPv4 and IPv6; a Unix socket for ``unix:/path`` and
    ``/path``.

    ``local_address`` is the IP address that TCP connects from, with or without a port: ``10.0.0.7``,
    ``[fd00::7]:0``. ``interrupt`` ends dials, and with ``interrupt_streams`` connections too.
    """

    def __init__(self, local_address: str | None = None, *, interrupt_streams: bool = False) -> None:
        self.local_address = local_address
        self._local: Target | None = None
        if local_address is not None:
            self._local = next(iter(literal(*addresses.split_local(local_address))), None)
            if self._local is None:
                raise ConfigError(
                    f"local_address is {local_address!r}, must be an IP address such as 10.0.0.7"
                )
        self._resolver = Resolver()
        self._connecting: dict[socket.socket, bool] = {}  # a duplicate of each socket that is connecting
        self._streams: set[SocketStream] | None = set() if interrupt_streams else None
        self._interrupted = False

    def connect(self, address: str, *, timeout: float) -> Stream:
        handles: list[socket.socket] = []
        try:
            if addresses.is_unix(address):
                sock = _connected(addresses.unix_path(address), timeout)
            else:
                sock = self._dialed(*addresses.split(address), timeout, handles)
            stream = SocketStream(sock, address, self._streams)
            if self._interrupted:  # after listing the stream: ``interrupt`` sees it, or we see the flag
                stream.close()
                raise OSError(_INTERRUPTED)
        except (OSError, UnicodeError, ConfigError) as error:
            reason = str((error.strerror if isinstance(error, OSError) else None) or error)
            # A race names each address it tried; an address in digits would appear twice.
            reason = reason.removeprefix(f"{address}: ")
            raise DialFailed(f"cannot connect to {address}: {reason}") from error
        finally:
            for handle in handles:
                if self._connecting.pop(handle, False):
                    handle.close()
        return stream

    def interrupt(self) -> None:
        """End all dials that are under way, and refuse later ones. Does not wait."""
        self._interrupted = True
        self._resolver.interrupt()
        for handle in list(self._connecting):
            if self._connecting.pop(handle, False):
                with suppress(OSError):  # refused or connected meanwhile
                    handle.shutdown(socket.SHUT_RDWR)
                handle.close()
        for stream in list(self._streams or ()):
            stream.close()

    def abandon(self) -> None:
        """Drop the parent's sockets in a forked child. Later dials are not affected."""
        for handle in list(self._connecting):
            if self._connecting.pop(handle, False):
                handle.close()
        for stream in list(self._streams or ()):
            stream.abandon()

    def _dialed(self, host: str, port: int, timeout: float, handles: list[socket.socket]) -> socket.socket:
        deadline = time.monotonic() + timeout
        targets = self._resolver.resolve(host, port, timeout)
        if self._local is not None:
            targets = [target for target in targets if target.family == self._local.family]
            if not targets:
                raise OSError(f"it has no address of the kind of local_address {self.local_address}")
        return race(targets, lambda target: self._opened(target, handles), deadline - time.monotonic())

    def _opened(self, target: Target, handles: list[socket.socket]) -> socket.socket:
        sock = socket.socket(target.family, socket.SOCK_STREAM, target.protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock)
            if self._local is not None:
                self._bind(sock, self._local)
            handle = sock.dup()
            handles.append(handle)
            self._connecting[handle] = True
            if self._interrupted:  # only now: ``interrupt`` finds the handle, or we see the flag
                raise OSError(_INTERRUPTED)
        except BaseException:
            sock.close()
            raise
        return sock

    def _bind(self, sock: socket.socket, local: Target) -> None:
        if local.address[1]:
            # A given port may still be in TIME_WAIT from the connection before.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(local.address)
        except OSError as error:
            raise OSError(
                error.errno, f"local_address {self.local_address}: {error.strerror or error}"
            ) from error


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has each option
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _connected(path: str, timeout: float) -> socket.socket:
    """Connect to a Unix socket. A listener with a full backlog makes connect block; SO_SNDTIMEO bounds that.
    Polling is impossible: on a non-blocking socket connect fails at once."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(max(timeout, 1e-6)))
        sock.connect(path)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(None))
    except BlockingIOError as error:
        sock.close()
        raise TimeoutError(f"no answer within {timeout:.2g} s") from error
    except BaseException:
        sock.close()
        raise
    return sock


default_transport: Transport = SocketTransport()
