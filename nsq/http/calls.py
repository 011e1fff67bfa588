"""A Call: one request to an HTTP API together with how to read its answer.

Any sender can carry one out: ``call.answer(send(call.request, timeout=5.0))`` blocks, ``call.answer(await
send(call.request, …))`` does not. Pure; imports errors and its neighbours.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from nsq.errors import ApiError, ApiRefused
from nsq.http.message import HttpReply, HttpRequest, Url

T = TypeVar("T")

#: nsqd and nsqlookupd from before 1.0 put their answers into an envelope unless asked not to.
ACCEPT = {"Accept": "application/vnd.nsq; version=1.0"}

_MAX_REASON = 200


@dataclass(frozen=True)
class Call(Generic[T]):
    request: HttpRequest
    parse: Callable[[HttpReply], T]

    def answer(self, reply: HttpReply) -> T:
        """What the reply says; ApiRefused for an error status, ApiError for what cannot be read."""
        url = self.request.url
        try:
            if not 200 <= reply.status < 300:
                raise _refusal(reply)
            return self.parse(reply)
        except ApiRefused as error:
            raise ApiRefused(f"{url} answered {error}", error.status, error.code) from None
        except ApiError as error:
            raise ApiError(f"{url} answered with what is none of its answers: {error}") from None


def get(base: Url, path: str, args: Mapping[str, str], parse: Callable[[HttpReply], T]) -> Call[T]:
    return Call(HttpRequest(endpoint(base, path, args), "GET", ACCEPT), parse)


def post(
    base: Url, path: str, args: Mapping[str, str], parse: Callable[[HttpReply], T], body: bytes = b""
) -> Call[T]:
    return Call(HttpRequest(endpoint(base, path, args), "POST", ACCEPT, body), parse)


def authorized(call: Call[T], secret: str, when: str = "https") -> Call[T]:
    """The call with the secret in its header: over https only, ``"always"``, or ``"never"``."""
    request = call.request
    if not secret or when == "never" or (when == "https" and request.url.scheme != "https"):
        return call
    headers = {**request.headers, "Authorization": f"Bearer {secret}"}
    return dataclasses.replace(call, request=dataclasses.replace(request, headers=headers))


def endpoint(base: Url, path: str, args: Mapping[str, str]) -> Url:
    """``path`` below the base address, whose query is kept; the base itself without one."""
    prefix, _, query = base.target.partition("?")
    # quote_via: nsqd reads "+" as a space, but proxies on the way need not.
    added = urlencode(args, quote_via=quote, safe="", errors="surrogateescape")
    joined = "&".join(filter(None, [query, added]))
    target = (prefix.rstrip("/") + path if path else prefix) + (f"?{joined}" if joined else "")
    return dataclasses.replace(base, target=target)


# Reading answers


def nothing(reply: HttpReply) -> None:
    """The status says it all."""


def ok(reply: HttpReply) -> None:
    if reply.body.strip() != b"OK":
        raise ApiError(f"{_excerpt(reply)} instead of OK")


def json_value(reply: HttpReply) -> Any:
    """The JSON of the body, out of the envelope of old versions."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        raise ApiError(f"{_excerpt(reply)} is not JSON") from None
    if isinstance(value, dict) and "status_code" in value and "data" in value:
        if value["status_code"] != 200:
            raise _refusal(dataclasses.replace(reply, status=_status_in(value)))
        return value["data"]
    return value


def _status_in(envelope: Mapping[str, Any]) -> int:
    status = envelope["status_code"]
    if type(status) is not int:
        raise ApiError("its status_code is no number")
    return status


def tls_port(reply: HttpReply) -> int | None:
    """The port at which an nsqd that refuses plain HTTP takes the same request with TLS."""
    if reply.status != 403:
        return None
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("message") != "TLS_REQUIRED":
        return None
    port = value.get("https_port")
    return port if type(port) is int and 0 < port < 65536 else None


def _refusal(reply: HttpReply) -> ApiRefused:
    if 300 <= reply.status < 400:
        return ApiRefused(f"{reply.status}: a redirect, which is not followed", reply.status, "")
    code = _code(reply.body)
    return ApiRefused(f"{reply.status} {code or _excerpt(reply)}", reply.status, code)


def _code(body: bytes) -> str:
    """Such as TOPIC_NOT_FOUND; empty when the body is no error of nsqd's or nsqlookupd's."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict):
        return ""
    code = value.get("message", value.get("status_txt"))
    return code[:_MAX_REASON] if isinstance(code, str) else ""


def _excerpt(reply: HttpReply) -> str:
    """The beginning of a body, for a message. Not of error pages: they repeat the query, and its secrets."""
    kind = reply.headers.get("content-type", "").partition(";")[0] or "text/plain"
    if not reply.body.strip():
        return "an empty body"
    if kind not in ("text/plain", "application/json"):
        return f"a body of type {kind[:_MAX_REASON]}"
    text = reply.body[: _MAX_REASON + 1].decode("utf-8", "replace").strip()
    return repr(text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…")


# Their shape


class Misshapen(ApiError):
    """An answer without something it must have, or with something else in its place; says where."""


def conform(value: Any, shape: Any, where: str = "") -> Any:
    """``value`` if it has this shape: a TypedDict, ``list[…]``, ``dict[str, …]``, a plain type, or such a
    type ``| None``. Otherwise Misshapen names the first place that differs.

    A list that is null is an empty one, as Go writes those. Keys nobody declared stay: they are a newer
    version's.
    """
    origin = typing.get_origin(shape)
    if origin is types.UnionType:
        inner = next(each for each in typing.get_args(shape) if each is not type(None))
        return None if value is None else conform(value, inner, where)
    if origin is list:
        items = _of_type([] if value is None else value, list, where)
        (inner,) = typing.get_args(shape)
        return [conform(item, inner, f"{where}[{number}]") for number, item in enumerate(items)]
    if origin is dict:
        inner = typing.get_args(shape)[1]
        entries = _of_type(value, dict, where)
        return {key: conform(item, inner, _below(where, key)) for key, item in entries.items()}
    if typing.is_typeddict(shape):
        return _conform_keys(_of_type(value, dict, where), shape, where)
    return value if shape is Any else _of_type(value, shape, where)


def _conform_keys(value: dict[str, Any], shape: Any, where: str) -> dict[str, Any]:
    declared, required = _keys(shape)
    for key in required:
        if key not in value:
            raise Misshapen(f"{_below(where, key)} is missing")
    return {
        key: conform(item, declared[key], _below(where, key)) if key in declared else item
        for key, item in value.items()
    }


@cache
def _keys(shape: Any) -> tuple[dict[str, Any], list[str]]:
    """What a TypedDict declares, and which of it must be there."""
    return typing.get_type_hints(shape), sorted(shape.__required_keys__)


def _of_type(value: Any, wanted: type, where: str) -> Any:
    # A bool is an int to isinstance, and JSON has no other numbers for a float than both.
    fits = type(value) in (int, float) if wanted is float else type(value) is wanted
    if not fits:
        name = "null" if value is None else type(value).__name__
        raise Misshapen(f"{where or 'the answer'} is {name}, not {wanted.__name__}")
    return value


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
