"""NSQ's HTTP conventions without a network: requests, replies, errors, routes, JSON as Go writes it.

Imports no aiohttp, so that tests can call a daemon's handlers directly. ``httpd`` serves these routes.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, unquote_plus

from nsq.errors import NsqError

if TYPE_CHECKING:
    from nsq.daemons.serve.logins import Login

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


class HttpError(NsqError):
    """An error reply: the status and the CODE of ``{"message": "CODE"}``."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Reply:
    """A status, a body and its content type; None sends no Content-Type header.

    ``rest`` holds further pieces of a long body. Each is sent when the client has read most of the previous
    one, so that the whole body is never sent at once.
    """

    body: bytes = b""
    content_type: str | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    rest: tuple[bytes, ...] = ()

    @staticmethod
    def text(text: str, status: int = 200) -> Reply:
        return Reply(text.encode("utf-8", "replace"), TEXT, status)

    @staticmethod
    def json(value: object, status: int = 200) -> Reply:
        return Reply(go_json(value), JSON, status)

    @staticmethod
    def error(status: int, code: str, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
        return Reply(go_json({"message": code}), JSON, status, headers)


OK = Reply(b"OK", TEXT)
EMPTY = Reply()

# Characters that only Go's encoder escapes. They occur only inside JSON strings.
_GO_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_go_escape = functools.partial(re.compile("[<>&\u2028\u2029]").sub, lambda found: _GO_ESCAPES[found[0]])
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def go_json(value: object) -> bytes:
    """Encode compact JSON as Go's encoder does, with the keys in their given order."""
    return _go_escape(_encode(value)).encode("utf-8", "replace")


#: The most arguments of a query: reading many thousands would delay other clients.
_MAX_ARGUMENTS = 1000
_BAD_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")


def parse_query(query: str) -> dict[str, str]:
    """Return the first value of every argument; HttpError 400 where Go's parser gives an error."""
    args: dict[str, str] = {}
    if query.count("&") >= _MAX_ARGUMENTS:
        raise HttpError(400, "INVALID_REQUEST")
    for pair in query.split("&"):
        if not pair:
            continue
        if ";" in pair or _BAD_ESCAPE.search(pair):
            raise HttpError(400, "INVALID_REQUEST")
        key, _, value = pair.partition("=")
        args.setdefault(unquote_plus(key), unquote_plus(value))
    return args


NOTHING: Mapping[str, str] = MappingProxyType({})


class Request:
    """A request to a handler. ``target`` is path and query as sent, ``path`` is decoded, and ``params``
    are the :names of its route's path. ``login`` is that of the caller, in a daemon with --http-logins.

    This class holds its body and headers; the subclass in ``httpd`` reads them from its connection.
    """

    __slots__ = ("_args", "_body", "_headers", "login", "method", "params", "path", "query", "target")

    def __init__(
        self, method: str, target: str, *, body: bytes = b"", headers: Mapping[str, str] = NOTHING
    ) -> None:
        if not target.startswith("/"):
            # The absolute form that proxies send: http://host/path
            authority, slash, rest = target.partition("://")[2].partition("/")
            target = slash + rest if authority else target
        self.target = target
        path, _, self.query = target.partition("?")
        self.path = unquote(path) if "%" in path else path
        self.method = method
        self.params: Mapping[str, str] = NOTHING
        self.login: Login | None = None
        self._args: dict[str, str] | None = None
        self._body = body
        self._headers = headers

    @property
    def args(self) -> dict[str, str]:
        """The query's arguments; raises HttpError 400 INVALID_REQUEST when it cannot be parsed."""
        if self._args is None:
            self._args = parse_query(self.query)
        return self._args

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are case-insensitive if they came over a connection."""
        return self._headers

    @property
    def remote(self) -> str:
        """The peer as host:port; "@" when it has no such address (a Unix socket)."""
        return "@"

    async def read(self, limit: int, too_big: str) -> bytes:
        """Return the body, or raise HttpError 413 ``too_big`` once it is known to exceed ``limit`` bytes."""
        if len(self._body) > limit:
            raise HttpError(413, too_big)
        return self._body


Handler = Callable[[Request], Reply | Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """One line of a daemon's table. ``/config/:opt`` matches one segment and names it.

    ``plain`` routes send errors as text, without X-Nsq-Content-Type. ``logged`` routes log a line at INFO.
    """

    method: str
    path: str
    handler: Handler
    plain: bool = False
    logged: bool = True


class Router:
    """Finds the route of a request, or the reply to a request without a route."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._static: dict[str, dict[str, Route]] = {}
        self._patterns: dict[tuple[str, ...], dict[str, Route]] = {}
        for route in routes:
            if ":" in route.path:
                methods = self._patterns.setdefault(tuple(route.path.split("/")), {})
            else:
                methods = self._static.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"two routes for {route.method} {route.path}")
            methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route | None, Mapping[str, str]]:
        methods = self._static.get(path)
        if methods is not None and method in methods:
            return methods[method], NOTHING
        segments = path.split("/")
        for pattern, methods in self._patterns.items():
            if method in methods:
                params = _match(pattern, segments)
                if params is not None:
                    return methods[method], params
        return None, NOTHING

    def without(self, request: Request) -> Reply:
        """Reply to a request without a route: OPTIONS, a redirect, 405 or 404, in that order as in Go."""
        path = request.path
        allowed = self._allowed(path)
        if request.method == "OPTIONS" and allowed:
            return Reply(headers=(("Allow", allowed),))
        if path != "/" and request.method != "CONNECT":
            other = self._meant(request.method, path)
            if other is not None:
                return _moved(request, other)
        if allowed:
            refusal = go_json({"message": "METHOD_NOT_ALLOWED"})
            return Reply(refusal, JSON, 405, (("Allow", allowed),))
        return Reply.error(404, "NOT_FOUND")

    def _meant(self, method: str, path: str) -> str | None:
        """Return an existing path: one slash less or more, or without doubled slashes, dots and capitals."""
        clean = posixpath.normpath("/" + path.lstrip("/"))
        for other in (path[:-1] if path.endswith("/") else path + "/", clean):
            if self.find(method, other)[0] is not None:
                return other
        segments = clean.split("/")
        patterns = {tuple(known.split("/")): methods for known, methods in self._static.items()}
        for pattern, methods in (patterns | self._patterns).items():
            if method in methods and _match(pattern, [each.lower() for each in segments]) is not None:
                # What a :name stands for keeps its case: ORDERS is another topic than orders.
                both = zip(pattern, segments, strict=True)
                return "/".join(have if want.startswith(":") else want for want, have in both)
        return None

    def _allowed(self, path: str) -> str:
        found = set(self._static.get(path, ()))
        segments = path.split("/")
        for pattern, methods in self._patterns.items():
            if _match(pattern, segments) is not None:
                found.update(methods)
        return ", ".join(sorted(found | {"OPTIONS"})) if found else ""


def _match(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    params: dict[str, str] = {}
    for want, have in zip(pattern, segments, strict=True):
        if want.startswith(":"):
            if not have:
                return None
            params[want[1:]] = have
        elif want != have:
            return None
    return params


def _moved(request: Request, path: str) -> Reply:
    # Exactly one leading slash: "//host" would redirect the client to another server.
    where = "/" + quote(path.lstrip("/"))
    if request.query:
        where += "?" + quote(request.query, safe="!#$%&'()*+,/:;=?@[]~")
    return Reply(status=301 if request.method == "GET" else 308, headers=(("Location", where),))
