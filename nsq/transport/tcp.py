"""Transports over sockets: TCP, Unix, and the default that goes by the address.

Every OSError of a dial becomes DialFailed here; those of a connection are SocketStream's.
"""

from __future__ import annotations

import socket
import time

from nsq.config import Config
from nsq.errors import ConfigError, DialFailed

from . import addresses
from .base import Stream, Transport
from .interrupting import Interrupter, Watch
from .racing import race
from .resolving import Resolver, Target, literal
from .sockets import SocketStream, timeval

# A connection on which nothing moves is asked for a sign of life after a minute and given up a minute
# later. It keeps NATs from forgetting it, and finds dead peers where heartbeats are switched off.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class TcpTransport:
    """``host:port`` or ``[::1]:4150``, over IPv4 and IPv6.

    ``local_address`` is the IP address to connect from, with or without a port: ``10.0.0.7``,
    ``[fd00::7]:0``.
    """

    def __init__(self, local_address: str | None = None) -> None:
        self.local_address = local_address
        self._local = None if local_address is None else _local_target(local_address)
        self._resolver = Resolver()
        self._interrupter = Interrupter()

    def connect(self, address: str, *, timeout: float) -> Stream:
        deadline = time.monotonic() + timeout
        try:
            host, port = addresses.split(address)
            targets = self._reachable(self._resolver.resolve(host, port, timeout))
            with self._interrupter.watching() as watch:
                sock = race(targets, lambda to: self._opened(to, watch), deadline - time.monotonic())
        except (OSError, UnicodeError, ConfigError) as error:
            raise _dial_failed(address, error) from error
        return SocketStream(sock, address)

    def interrupt(self) -> None:
        """End all dials that are under way, and refuse those to come. Connections stay."""
        self._interrupter.interrupt()
        self._resolver.interrupt()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's dials. Those to come are not affected."""
        self._interrupter.abandon()

    def _reachable(self, targets: list[Target]) -> list[Target]:
        if self._local is None:
            return targets
        reachable = [target for target in targets if target.family == self._local.family]
        if not reachable:
            raise OSError(f"it has no address of the kind of local_address {self.local_address}")
        return reachable

    def _opened(self, target: Target, watch: Watch) -> socket.socket:
        sock = socket.socket(target.family, socket.SOCK_STREAM, target.protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock)
            if self._local is not None:
                self._bind(sock, self._local)
            watch(sock)
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


def _local_target(local_address: str) -> Target:
    targets = literal(*addresses.split_local(local_address))
    if not targets:
        raise ConfigError(f"local_address is {local_address!r}, must be an IP address such as 10.0.0.7")
    return targets[0]


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)  # systems differ in what they have
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class UnixTransport:
    """``unix:/path/to/socket``, or the path alone."""

    def connect(self, address: str, *, timeout: float) -> Stream:
        try:
            return SocketStream(_connected(addresses.unix_path(address), timeout), address)
        except BlockingIOError as error:
            raise DialFailed(f"cannot connect to {address}: no answer within {timeout:.2g} s") from error
        except (OSError, UnicodeError, ConfigError) as error:
            raise _dial_failed(address, error) from error


def _connected(path: str, timeout: float) -> socket.socket:
    """A listener whose backlog is full makes connect wait, which SO_SNDTIMEO bounds. There is nothing to poll
    for: on a socket that does not block, connect fails at once."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(max(timeout, 1e-6)))
        sock.connect(path)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(None))
    except BaseException:
        sock.close()
        raise
    return sock


def _dial_failed(address: str, error: OSError | UnicodeError | ConfigError) -> DialFailed:
    reason = str((error.strerror if isinstance(error, OSError) else None) or error)
    # A race names each address it tried; for one in digits that is the address we begin with anyway.
    return DialFailed(f"cannot connect to {address}: {reason.removeprefix(address + ': ')}")


class AddressTransport:
    """Unix for ``unix:/path`` and ``/path``, TCP for all else; either can be replaced."""

    def __init__(self, tcp: Transport | None = None, unix: Transport | None = None) -> None:
        self._tcp = tcp or TcpTransport()
        self._unix = unix or UnixTransport()

    def connect(self, address: str, *, timeout: float) -> Stream:
        transport = self._unix if addresses.is_unix(address) else self._tcp
        return transport.connect(address, timeout=timeout)


default_transport: Transport = AddressTransport()


class OwnTransport(AddressTransport):
    """Of one client, which can end its dials when it closes."""

    def __init__(self, local_address: str | None) -> None:
        tcp = TcpTransport(local_address=local_address)
        super().__init__(tcp)
        self.interrupt = tcp.interrupt
        self.abandon = tcp.abandon


def transport_of(config: Config) -> OwnTransport:
    """The one that a client's options ask for, made anew at each call."""
    return OwnTransport(config.local_address)
