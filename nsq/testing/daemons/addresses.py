"""Addresses of daemons (``host:port``, or the path of a Unix socket), and connecting to them.

Imports nothing of the package.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

ANY_PORT = "127.0.0.1:0"
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class Addresses(NamedTuple):
    """The addresses on which one daemon listens; None for a port that it does not have."""

    tcp: str | None
    http: str | None
    https: str | None = None


class Ports:
    """The listen options of one daemon: those given by the caller, and the ports found for the others."""

    def __init__(self, names: Iterable[str], given: Mapping[str, object]) -> None:
        listen = {name: str(given.get(name, ANY_PORT)) for name in names}
        self._open = {name: address for name, address in listen.items() if address.endswith(":0")}
        self._fixed = {name: address for name, address in listen.items() if name not in self._open}
        self._found: dict[str, str] = {}

    @property
    def known(self) -> bool:
        """Whether ports have been found, and must be kept."""
        return bool(self._found)

    @property
    def options(self) -> dict[str, str]:
        """Every listen option; port 0 if none was found yet."""
        return {**self._open, **self._fixed, **self._found}

    def choose(self) -> None:
        """Pick free ports. Another program may take one before the daemon does: then choose again."""
        self._found = dict(zip(self._open, free_ports(self._open.values()), strict=True))

    def keep(self, bound: Addresses) -> None:
        """Keep the ports to which a daemon with port 0 was bound."""
        listening = {f"{kind}_address": address for kind, address in bound._asdict().items()}
        self._found = {name: address for name in self._open if (address := listening[name]) is not None}

    def forget(self) -> None:
        self._found = {}

    def all_fixed_ones_free(self) -> bool:
        return not any(is_taken(address) for address in self._fixed.values() if address)


def free_ports(templates: Iterable[str]) -> list[str]:
    """Return for each ``host:0`` a different port that was free a moment ago."""
    hosts = [split(address)[0] for address in templates]
    sockets = [socket.socket(_family(host)) for host in hosts]
    try:
        for listener, host in zip(sockets, hosts, strict=True):  # all bound at once, so ports differ
            listener.bind((host, 0))
        ports = [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
    shown = [f"[{host}]" if ":" in host else host for host in hosts]
    return [f"{host}:{port}" for host, port in zip(shown, ports, strict=True)]


def is_taken(address: str) -> bool:
    """Whether a daemon that binds ``address`` now would fail."""
    if is_path(address):
        return False  # a daemon replaces the socket file of a dead one
    host, port = split(address)
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is not taken
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def dial(address: str, timeout: float) -> socket.socket:
    """Connect to a daemon that listens on ``address``; a wildcard address is reached over loopback."""
    if is_path(address):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        return connection
    host, port = split(address)
    return socket.create_connection((_LOOPBACK.get(host, host), port), timeout=timeout)


def is_path(address: str) -> bool:
    return "/" in address


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
