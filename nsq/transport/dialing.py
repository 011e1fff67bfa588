"""From an address to a connected stream: resolve a name, race its addresses, and end all that at a word.

    host:port   resolver.resolve -> race -> SocketStream
    unix:/path  one connect -> SocketStream

**Names.** The C library's lookup can take half a minute and cannot be interrupted, so it runs in a thread of
its own. A caller whose time is up leaves it there; another caller that asks for the same name waits for the
same thread, so there is never more than one for a name. Addresses in digits need no lookup and no thread.

**The race.** The next address is tried as soon as one fails or has been silent for a moment, and the earlier
ones stay in: a black hole in front (IPv6 that leads nowhere, usually) costs that moment and not all the time.

**Interrupting.** A close must not wait for a black hole. This takes no lock, as a child forked in the
middle of a dial dials on. What is dropped by one thread and shut down by another is a duplicate, and only who
has popped it may touch it: no descriptor is shut down that by then is somebody else's.

Every OSError of a dial becomes DialFailed here; those of a connection are SocketStream's.
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
    """One socket address a name stands for."""

    family: int
    protocol: int
    address: tuple[Any, ...]

    @property
    def words(self) -> str:
        return addresses.join(str(self.address[0]), int(self.address[1]))


Lookup = Callable[[str, int], list[Target]]

_INTERRUPTED = "interrupted, as this client is closed"


def look_up(host: str, port: int, flags: int = 0) -> list[Target]:
    """Blocks as long as the C library likes; OSError or UnicodeError when the name is none."""
    found = socket.getaddrinfo(codecless(host), port, type=socket.SOCK_STREAM, flags=flags)
    targets = (Target(family, protocol, address) for family, _, protocol, _, address in found)
    return list(dict.fromkeys(targets))


def literal(host: str, port: int) -> list[Target]:
    """The one target of an address in digits, none for a name; never asks anybody."""
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
        # By name, port and process: the thread of a lookup that was under way at a fork is not in the child.
        self._under_way: dict[tuple[str, int, int], _Asked] = {}

    def resolve(self, host: str, port: int, timeout: float) -> list[Target]:
        """At least one target; OSError (TimeoutError, too) or UnicodeError otherwise."""
        targets = literal(host, port)
        if targets:
            return targets
        key = (host, port, os.getpid())
        fresh = _Asked()
        # Atomic, and no lock that a fork could leave held.
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
        """End every wait, and refuse those to come. The threads end when the C library lets them."""
        self._interrupted = True
        for asked in list(self._under_way.values()):
            asked.failure = OSError(_INTERRUPTED)
            asked.done.set()

    def _start(self, key: tuple[str, int, int], asked: _Asked) -> None:
        # A daemon thread, the only one there is: it can neither be told to stop nor be waited for, and must
        # not keep a program from ending.
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
            # Forgotten first: who comes after this asks anew, and who came before has the object.
            self._under_way.pop(key, None)
            asked.done.set()


# The race

MOMENT = 0.25
Opened = Callable[[Target], socket.socket]
"""Makes a socket for a target, with its options set and bound if it should be; it is not connected yet."""


def race(targets: Sequence[Target], opened: Opened, timeout: float) -> socket.socket:
    """The connected, blocking socket of the winner. OSError when there is none in time: its text says why for
    each address, ``__cause__`` is the last refusal.
    """
    deadline = time.monotonic() + timeout
    moment = min(MOMENT, timeout / len(targets))
    runners = _Runners(opened)
    waiting = list(targets)
    try:
        while waiting or (runners.running and time.monotonic() < deadline):
            if waiting:
                runners.start(waiting.pop(0))
            winner = runners.first(min(time.monotonic() + moment, deadline) if waiting else deadline)
            if winner is not None:
                return winner
        words = f"no answer within {max(timeout, 0.0):.2g} s"
        silent = [f"{target.words}: {words}" for _, target in runners.running.values()]
        raise OSError("; ".join(runners.lost + silent)) from runners.failure
    finally:
        for sock, _ in runners.running.values():
            sock.close()


class _Runners:
    """The sockets that are connecting, and what became of the others."""

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
        """The first to connect; None as soon as one has failed, or nothing has happened until then."""
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
    """Dialing a port of our own machine that has no listener can pick that very port as the source: TCP
    then connects the socket to itself."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # reset already; the first read says so


# The transport

# A connection on which nothing moves is asked for a sign of life after a minute and given up a minute
# later. It keeps NATs from forgetting it, and finds dead peers where heartbeats are switched off.
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
            if self._interrupted:  # behind its entry in the set: ``interrupt`` sees it there, or we see this
                stream.close()
                raise OSError(_INTERRUPTED)
        except (OSError, UnicodeError, ConfigError) as error:
            reason = str((error.strerror if isinstance(error, OSError) else None) or error)
            # A race names each address it tried; for one in digits that is the address we begin with anyway.
            reason = reason.removeprefix(f"{address}: ")
            raise DialFailed(f"cannot connect to {address}: {reason}") from error
        finally:
            for handle in handles:
                if self._connecting.pop(handle, False):
                    handle.close()
        return stream

    def interrupt(self) -> None:
        """End all dials that are under way, and refuse those to come. Does not wait."""
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
        """Let go of what is the parent's in a forked child. Dials to come are not affected."""
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
            if self._interrupted:  # only now: ``interrupt`` either finds the handle or is seen here
                raise OSError(_INTERRUPTED)
        except BaseException:
            sock.close()
            raise
        return sock

    def _bind(self, sock: socket.socket, local: Target) -> None:
        if local.address[1]:
            # A port that is asked for may still be cooling down from the connection before.
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
        option = getattr(socket, name, None)  # systems differ in what they have
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _connected(path: str, timeout: float) -> socket.socket:
    """A listener whose backlog is full makes connect wait, which SO_SNDTIMEO bounds. There is nothing to poll
    for: on a socket that does not block, connect fails at once."""
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
