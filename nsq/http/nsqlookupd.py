"""nsqlookupd's HTTP API: ``NsqlookupdApi``, which blocks, and the types of its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from nsq.http.calls import Call, Misshapen, authorized, conform, get, json_value, nothing, ok, post
from nsq.http.message import HttpReply, Url, parse_url
from nsq.http.sending import DEFAULT_TIMEOUT, send
from nsq.transport.base import Transport
from nsq.wire.names import check_channel, check_topic

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

DEFAULT_PORT = 4161
_LOOKUP = "/lookup"


def nsqlookupd_address(text: str) -> Url:
    """``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; a host alone has nsqlookupd's port 4161.

    A path is that of /lookup, wherever a proxy may have it; a query goes with every request.
    """
    return parse_url(text, DEFAULT_PORT)


class NsqlookupdApi:
    """The HTTP API of one nsqlookupd: ``NsqlookupdApi("10.0.0.7:4161").lookup("orders").producers``.

    ``address`` is ``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; its path may be that of
    /lookup behind a proxy, and its query goes with every request. ``authorization`` is a secret sent as a
    Bearer header, over https only unless ``authorize`` is ``"always"``. Otherwise like NsqdApi.
    """

    def __init__(
        self,
        address: str,
        *,
        authorization: str | None = None,
        authorize: str = "https",
        timeout: float = DEFAULT_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._lookupd = nsqlookupd_address(address)
        self._authorization = authorization or ""
        self._authorize = authorize
        self._timeout = timeout
        self._tls = tls
        self._transport = transport

    def __repr__(self) -> str:
        return f"NsqlookupdApi({str(self._lookupd)!r})"

    def _ask(self, call: Call[T]) -> T:
        request = authorized(call, self._authorization, self._authorize).request
        return call.answer(send(request, timeout=self._timeout, tls=self._tls, transport=self._transport))

    def _get(self, path: str, args: dict[str, str], parse: Callable[[HttpReply], T]) -> T:
        return self._ask(get(_beside_lookup(self._lookupd), path, args, parse))

    def _post(self, path: str, args: dict[str, str]) -> None:
        return self._ask(post(_beside_lookup(self._lookupd), path, args, nothing))

    def ping(self) -> None:
        return self._get("/ping", {}, ok)

    def info(self) -> str:
        """Its version."""
        return self._get("/info", {}, lambda reply: str(_read(reply, _NsqlookupdInfo)["version"]))

    def topics(self) -> list[str]:
        return self._get("/topics", {}, lambda reply: sorted(_read(reply, _Topics)["topics"]))

    def channels(self, topic: str) -> list[str]:
        """Empty for a topic it does not know."""
        args = {"topic": topic}
        return self._get("/channels", args, lambda reply: sorted(_read(reply, _Channels)["channels"]))

    def lookup(self, topic: str) -> Lookup:
        """ApiRefused with the code TOPIC_NOT_FOUND for a topic it does not know."""
        path = "" if self._lookupd.target.partition("?")[0] != "/" else _LOOKUP
        return self._ask(get(self._lookupd, path, {"topic": check_topic(topic)}, _parse_lookup))

    def nodes(self) -> list[RegisteredNode]:
        return self._get("/nodes", {}, _parse_nodes)

    def debug(self) -> dict[str, list[DebugEntry]]:
        """All registrations, under ``category:topic:channel``."""
        return self._get("/debug", {}, _parse_debug)

    def create_topic(self, topic: str) -> None:
        return self._post("/topic/create", {"topic": check_topic(topic)})

    def delete_topic(self, topic: str) -> None:
        """Forget it; the nsqds that have it keep it, and register it again when they reconnect."""
        return self._post("/topic/delete", {"topic": topic})

    def create_channel(self, topic: str, channel: str) -> None:
        """And the topic."""
        args = {"topic": check_topic(topic), "channel": check_channel(channel)}
        return self._post("/channel/create", args)

    def delete_channel(self, topic: str, channel: str) -> None:
        return self._post("/channel/delete", {"topic": topic, "channel": channel})

    def tombstone(self, topic: str, node: str) -> None:
        """Send no more consumers of the topic to an nsqd, named by its ``http_address``, for a while."""
        return self._post("/topic/tombstone", {"topic": topic, "node": node})


# What is answered


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


def _parse_lookup(reply: HttpReply) -> Lookup:
    told = _read(reply, _Lookup)
    return Lookup(tuple(told["channels"]), tuple(NsqdNode(**_known(node)) for node in told["producers"]))


def _parse_nodes(reply: HttpReply) -> list[RegisteredNode]:
    return [_registered(node, number) for number, node in enumerate(_read(reply, _Nodes)["producers"])]


def _registered(node: dict[str, Any], number: int) -> RegisteredNode:
    names = node.get("topics", [])
    flags = node.get("tombstones") or [False] * len(names)
    if len(flags) != len(names):
        raise Misshapen(f"producers[{number}] has {len(names)} topics but {len(flags)} tombstones")
    tombstoned = frozenset(name for name, flag in zip(names, flags, strict=True) if flag)
    return RegisteredNode(**_known(node), topics=tuple(names), tombstoned=tombstoned)


def _parse_debug(reply: HttpReply) -> dict[str, list[DebugEntry]]:
    entries: dict[str, list[DebugEntry]] = _read(reply, dict[str, list[DebugEntry]])
    return entries


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
