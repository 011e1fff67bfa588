"""Common code of both HTTP APIs' clients: ``Api``, which blocks; ``Call``, a request and the parser of its
answer; and functions that read answers: errors, JSON, and the types that an answer must have.
"""

from __future__ import annotations

import dataclasses
import json
import ssl
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, NotRequired, Required, TypeVar
from urllib.parse import quote, urlencode

from nsq.errors import ApiError, ApiRefused
from nsq.http.message import HttpReply, HttpRequest, Url, fields_of, parse_url
from nsq.http.secret import HttpSecret, verifies
from nsq.http.sending import DEFAULT_TIMEOUT, send
from nsq.transport.base import Transport

T = TypeVar("T")

#: nsqd and nsqlookupd before 1.0 put their answers into an envelope unless a request has this header.
ACCEPT = {"Accept": "application/vnd.nsq; version=1.0"}

_MAX_REASON = 200


@dataclass(frozen=True)
class Call(Generic[T]):
    request: HttpRequest
    parse: Callable[[HttpReply], T]

    def answer(self, reply: HttpReply) -> T:
        """Parse the reply. Raises ApiRefused for an error status, ApiError for an unreadable reply."""
        url = self.request.url
        try:
            if not 200 <= reply.status < 300:
                raise _refusal(reply)
            return self.parse(reply)
        except ApiRefused as error:
            hint = _other_daemon(url) if error.code == "NOT_FOUND" else ""
            if error.status == 401:
                hint = _about_the_secret(self.request)
            raise ApiRefused(f"{url} answered {error}{hint}", error.status, error.code) from None
        except ApiError as error:
            raise ApiError(f"{url} sent a reply that this request cannot have: {error}") from None


#: Paths that only one of the daemons has.
_OF_NSQLOOKUPD = ("/lookup", "/nodes", "/topics", "/channels")
_OF_NSQD = ("/stats", "/pub", "/mpub")


def _other_daemon(url: Url) -> str:
    """A hint if an nsqd was asked as an nsqlookupd, or the reverse; else empty."""
    path = "/" + url.target.partition("?")[0].rpartition("/")[2]
    if path in _OF_NSQLOOKUPD:
        return f" (only an nsqlookupd has {path}: its HTTP port is usually 4161)"
    if path in _OF_NSQD:
        return f" (only an nsqd has {path}: its HTTP port is usually 4151)"
    return ""


def _about_the_secret(request: HttpRequest) -> str:
    """What to do about an answer that asks for a login."""
    if request.secret is None:
        return " (it wants a login: give the http_secret, or --http-secret-file or $NSQ_HTTP_SECRET)"
    if request.secret.may_go_to(request.url):
        return " (it does not know this http_secret)"
    return (
        " (it was not sent the http_secret, as an nsqlookupd told its address: use https with an authority "
        "of your own, or --http-secret-to=any)"
    )


class Api:
    """An HTTP client of one daemon. A subclass has a method for each endpoint."""

    _default_port = 80
    _upgrade = False  # whether to repeat a request with TLS if the daemon insists on it

    def __init__(
        self,
        address: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
        secret: str | HttpSecret = "",
        told: bool = False,
    ) -> None:
        """``secret`` is that of a login (``--http-logins``). ``told`` says that the address comes from an
        nsqlookupd: then ``HttpSecret`` decides whether the secret may go there.
        """
        self._url = dataclasses.replace(parse_url(address, self._default_port), told=told)
        self._base = self._url  # the parent of all paths
        self._timeout = timeout
        self._tls = tls
        self._transport = transport
        self._headers = ACCEPT
        if isinstance(secret, str):
            self._secret = HttpSecret(secret, own_authorities=verifies(tls)) if secret else None
        else:
            self._secret = secret

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._url)!r})"

    def _ask(self, method: str, url: Url, parse: Callable[[HttpReply], T], body: bytes = b"") -> T:
        call = Call(HttpRequest(url, method, self._headers, body, self._secret), parse)
        reply = send(
            call.request,
            timeout=self._timeout,
            tls=self._tls,
            transport=self._transport,
            upgrade=self._upgrade,
        )
        return call.answer(reply)

    def _get(self, path: str, args: Mapping[str, str], parse: Callable[[HttpReply], T]) -> T:
        return self._ask("GET", endpoint(self._base, path, args), parse)

    def _post(
        self,
        path: str,
        args: Mapping[str, str],
        parse: Callable[[HttpReply], None] = lambda _: None,
        body: bytes = b"",
    ) -> None:
        return self._ask("POST", endpoint(self._base, path, args), parse, body)


def endpoint(base: Url, path: str, args: Mapping[str, str]) -> Url:
    """Return the URL of ``path`` below the base, or of the base if empty; keeps the base's query."""
    prefix, _, query = base.target.partition("?")
    # str.__str__: urlencode would send "Topic.ORDERS" for a member of ``class Topic(str, Enum)``.
    # quote, not quote_plus: nsqd reads "+" as a space, but a proxy in between may not.
    texts = {name: str.__str__(value) for name, value in args.items()}
    added = urlencode(texts, quote_via=quote, safe="", errors="surrogateescape")
    joined = "&".join(filter(None, [query, added]))
    target = (prefix.rstrip("/") + path if path else prefix) + (f"?{joined}" if joined else "")
    return dataclasses.replace(base, target=target)


# Reading answers


def ok(reply: HttpReply) -> None:
    if reply.body.strip() != b"OK":
        raise ApiError(f"{_excerpt(reply)} instead of OK")


def json_value(reply: HttpReply) -> Any:
    """Parse the JSON of the body, and unpack the envelope of old versions."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        raise ApiError(f"{_excerpt(reply)} is not JSON") from None
    if isinstance(value, dict) and "status_code" in value and "data" in value:
        if value["status_code"] != 200:
            status = _of_type(value["status_code"], int, "status_code")
            raise _refusal(dataclasses.replace(reply, status=status))
        return value["data"]
    return value


def _refusal(reply: HttpReply) -> ApiRefused:
    if 300 <= reply.status < 400:
        return ApiRefused(f"{reply.status}: a redirect, which is not followed", reply.status, "")
    # A code such as TOPIC_NOT_FOUND. A body without one does not come from nsqd or nsqlookupd.
    fields = fields_of(reply.body)
    code = fields.get("message", fields.get("status_txt"))
    code = code[:_MAX_REASON] if isinstance(code, str) else ""
    return ApiRefused(f"{reply.status} {code or _excerpt(reply)}", reply.status, code)


def _excerpt(reply: HttpReply) -> str:
    """Return the beginning of a body, for a message. Omits error pages, which repeat the query's secrets."""
    kind = reply.headers.get("content-type", "").partition(";")[0] or "text/plain"
    if not reply.body.strip():
        return "an empty body"
    if kind not in ("text/plain", "application/json"):
        return f"a body of type {kind[:_MAX_REASON]}"
    text = reply.body[: _MAX_REASON + 1].decode("utf-8", "replace").strip()
    return repr(text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…")


# The shape of answers


class Misshapen(ApiError):
    """An answer that lacks a required part, or has one of another type; names the place."""


def read(reply: HttpReply, shape: type[T]) -> T:
    """Parse the JSON of the body, which must have this shape."""
    value: T = conform(json_value(reply), shape)
    return value


def read_key(reply: HttpReply, key: str, shape: type[T]) -> T:
    """Return the value of one key of the JSON object, which must have this shape."""
    entries: dict[str, Any] = read(reply, dict[str, Any])
    if key not in entries:
        raise Misshapen(f"{key} is missing")
    value: T = conform(entries[key], shape, key)
    return value


def conform(value: Any, shape: Any, where: str = "") -> Any:
    """Return ``value`` if it has this shape: a TypedDict, a dataclass (which is made from it), ``list[…]``,
    ``tuple[…, ...]``, ``dict[str, …]``, a plain type, or such a type ``| None``. Otherwise raise Misshapen,
    which names the first place that differs.

    A null list counts as empty, as Go writes it. Undeclared keys come from newer versions: a TypedDict keeps
    them, a dataclass drops them.
    """
    origin = typing.get_origin(shape)
    if origin is types.UnionType:
        inner = next(each for each in typing.get_args(shape) if each is not type(None))
        return None if value is None else conform(value, inner, where)
    if origin in (list, tuple):
        items = _of_type([] if value is None else value, list, where)
        inner = typing.get_args(shape)[0]
        return origin(conform(item, inner, f"{where}[{number}]") for number, item in enumerate(items))
    if origin is dict:
        inner = typing.get_args(shape)[1]
        entries = _of_type(value, dict, where)
        return {key: conform(item, inner, _below(where, key)) for key, item in entries.items()}
    if dataclasses.is_dataclass(shape) or typing.is_typeddict(shape):
        return _conform_keys(_of_type(value, dict, where), shape, where)
    return value if shape is Any else _of_type(value, shape, where)


def _conform_keys(value: dict[str, Any], shape: Any, where: str) -> Any:
    declared, required = _keys(shape)
    for key in required:
        if key not in value:
            raise Misshapen(f"{_below(where, key)} is missing")
    known = {
        key: conform(item, declared[key], _below(where, key))
        for key, item in value.items()
        if key in declared
    }
    return {**value, **known} if typing.is_typeddict(shape) else shape(**known)


@cache
def _keys(shape: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the keys with their types, and the required keys."""
    if dataclasses.is_dataclass(shape):
        required = [each.name for each in dataclasses.fields(shape) if each.default is dataclasses.MISSING]
    else:
        # Not __required_keys__: it ignores annotations that are text, as they are in these modules.
        hints = typing.get_type_hints(shape, include_extras=True)
        silent = Required if shape.__total__ else NotRequired
        required = [key for key, hint in hints.items() if (typing.get_origin(hint) or silent) is Required]
    return typing.get_type_hints(shape), sorted(required)


def _of_type(value: Any, wanted: type, where: str) -> Any:
    # isinstance would take a bool for an int. A float may be written as an int in JSON.
    fits = type(value) in (int, float) if wanted is float else type(value) is wanted
    if not fits:
        name = "null" if value is None else type(value).__name__
        raise Misshapen(f"{where or 'the answer'} is {name}, not {wanted.__name__}")
    return value


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
