"""nsqd's HTTP API as pure calls: what to send, and how to read what comes back.

Seconds come in and go out; nsqd's milliseconds and nanoseconds exist only in here. Each function takes the
address of an nsqd, as ``nsqd_address`` makes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, cast
from urllib.parse import quote

from nsq.api.calls import ACCEPT, Call, endpoint, get, json_value, nothing, ok, post
from nsq.api.http import HttpReply, HttpRequest, Url, parse_url
from nsq.api.nsqd_stats import NsqdStats
from nsq.api.shapes import conform
from nsq.errors import ApiError, InvalidMessage
from nsq.wire.commands import pack_bodies
from nsq.wire.names import check_channel, check_topic

DEFAULT_PORT = 4151


@dataclass(frozen=True, kw_only=True)
class NsqdInfo:
    """What /info says. Times are seconds, ``start_time`` since 1970. None is what an old nsqd leaves out."""

    version: str
    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    start_time: int | None = None
    max_heartbeat_interval: float | None = None
    max_output_buffer_size: int | None = None
    max_output_buffer_timeout: float | None = None
    max_deflate_level: int | None = None
    topology_region: str = ""
    topology_zone: str = ""


class _RequiredInfo(TypedDict):
    version: str
    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int


class _NsqdInfo(_RequiredInfo, total=False):
    start_time: int
    max_heartbeat_interval: int
    max_output_buffer_size: int
    max_output_buffer_timeout: int
    max_deflate_level: int
    topology_region: str
    topology_zone: str


def nsqd_address(text: str) -> Url:
    """``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; a host alone has nsqd's port 4151."""
    return parse_url(text, DEFAULT_PORT)


# Looking


def ping(nsqd: Url) -> Call[None]:
    return get(nsqd, "/ping", {}, ok)


def info(nsqd: Url) -> Call[NsqdInfo]:
    return get(nsqd, "/info", {}, _parse_info)


def _parse_info(reply: HttpReply) -> NsqdInfo:
    told: dict[str, Any] = conform(json_value(reply), _NsqdInfo)
    known = {name: told[name] for name in NsqdInfo.__dataclass_fields__ if name in told}
    for name in ("max_heartbeat_interval", "max_output_buffer_timeout"):
        if name in known:
            known[name] /= 1_000_000_000
    return NsqdInfo(**known)


def stats(
    nsqd: Url, topic: str = "", channel: str = "", *, include_clients: bool = True, include_mem: bool = False
) -> Call[NsqdStats]:
    """A topic or channel that is not there leaves ``topics`` empty."""
    args = {"format": "json"} | _named(topic, channel)
    args |= {"include_clients": _boolean(include_clients), "include_mem": _boolean(include_mem)}
    return get(nsqd, "/stats", args, _parse_stats)


def _parse_stats(reply: HttpReply) -> NsqdStats:
    return cast(NsqdStats, conform(json_value(reply), NsqdStats))


# Publishing


def publish(nsqd: Url, topic: str, body: bytes, *, defer: float = 0.0) -> Call[None]:
    """``defer`` holds the message back for so many seconds."""
    args = {"topic": check_topic(topic)}
    if defer:
        args["defer"] = str(_milliseconds(defer))
    return post(nsqd, "/pub", args, ok, _checked(body))


def multi_publish(nsqd: Url, topic: str, bodies: Iterable[bytes]) -> Call[None]:
    """Many messages in one request; they may hold any bytes."""
    checked = [_checked(body) for body in bodies]
    if not checked:
        raise InvalidMessage("there is no message to publish")
    return post(nsqd, "/mpub", {"topic": check_topic(topic), "binary": "true"}, ok, pack_bodies(checked))


def _checked(body: object) -> bytes:
    if not isinstance(body, bytes):
        raise InvalidMessage(f"a message is bytes, not {type(body).__name__}")
    if not body:
        raise InvalidMessage("nsqd accepts no empty message")
    return body


def _milliseconds(seconds: float) -> int:
    if not 0.0 <= seconds < math.inf:
        raise InvalidMessage(f"a message cannot be deferred by {seconds} s")
    return round(seconds * 1000)


# Topics and channels


def create_topic(nsqd: Url, topic: str) -> Call[None]:
    return post(nsqd, "/topic/create", {"topic": check_topic(topic)}, nothing)


def delete_topic(nsqd: Url, topic: str) -> Call[None]:
    """With its channels and all messages."""
    return post(nsqd, "/topic/delete", _named(topic), nothing)


def empty_topic(nsqd: Url, topic: str) -> Call[None]:
    return post(nsqd, "/topic/empty", _named(topic), nothing)


def pause_topic(nsqd: Url, topic: str) -> Call[None]:
    """Messages stay in the topic and reach no channel."""
    return post(nsqd, "/topic/pause", _named(topic), nothing)


def unpause_topic(nsqd: Url, topic: str) -> Call[None]:
    return post(nsqd, "/topic/unpause", _named(topic), nothing)


def create_channel(nsqd: Url, topic: str, channel: str) -> Call[None]:
    """The topic must be there."""
    args = _named(check_topic(topic), check_channel(channel))
    return post(nsqd, "/channel/create", args, nothing)


def delete_channel(nsqd: Url, topic: str, channel: str) -> Call[None]:
    """With all its messages."""
    return post(nsqd, "/channel/delete", _named(topic, channel), nothing)


def empty_channel(nsqd: Url, topic: str, channel: str) -> Call[None]:
    return post(nsqd, "/channel/empty", _named(topic, channel), nothing)


def pause_channel(nsqd: Url, topic: str, channel: str) -> Call[None]:
    """Messages stay in the channel and reach no consumer."""
    return post(nsqd, "/channel/pause", _named(topic, channel), nothing)


def unpause_channel(nsqd: Url, topic: str, channel: str) -> Call[None]:
    return post(nsqd, "/channel/unpause", _named(topic, channel), nothing)


def _named(topic: str, channel: str = "") -> dict[str, str]:
    # Not checked where names are only looked up: what has a wrong name must be deletable.
    return ({"topic": topic} if topic else {}) | ({"channel": channel} if channel else {})


def _boolean(value: bool) -> str:
    return "true" if value else "false"


# Settings


def get_config(nsqd: Url, option: str) -> Call[Any]:
    """One of nsqd's options as it tells it: text, number, boolean or list; a time is in nanoseconds."""
    return Call(HttpRequest(_setting(nsqd, option), "GET", ACCEPT), _parse_setting)


def set_config(nsqd: Url, option: str, value: object) -> Call[Any]:
    """Change ``log_level`` (text) or ``nsqlookupd_tcp_addresses`` (a list); gives the new value."""
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return Call(HttpRequest(_setting(nsqd, option), "PUT", ACCEPT, body), _parse_setting)


def _setting(nsqd: Url, option: str) -> Url:
    return endpoint(nsqd, f"/config/{quote(option, safe='')}", {})


def _parse_setting(reply: HttpReply) -> Any:
    # Text comes as it is, anything else as JSON, and only the Content-Type tells "5" from 5.
    kinds: Mapping[str, str] = reply.headers
    if kinds.get("content-type", "").startswith("application/json"):
        return json_value(reply)
    try:
        return reply.body.decode("utf-8")
    except UnicodeDecodeError:
        raise ApiError("a setting that is not text") from None
