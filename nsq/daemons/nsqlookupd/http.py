"""The HTTP API of nsqlookupd: the table of its routes and what each one answers."""

from __future__ import annotations

from collections.abc import Callable

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqlookupd.registry import Node, Peer, Producers, Registry
from nsq.daemons.routes import EMPTY, OK, HttpError, Reply, Request, Route
from nsq.wire.names import valid_channel, valid_topic

# What Go makes of a time that was never set: the year 1 in nanoseconds since 1970, in 64 bits.
_NEVER = -6795364578871345152


def routes(registry: Registry, clock: Callable[[], float], epoch: float) -> list[Route]:
    """``clock`` gives the registry's time; ``epoch`` is the Unix time, in seconds, at which it stood at 0."""
    api = _Api(registry, clock, epoch)
    current = [
        Route("GET", "/ping", api.ping, plain=True),
        Route("GET", "/info", api.info),
        Route("GET", "/topics", api.topics),
        Route("GET", "/channels", api.channels),
        Route("GET", "/lookup", api.lookup),
        Route("GET", "/nodes", api.nodes),
        Route("GET", "/debug", api.debug),
        Route("POST", "/topic/create", api.create_topic),
        Route("POST", "/topic/delete", api.delete_topic),
        Route("POST", "/topic/tombstone", api.tombstone_topic),
        Route("POST", "/channel/create", api.create_channel),
        Route("POST", "/channel/delete", api.delete_channel),
    ]
    # Names from before 1.0. That API took any method, and its clients send GET.
    former = [
        Route(method, path, handler)
        for method in ("GET", "POST")
        for path, handler in (
            ("/create_topic", api.create_topic),
            ("/delete_topic", api.delete_topic),
            ("/tombstone_topic_producer", api.tombstone_topic),
            ("/create_channel", api.create_channel),
            ("/delete_channel", api.delete_channel),
        )
    ]
    return current + former


class _Api:
    def __init__(self, registry: Registry, clock: Callable[[], float], epoch: float) -> None:
        self._registry = registry
        self._clock = clock
        self._epoch = epoch

    def ping(self, request: Request) -> Reply:
        return OK

    def info(self, request: Request) -> Reply:
        return Reply.json({"version": COMPATIBLE_VERSION})

    def topics(self, request: Request) -> Reply:
        return Reply.json({"topics": self._registry.topics()})

    def channels(self, request: Request) -> Reply:
        return Reply.json({"channels": self._registry.channels(_required(request, "topic"))})

    def lookup(self, request: Request) -> Reply:
        topic = _required(request, "topic")
        producers = self._registry.producers(topic, self._clock())
        if producers is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        peers = [_peer(peer) for peer in producers]
        return Reply.json({"channels": self._registry.channels(topic), "producers": peers})

    def nodes(self, request: Request) -> Reply:
        return Reply.json({"producers": [_node(node) for node in self._registry.nodes(self._clock())]})

    def debug(self, request: Request) -> Reply:
        shown = {key: self._entries(producers) for key, producers in self._registry.entries() if producers}
        return Reply.json(dict(sorted(shown.items())))

    def create_topic(self, request: Request) -> Reply:
        self._registry.create_topic(_topic(request))
        return EMPTY

    def delete_topic(self, request: Request) -> Reply:
        self._registry.delete_topic(_required(request, "topic"))
        return EMPTY

    def tombstone_topic(self, request: Request) -> Reply:
        topic = _required(request, "topic")
        self._registry.tombstone(topic, _required(request, "node"), self._clock())
        return EMPTY

    def create_channel(self, request: Request) -> Reply:
        self._registry.create_channel(_topic(request), _channel(request))
        return EMPTY

    def delete_channel(self, request: Request) -> Reply:
        if not self._registry.delete_channel(_topic(request), _channel(request)):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return EMPTY

    def _entries(self, producers: Producers) -> list[dict[str, object]]:
        return [
            {
                "broadcast_address": peer.info.broadcast_address,
                "hostname": peer.info.hostname,
                "http_port": peer.info.http_port,
                "id": peer.remote_address,
                "last_update": self._unix_nanoseconds(peer.last_update),
                "tcp_port": peer.info.tcp_port,
                "tombstoned": tombstoned_at is not None,
                "tombstoned_at": _NEVER if tombstoned_at is None else self._unix_nanoseconds(tombstoned_at),
                "topology_region": peer.info.topology_region,
                "topology_zone": peer.info.topology_zone,
                "version": peer.info.version,
            }
            for peer, tombstoned_at in producers.items()
        ]

    def _unix_nanoseconds(self, moment: float) -> int:
        return int((self._epoch + moment) * 1_000_000_000)


def _required(request: Request, name: str) -> str:
    value = request.args.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


def _topic(request: Request) -> str:
    topic = _required(request, "topic")
    if not valid_topic(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    return topic


def _channel(request: Request) -> str:
    channel = _required(request, "channel")
    if not valid_channel(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return channel


def _peer(peer: Peer) -> dict[str, object]:
    return {
        "remote_address": peer.remote_address,
        "hostname": peer.info.hostname,
        "broadcast_address": peer.info.broadcast_address,
        "tcp_port": peer.info.tcp_port,
        "http_port": peer.info.http_port,
        "version": peer.info.version,
        "topology_zone": peer.info.topology_zone,
        "topology_region": peer.info.topology_region,
    }


def _node(node: Node) -> dict[str, object]:
    return _peer(node.peer) | {"tombstones": list(node.topics.values()), "topics": list(node.topics)}
