"""nsqlookupd's HTTP API as pure calls: what to send, and how to read what comes back.

Each function takes the address of an nsqlookupd, as ``nsqlookupd_address`` makes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from nsq.api.calls import Call, get, json_value, nothing, ok, post
from nsq.api.http import HttpReply, Url, parse_url
from nsq.api.shapes import Misshapen, conform
from nsq.wire.names import check_channel, check_topic

T = TypeVar("T")

DEFAULT_PORT = 4161
_LOOKUP = "/lookup"


@dataclass(frozen=True, kw_only=True)
class NsqdNode:
    """An nsqd as nsqlookupd knows it: where it says it can be reached."""

    broadcast_address: str
    tcp_port: int
    http_port: int = 0
    hostname: str = ""
    remote_address: str = ""
    version: str = ""
    topology_region: str = ""
    topology_zone: str = ""

    @property
    def tcp_address(self) -> str:
        return _joined(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        return _joined(self.broadcast_address, self.http_port)


@dataclass(frozen=True, kw_only=True)
class RegisteredNode(NsqdNode):
    """And the topics it has; consumers are not sent to it for those that are ``tombstoned``."""

    topics: tuple[str, ...] = ()
    tombstoned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lookup:
    """A topic's channels, and the nsqds that have it."""

    channels: tuple[str, ...]
    producers: tuple[NsqdNode, ...]


class _RequiredNode(TypedDict):
    broadcast_address: str
    tcp_port: int


class _Node(_RequiredNode, total=False):
    http_port: int
    hostname: str
    remote_address: str
    version: str
    topology_region: str
    topology_zone: str


class _ListedNode(_Node, total=False):
    topics: list[str]
    tombstones: list[bool]


class _Lookup(TypedDict):
    channels: list[str]
    producers: list[_Node]


class _Nodes(TypedDict):
    producers: list[_ListedNode]


class _Topics(TypedDict):
    topics: list[str]


class _Channels(TypedDict):
    channels: list[str]


class _NsqlookupdInfo(TypedDict):
    version: str


class _RequiredDebugEntry(TypedDict):
    id: str
    broadcast_address: str
    tcp_port: int
    last_update: int
    tombstoned: bool


class DebugEntry(_RequiredDebugEntry, total=False):
    """One nsqd under one key of /debug. Times are nanoseconds since 1970."""

    hostname: str
    http_port: int
    version: str
    tombstoned_at: int
    topology_region: str
    topology_zone: str


def nsqlookupd_address(text: str) -> Url:
    """``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; a host alone has nsqlookupd's port 4161.

    A path is that of /lookup, wherever a proxy may have it; a query goes with every request.
    """
    return parse_url(text, DEFAULT_PORT)


# Looking


def ping(lookupd: Url) -> Call[None]:
    return _get(lookupd, "/ping", {}, ok)


def info(lookupd: Url) -> Call[str]:
    """Its version."""
    return _get(lookupd, "/info", {}, lambda reply: _read(reply, _NsqlookupdInfo)["version"])


def topics(lookupd: Url) -> Call[list[str]]:
    return _get(lookupd, "/topics", {}, lambda reply: sorted(_read(reply, _Topics)["topics"]))


def channels(lookupd: Url, topic: str) -> Call[list[str]]:
    """Empty for a topic it does not know."""
    return _get(
        lookupd,
        "/channels",
        {"topic": topic},
        lambda reply: sorted(_read(reply, _Channels)["channels"]),
    )


def lookup(lookupd: Url, topic: str) -> Call[Lookup]:
    """ApiRefused with the code TOPIC_NOT_FOUND for a topic it does not know."""
    path = "" if lookupd.target.partition("?")[0] != "/" else _LOOKUP
    return get(lookupd, path, {"topic": check_topic(topic)}, _parse_lookup)


def _parse_lookup(reply: HttpReply) -> Lookup:
    told = _read(reply, _Lookup)
    return Lookup(tuple(told["channels"]), tuple(NsqdNode(**_known(node)) for node in told["producers"]))


def nodes(lookupd: Url) -> Call[list[RegisteredNode]]:
    return _get(lookupd, "/nodes", {}, _parse_nodes)


def _parse_nodes(reply: HttpReply) -> list[RegisteredNode]:
    return [_registered(node, number) for number, node in enumerate(_read(reply, _Nodes)["producers"])]


def _registered(node: dict[str, Any], number: int) -> RegisteredNode:
    names = node.get("topics", [])
    flags = node.get("tombstones") or [False] * len(names)
    if len(flags) != len(names):
        raise Misshapen(f"producers[{number}] has {len(names)} topics but {len(flags)} tombstones")
    tombstoned = frozenset(name for name, flag in zip(names, flags, strict=True) if flag)
    return RegisteredNode(**_known(node), topics=tuple(names), tombstoned=tombstoned)


def debug(lookupd: Url) -> Call[dict[str, list[DebugEntry]]]:
    """All registrations, under ``category:topic:channel``."""
    return _get(lookupd, "/debug", {}, lambda reply: _read(reply, dict[str, list[DebugEntry]]))


# Changing


def create_topic(lookupd: Url, topic: str) -> Call[None]:
    return _post(lookupd, "/topic/create", {"topic": check_topic(topic)}, nothing)


def delete_topic(lookupd: Url, topic: str) -> Call[None]:
    """Forget it; the nsqds that have it keep it, and register it again when they reconnect."""
    return _post(lookupd, "/topic/delete", {"topic": topic}, nothing)


def create_channel(lookupd: Url, topic: str, channel: str) -> Call[None]:
    """And the topic."""
    args = {"topic": check_topic(topic), "channel": check_channel(channel)}
    return _post(lookupd, "/channel/create", args, nothing)


def delete_channel(lookupd: Url, topic: str, channel: str) -> Call[None]:
    return _post(lookupd, "/channel/delete", {"topic": topic, "channel": channel}, nothing)


def tombstone(lookupd: Url, topic: str, node: str) -> Call[None]:
    """Send no more consumers of the topic to an nsqd, named by its ``http_address``, for a while."""
    return _post(lookupd, "/topic/tombstone", {"topic": topic, "node": node}, nothing)


def _get(lookupd: Url, path: str, args: dict[str, str], parse: Callable[[HttpReply], T]) -> Call[T]:
    return get(_beside_lookup(lookupd), path, args, parse)


def _post(lookupd: Url, path: str, args: dict[str, str], parse: Callable[[HttpReply], T]) -> Call[T]:
    return post(_beside_lookup(lookupd), path, args, parse)


def _beside_lookup(lookupd: Url) -> Url:
    """Where the other endpoints are: below what stands before /lookup."""
    path, mark, query = lookupd.target.partition("?")
    prefix = path.rstrip("/").removesuffix(_LOOKUP)
    return dataclasses.replace(lookupd, target=f"{prefix}/{mark}{query}")


def _read(reply: HttpReply, shape: Any) -> Any:
    return conform(json_value(reply), shape)


def _known(node: dict[str, Any]) -> dict[str, Any]:
    return {name: node[name] for name in NsqdNode.__dataclass_fields__ if name in node}


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
