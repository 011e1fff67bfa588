"""Recognises requests that a browser sends for web pages of other sites.

Requests from another site are recognised by Sec-Fetch-Site and Origin. With DNS rebinding (a foreign host
name that points to this server's address) the browser takes the foreign page for ours, and only the host name
differs. So nsqadmin, and pages that show messages or a daemon's insides, are served only under names that a
stranger cannot own.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import replace

from nsq.daemons.serve.routes import Handler, HttpError, Reply, Request, Route

#: Top-level domains whose names cannot be registered in public DNS.
_PRIVATE = ("localhost", "local", "internal", "test", "home.arpa")


def refuse_other_sites(request: Request, allowed: Collection[str] = ()) -> None:
    """Raise HttpError if a browser sends this from a page of another site, unless its origin, or ``*``, is
    ``allowed``. Programs send neither header.
    """
    headers = request.headers
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is None and origin is None:
        return
    if site is not None:
        same = site in ("same-origin", "none")
    else:  # from a page without https
        # X-Forwarded-Host is the host of the browser's request to a proxy. No page can set it for another
        # site.
        ours = {headers.get("Host", ""), headers.get("X-Forwarded-Host", "")} - {""}
        same = origin_host(origin or "") in ours
    if not same and origin not in allowed and "*" not in allowed:
        raise HttpError(403, "CROSS_SITE_REQUEST")


def own_pages_only(routes: Iterable[Route], allowed: Collection[str] = ()) -> list[Route]:
    """Have these routes refuse requests that browsers send from pages of other sites."""
    return [replace(route, handler=_refusing(route.handler, allowed)) for route in routes]


def _refusing(handler: Handler, allowed: Collection[str]) -> Handler:
    def checked(request: Request) -> Reply | Awaitable[Reply]:
        refuse_other_sites(request, allowed)
        return handler(request)

    return checked


def unknown_name(request: Request, known: Collection[str]) -> str | None:
    """Return the name under which the browser or program reached this server, if a stranger can own it."""
    headers = request.headers
    origin = origin_host(headers.get("Origin", ""))
    # A page's script can set X-Forwarded-Host, but not Host.
    hosts = [origin] if origin else [headers.get("Host", ""), *headers.get("X-Forwarded-Host", "").split(",")]
    return next((name for name in map(_name_in, hosts) if name and not _is_ours(name, known)), None)


def own_names(*more: str) -> frozenset[str]:
    """Return this machine's host name and these names, as ``unknown_name`` takes them."""
    return frozenset(name.lower().rstrip(".") for name in (*more, socket.gethostname()))


def on_this_machine(remote: str) -> bool:
    if remote == "@":
        return True  # a Unix socket
    address = ipaddress.ip_address(remote.rpartition(":")[0].strip("[]"))
    mapped = getattr(address, "ipv4_mapped", None)  # a dual-stack socket shows IPv4 peers like this
    return (mapped or address).is_loopback


def origin_host(origin: str) -> str:
    """Return an origin's host and port, ``a.example:8080``; empty for the origin "null"."""
    return origin.partition("://")[2]


def _is_ours(name: str, known: Collection[str]) -> bool:
    name = name.lower().rstrip(".")
    private = "." not in name or name.endswith(tuple(f".{each}" for each in _PRIVATE))
    return name in known or private or _is_address(name)


def _name_in(host: str) -> str:
    """Return the host without its port."""
    host = host.strip()
    return host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
