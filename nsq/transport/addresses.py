"""Addresses as text: ``host:port``, ``[::1]:4150``, ``unix:/path`` and ``/path``.

Pure; looks no names up, and must not import socket.
"""

from __future__ import annotations

from collections.abc import Iterable

from nsq.errors import ConfigError

Addresses = str | Iterable[str]

_UNIX = "unix:"


def checked(name: str, given: Addresses) -> tuple[str, ...]:
    """Check the user's argument ``name``, one address or several: each must be text, of any form."""
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, Iterable):
        raise ConfigError(f"{name} is {given!r}, must be an address, or several of them")
    found = tuple(several)
    for address in found:
        if not isinstance(address, str) or not address:
            raise ConfigError(f"{name} has {address!r}, must be an address as text, such as 127.0.0.1:4150")
    return tuple(dict.fromkeys(found))


def checked_nsqds(given: Addresses) -> tuple[str, ...]:
    """Check addresses of nsqds: each must be ``host:port`` or a Unix socket."""
    found = checked("nsqd", given)
    for address in found:
        if is_unix(address):
            unix_path(address)
        else:
            split(address)
    return found


def is_unix(address: str) -> bool:
    return address.startswith((_UNIX, "/"))


def unix_path(address: str) -> str:
    """Return the path of ``unix:/run/nsqd.sock`` or ``/run/nsqd.sock``; ConfigError if there is none."""
    path = address.removeprefix(_UNIX)
    if not path or "\0" in path:
        raise ConfigError(f"address {address!r} names no Unix socket; write unix:/path/to/socket")
    return path


def split(address: str) -> tuple[str, int]:
    """Split ``host:port``, and take brackets off an IPv6 address; ConfigError for any other text."""
    if "://" in address:
        raise ConfigError(f"address {address!r} is a URL; nsqd's TCP address is host:port, without a scheme")
    if "," in address:
        several = [each.strip() for each in address.split(",")]
        raise ConfigError(f"address {address!r} is several in one text; give a list of them: {several}")
    host, _, port = address.rpartition(":")
    if not host or any(character.isspace() or character == "\0" for character in address):
        raise ConfigError(f"address {address!r} is not host:port, such as 127.0.0.1:4150")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise ConfigError(f"address {address!r} has brackets, but no IPv6 address in them")
    elif ":" in host or "[" in host or "]" in host:
        raise ConfigError(f"address {address!r} is ambiguous; write an IPv6 address in brackets: [::1]:4150")
    number = _port(port)
    if not number:
        raise ConfigError(f"address {address!r} has port {port!r}, must be a number from 1 to 65535")
    return host, number


def split_local(address: str) -> tuple[str, int]:
    """Split an address to connect from into host and port; no port, or port 0, means any port."""
    text = address
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        valid = not port or port.startswith(":")
        port = port.removeprefix(":")
    else:
        host, colon, port = text.partition(":") if text.count(":") == 1 else (text, "", "")
        valid = bool(port) or not colon
    number = _port(port or "0")
    if not valid or not host or number is None:
        raise ConfigError(
            f"local_address is {address!r}, must be an IP address such as 10.0.0.7 or [fd00::7]:0"
        )
    return host, number


def join(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address; the inverse of ``split``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port(text: str) -> int | None:
    """Parse a port, or return None. int() alone would take signs, spaces and digits of any script."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else -1
    return number if 0 <= number <= 65535 else None
