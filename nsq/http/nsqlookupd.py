"""nsqlookupd's HTTP API: ``NsqlookupdApi``, which blocks, and the types of its answers."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NotRequired, Self, TypedDict, TypeVar

from nsq.errors import ApiRefused, UsageError
from nsq.http.calls import Api, Misshapen, conform, endpoint, json_value, ok, read, read_key
from nsq.http.message import HttpReply, Url, parse_url
from nsq.http.secret import HttpSecret, verifies
from nsq.http.sending import DEFAULT_TIMEOUT
from nsq.log import Logger
from nsq.transport.addresses import join
from nsq.transport.base import Transport
from nsq.wire.names import check_channel, check_topic

if TYPE_CHECKING:
    from nsq.config import Config

log = Logger("nsq.http")

DEFAULT_PORT = 4161
_LOOKUP = "/lookup"


def nsqlookupd_address(text: str) -> Url:
    """Parse ``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; a host alone gets port 4161.

    A path is that of /lookup, wherever a proxy has it; every request carries the address's query.
    """
    return parse_url(text, DEFAULT_PORT)


def beside_lookup(lookupd: Url) -> Url:
    """Return the parent URL of the other endpoints: the part of the path before /lookup."""
    path, mark, query = lookupd.target.partition("?")
    prefix = path.rstrip("/").removesuffix(_LOOKUP)
    return dataclasses.replace(lookupd, target=f"{prefix}/{mark}{query}")


def lookup_path(lookupd: Url) -> str:
    """Return the path of /lookup below the address: none if the address is already that of /lookup."""
    return _LOOKUP if lookupd.target.partition("?")[0] == "/" else ""


class NsqlookupdApi(Api):
    """The HTTP API of one nsqlookupd: ``NsqlookupdApi("10.0.0.7:4161").lookup("orders").producers``.

    ``address`` is ``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; its path may be that of
    /lookup behind a proxy, and every request carries its query. ``authorization`` is a secret sent as a
    Bearer header, over https only unless ``authorize`` is ``"always"``; ``secret``, of a login, replaces it.
    Otherwise like NsqdApi.
    """

    _default_port = DEFAULT_PORT

    def __init__(
        self,
        address: str,
        *,
        authorization: str | None = None,
        authorize: str = "https",
        timeout: float = DEFAULT_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
        secret: str | HttpSecret = "",
        told: bool = False,
    ) -> None:
        super().__init__(address, timeout=timeout, tls=tls, transport=transport, secret=secret, told=told)
        self._base = beside_lookup(self._url)
        allowed = authorize == "always" or (authorize == "https" and self._url.scheme == "https")
        if authorization and allowed:
            self._headers = {**self._headers, "Authorization": f"Bearer {authorization}"}

    @classmethod
    def of(
        cls,
        address: str,
        config: Config,
        transport: Transport | None = None,
        timeout: float | None = None,
        *,
        told: bool = False,
    ) -> Self:
        """Return the API client for a consumer or producer with these options. The default timeout is
        ``lookupd_poll_timeout``.

        It uses https with the ``tls`` settings for nsqds or, without any, verifies with the public
        authorities. It sends the ``http_secret``, or else the ``auth_secret`` where ``lookupd_authorization``
        allows it.
        """
        from nsq.transport.tls import context_of

        encrypted = nsqlookupd_address(address).scheme == "https"
        tls = context_of(config) if encrypted else None
        secret: str | HttpSecret = ""
        if config.http_secret and config.lookupd_authorization != "never":
            chosen = config.tls_ca_file is not None or isinstance(config.tls, ssl.SSLContext)
            secret = HttpSecret(config.http_secret, own_authorities=chosen and verifies(tls))
        return cls(
            address,
            authorization=None if config.http_secret else config.auth_secret,
            authorize=config.lookupd_authorization,
            timeout=config.lookupd_poll_timeout if timeout is None else timeout,
            tls=tls,
            transport=transport,
            secret=secret,
            told=told,
        )

    def ping(self) -> None:
        """Return if nsqlookupd answers; else raise ApiError."""
        return self._get("/ping", {}, ok)

    def info(self) -> str:
        """Return the version of nsqlookupd."""
        return self._get("/info", {}, lambda reply: read_key(reply, "version", str))

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._get("/topics", {}, parse_topics)

    def channels(self, topic: str) -> list[str]:
        """Return a topic's channels; empty for an unknown topic."""
        return self._get("/channels", {"topic": topic}, parse_channels)

    def lookup(self, topic: str) -> Lookup:
        """Look a topic up. Raises ApiRefused with the code TOPIC_NOT_FOUND for an unknown topic."""
        url = endpoint(self._url, lookup_path(self._url), {"topic": check_topic(topic)})
        return self._ask("GET", url, parse_lookup)

    def nodes(self) -> list[RegisteredNode]:
        """Return all nsqds with their topics."""
        return self._get("/nodes", {}, parse_nodes)

    def nodes_of(self, topic: str) -> tuple[NsqdNode, ...]:
        """Return the topic's nsqds; empty for an unknown topic, to which nothing has been published yet."""
        try:
            return self.lookup(topic).producers
        except ApiRefused as refusal:
            if refusal.code == "TOPIC_NOT_FOUND":
                return ()
            raise

    def list_lookupds(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the HTTP addresses of the leader and of all nsqlookupds; None without a coordinator. Raises
        ApiRefused with the status 404 from an original nsqlookupd.
        """
        return self._get("/listlookup", {}, parse_list)

    def debug(self) -> dict[str, list[DebugEntry]]:
        """Return all registrations, with keys ``category:topic:channel``."""
        return self._get("/debug", {}, lambda reply: read(reply, dict[str, list[DebugEntry]]))

    def create_topic(self, topic: str) -> None:
        """Register a topic: consumers find it before anything is published to it."""
        return self._post("/topic/create", {"topic": check_topic(topic)})

    def delete_topic(self, topic: str) -> None:
        """Remove a topic here; nsqds that have it keep it, and register it again when they reconnect."""
        return self._post("/topic/delete", {"topic": topic})

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel, and its topic."""
        args = {"topic": check_topic(topic), "channel": check_channel(channel)}
        return self._post("/channel/create", args)

    def delete_channel(self, topic: str, channel: str) -> None:
        """Remove a channel here; nsqds that have it keep it."""
        return self._post("/channel/delete", {"topic": topic, "channel": channel})

    def tombstone(self, topic: str, node: str) -> None:
        """Hide an nsqd, named by its ``http_address``, from the topic's consumers for a while."""
        return self._post("/topic/tombstone", {"topic": topic, "node": node})


# Answers


@dataclass(frozen=True, kw_only=True)
class NsqdNode:
    """An nsqd in nsqlookupd, with the addresses that it has registered."""

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
        return join(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        return join(self.broadcast_address, self.http_port)


@dataclass(frozen=True, kw_only=True)
class RegisteredNode(NsqdNode):
    """An nsqd and its topics; for ``tombstoned`` topics, nsqlookupd hides it from consumers. ``partitions``
    are those that a partitioned nsqd leads, by topic.
    """

    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()  # one per topic, in order; empty from an old nsqlookupd
    partitions: dict[str, tuple[str, ...]] | None = None

    @property
    def tombstoned(self) -> frozenset[str]:
        return frozenset(name for name, flag in zip(self.topics, self.tombstones, strict=False) if flag)


@dataclass(frozen=True)
class Lookup:
    """A topic's channels, and the nsqds that have it."""

    channels: tuple[str, ...]
    producers: tuple[NsqdNode, ...]


class DebugEntry(TypedDict):
    """One nsqd under one key of /debug. Times are nanoseconds since 1970."""

    id: str
    broadcast_address: str
    tcp_port: int
    last_update: int
    tombstoned: bool
    hostname: NotRequired[str]
    http_port: NotRequired[int]
    version: NotRequired[str]
    tombstoned_at: NotRequired[int]
    topology_region: NotRequired[str]
    topology_zone: NotRequired[str]


def parse_list(reply: HttpReply) -> tuple[str, tuple[str, ...]] | None:
    data = json_value(reply) if reply.body.strip() else None
    if data is None:
        return None
    listed = conform(data, dict[str, Any])
    if "lookupdnodes" not in listed:
        raise Misshapen("lookupdnodes is missing")
    nodes = conform(listed["lookupdnodes"], list[dict[str, Any]], "lookupdnodes")
    leader = listed.get("lookupdleader")
    leading = _http_address(leader) if isinstance(leader, dict) and leader.get("NodeIP") else ""
    return leading, tuple(map(_http_address, nodes))


def _http_address(node: Mapping[str, Any]) -> str:
    host, port = node.get("NodeIP"), str(node.get("HttpPort"))
    if not isinstance(host, str) or not host or not port.isascii() or not port.isdigit():
        raise Misshapen(f"an nsqlookupd is listed with the address {host!r:.200}, port {port!r:.20}")
    return join(host, int(port))


def parse_topics(reply: HttpReply) -> list[str]:
    return sorted(read_key(reply, "topics", list[str]))


def parse_channels(reply: HttpReply) -> list[str]:
    return sorted(read_key(reply, "channels", list[str]))


def parse_lookup(reply: HttpReply) -> Lookup:
    found = read(reply, Lookup)
    return Lookup(found.channels, tuple(_dialable(found.producers)))


def parse_nodes(reply: HttpReply) -> list[RegisteredNode]:
    nodes = read_key(reply, "producers", list[RegisteredNode])
    for number, node in enumerate(nodes):
        if node.tombstones and len(node.tombstones) != len(node.topics):
            raise Misshapen(
                f"producers[{number}] has {len(node.topics)} topics but {len(node.tombstones)} tombstones"
            )
    return list(_dialable(nodes))


# Any client can register anything. One bad registration must not fail the commands for all nsqds.

N = TypeVar("N", bound=NsqdNode)


def _dialable(nodes: Iterable[N]) -> Iterator[N]:
    """Leave out nsqds with an impossible TCP address; an impossible HTTP port counts as unknown."""
    for node in nodes:
        host = node.broadcast_address
        if not _is_host(host) or not 0 < node.tcp_port < 65536:
            _warn(f"an nsqd is left out, with the host {host!r:.200} and TCP port {node.tcp_port}")
        elif not 0 <= node.http_port < 65536:
            _warn(f"nsqd {node.tcp_address} has the HTTP port {node.http_port}, which is impossible")
            yield dataclasses.replace(node, http_port=0)
        else:
            yield node


def _is_host(text: str) -> bool:
    """Whether it can be a host name or an IP address, without brackets."""
    try:
        url = parse_url(join(text, DEFAULT_PORT))
    except UsageError:
        return False
    return url.host.lower() == text.lower() and text.isprintable() and " " not in text


@lru_cache(maxsize=1000)
def _warn(problem: str) -> None:
    """Log a problem once; the cache forgets the oldest."""
    log.warning("nsqlookupd has a bad registration: %s", problem)
