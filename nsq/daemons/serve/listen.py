"""Parses addresses in Go's spelling and listens on them: TCP over IPv4 and IPv6, and Unix sockets.

Imports no other module of the daemons.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass

from nsq.errors import ConfigError, NsqError

BACKLOG = 1024

# An accepted connection takes two rounds of the loop to reach its protocol. If the server or the connections
# that the owner knows are closed before that, this one would stay open for good.
_ROUNDS = 3


class ListenError(NsqError):
    """Listening on an address failed; the message names the address and the reason."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port. An empty ``host`` means every interface; ``port`` 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return self.path


Address = TcpAddress | UnixAddress


def parse_address(text: str, default_port: int | None = None) -> Address:
    """Parse ``":4150"``, ``"host:4150"``, ``"[::]:4150"`` or a Unix socket's path (anything with a slash)."""
    if "/" in text:
        return UnixAddress(text)
    host, port = _split(text)
    if port is None:
        if default_port is None:
            raise ConfigError(f"address {text!r} has no port; write host:port or the path of a Unix socket")
        return TcpAddress(host, default_port)
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"address {text!r} has the port {port!r}, which is not a number from 0 to 65535")
    return TcpAddress(host, int(port))


def address_of(flag: str, text: str) -> Address:
    """Parse a flag's address; ConfigError names the flag."""
    try:
        return parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None


def peer_address_of(flag: str, text: str) -> Address:
    """Parse the address of another daemon, which needs a host."""
    address = address_of(flag, text)
    if isinstance(address, TcpAddress) and not address.host:
        raise ConfigError(f"{flag} {text!r} is neither <addr>:<port> nor the path of a Unix socket")
    return address


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"address {text!r} has an unfinished [IPv6] host")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        raise ConfigError(
            f"address {text!r} has several colons; an IPv6 host is written in brackets: [host]:port"
        )
    host, colon, port = text.partition(":")
    return host, port if colon else None


class Listener:
    """One bound socket with a server on it. Closing stops accepting; the owner closes the connections."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], sock: socket.socket) -> None:
        self._factory = factory
        self._sock = sock
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        name = sock.getsockname()
        self.address: Address
        if sock.family == socket.AF_UNIX:
            self._inode = os.stat(name).st_ino
            self.address = UnixAddress(name)
        else:
            self.address = TcpAddress(name[0], name[1])

    async def serve(self, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections with this certificate from now on; open connections keep theirs."""
        if self._server is not None and isinstance(self.address, UnixAddress):
            # Python 3.13 removes the socket's file when its first server closes.
            raise ListenError(f"{self.address}: a new certificate for a Unix socket needs a restart")
        loop = asyncio.get_running_loop()
        create = loop.create_server if isinstance(self.address, TcpAddress) else loop.create_unix_server
        timeout = None if tls is None else 10.0
        # A server closes its socket when it ends, so the next one gets a duplicate.
        sock = self._sock if self._server is None else self._sock.dup()
        try:
            server = await create(
                self._factory, sock=sock, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=timeout
            )
        except BaseException:
            sock.close()
            raise
        former, self._server, self._sock = self._server, server, sock
        if former is not None:
            former.close()

    async def close(self) -> None:
        """Stop accepting. When this returns, every accepted connection has reached its protocol."""
        loop = asyncio.get_running_loop()
        if self._server is not None:
            for sock in self._server.sockets:
                loop.remove_reader(sock.fileno())
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            self._server.close()
        inode, self._inode = self._inode, None
        if inode is not None and isinstance(self.address, UnixAddress):
            _unlink(self.address.path, inode)


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], address: Address, *, tls: ssl.SSLContext | None = None
) -> Listener:
    """Bind and serve; the Listener has the actual address. Raises ListenError with the reason."""
    try:
        listener = Listener(factory, await _bound(address))
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot listen on {address}: {_reason(error)}") from error
    try:
        await listener.serve(tls)
    except OSError as error:
        await listener.close()
        raise ListenError(f"cannot listen on {address}: {_reason(error)}") from error
    return listener


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    return str(error)


async def _bound(address: Address) -> socket.socket:
    if isinstance(address, UnixAddress):
        return _bound_unix(address.path)
    if not address.host:
        return _bound_everywhere(address.port)
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        # A host name. Tried last, because its lookup may be slow and starts a thread.
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # Like Go: one socket, and IPv4 if a name has both.
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    family, _, _, _, where = found[0]
    return _bound_tcp(family, where, dual=where[0] == "::")


def _bound_everywhere(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6: two sockets on port 0 would get two different ports."""
    if socket.has_dualstack_ipv6():
        try:
            return _bound_tcp(socket.AF_INET6, ("::", port), dual=True)
        except OSError as error:
            # IPv6 may be compiled into the kernel and switched off.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return _bound_tcp(socket.AF_INET, ("0.0.0.0", port), dual=False)


def _bound_tcp(family: int, where: object, *, dual: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        sock.bind(where)  # type: ignore[arg-type]
    except BaseException:
        sock.close()
        raise
    return sock


def _bound_unix(path: str) -> socket.socket:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket file only if no daemon listens on it; asyncio would remove it in any case."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            pass


def _unlink(path: str, inode: int) -> None:
    try:
        if os.stat(path).st_ino == inode:
            os.unlink(path)
    except OSError:
        # The file or its directory is already gone.
        pass
