"""The HTTP API of nsqlookupd: the table of its routes and their handlers.

Long replies (/debug with 200,000 topics is 70 MB) are made in slices.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqlookupd.registry import Peer, Registry
from nsq.daemons.serve.debug import Debugging, local_only
from nsq.daemons.serve.logins import is_reading
from nsq.daemons.serve.routes import EMPTY, JSON, OK, HttpError, Reply, Request, Route, go_json
from nsq.daemons.serve.sites import own_pages_only
from nsq.daemons.serve.slices import Slices
from nsq.wire.names import valid_channel, valid_topic

# Go's value for a time that was never set: the year 1 in nanoseconds since 1970, in 64 bits.
_NEVER = -6795364578871345152
# Names that are sorted or encoded in one step.
_STEP = 1000
# Bytes of a reply that are sent at once.
_PIECE = 64 * 1024


#: What the role read of a login may GET.
_READ = frozenset({"/info", "/topics", "/channels", "/lookup", "/nodes"})


def may_read(request: Request) -> bool:
    return is_reading(request) and request.path in _READ


def routes(
    registry: Registry, slices: Slices, clock: Callable[[], float], epoch: float, *, legacy_get: bool = False
) -> list[Route]:
    """Make the routes. ``clock`` is the registry's; ``epoch`` is the Unix time in seconds when it was 0."""
    api = _Api(registry, slices, clock, epoch)
    changes = [
        Route("POST", "/topic/create", api.create_topic),
        Route("POST", "/topic/delete", api.delete_topic),
        Route("POST", "/topic/tombstone", api.tombstone_topic),
        Route("POST", "/channel/create", api.create_channel),
        Route("POST", "/channel/delete", api.delete_channel),
    ]
    # Paths from before 1.0. That API accepted any method, but a crawler's GET must not delete a topic.
    changes += [
        Route(method, path, handler)
        for method in (("GET", "POST") if legacy_get else ("POST",))
        for path, handler in (
            ("/create_topic", api.create_topic),
            ("/delete_topic", api.delete_topic),
            ("/tombstone_topic_producer", api.tombstone_topic),
            ("/create_channel", api.create_channel),
            ("/delete_channel", api.delete_channel),
        )
    ]
    return [
        Route("GET", "/ping", api.ping, plain=True),
        Route("GET", "/info", api.info),
        Route("GET", "/topics", api.topics),
        Route("GET", "/channels", api.channels),
        Route("GET", "/lookup", api.lookup),
        Route("GET", "/nodes", api.nodes),
        Route("GET", "/debug", local_only(api.debug)),
        *Debugging().routes(),
        *own_pages_only(changes),
    ]


class _Api:
    def __init__(self, registry: Registry, slices: Slices, clock: Callable[[], float], epoch: float) -> None:
        self._registry = registry
        self._slices = slices
        self._clock = clock
        self._epoch = epoch

    def ping(self, request: Request) -> Reply:
        return OK

    def info(self, request: Request) -> Reply:
        return Reply.json({"version": COMPATIBLE_VERSION})

    async def topics(self, request: Request) -> Reply:
        return await self._in_slices(_topic_pieces(self._registry.topics()))

    def channels(self, request: Request) -> Reply:
        return Reply.json({"channels": self._registry.channels(_required(request, "topic"))})

    def lookup(self, request: Request) -> Reply:
        topic = _required(request, "topic")
        producers = self._registry.producers(topic, self._clock())
        if producers is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        peers = [_peer(peer) for peer in producers]
        return Reply.json({"channels": self._registry.channels(topic), "producers": peers})

    async def nodes(self, request: Request) -> Reply:
        return await self._in_slices(self._node_pieces(self._clock()))

    async def debug(self, request: Request) -> Reply:
        return await self._in_slices(self._debug_pieces())

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

    async def _in_slices(self, pieces: Iterator[bytes]) -> Reply:
        """Make a JSON reply of these pieces, in slices."""
        made: list[bytes] = []
        await self._slices.run(_collect(pieces, made))
        return Reply(made[0], JSON, rest=tuple(made[1:]))

    def _node_pieces(self, now: float) -> Iterator[bytes]:
        registry = self._registry
        yield b'{"producers":['
        for place, peer in enumerate(registry.nodes(now)):
            topics = list(peer.channels_by_topic)
            tombstones = (registry.tombstoned(peer, topic, now) for topic in topics)
            yield (b"," if place else b"") + go_json(_peer(peer))[:-1] + b","
            yield from _lists([(b"tombstones", tombstones), (b"topics", topics)])
            yield b"}"
        yield b"]}"

    def _debug_pieces(self) -> Iterator[bytes]:
        found, runs = [], []
        for keyed in self._registry.entries():
            found.append(keyed)
            yield b""
        for start in range(0, len(found), _STEP):
            runs.append(sorted(found[start : start + _STEP], key=itemgetter(0)))
            yield b""
        encoded: dict[tuple[Peer, float | None], bytes] = {}  # a peer has the same entry under most keys
        separator = b"{"
        for key, producers in heapq.merge(*runs, key=itemgetter(0)):  # as Go writes a map
            entries = []
            for entry in producers.items():
                if entry not in encoded:
                    encoded[entry] = b"" if entry[0].gone else go_json(self._entry(*entry))
                if encoded[entry]:
                    entries.append(encoded[entry])
            if entries:
                yield separator + go_json(key) + b":[" + b",".join(entries) + b"]"
                separator = b","
            else:
                yield b""
        yield b"{}" if separator == b"{" else b"}"

    def _entry(self, peer: Peer, tombstoned_at: float | None) -> dict[str, object]:
        return {
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


def _collect(pieces: Iterator[bytes], made: list[bytes]) -> Iterator[None]:
    """Join the pieces to larger ones of about ``_PIECE`` bytes; one step per given piece."""
    kept: list[bytes] = []
    size = 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size >= _PIECE:
            made.append(b"".join(kept))
            kept, size = [], 0
        yield
    made.append(b"".join(kept))


def _topic_pieces(topics: list[str]) -> Iterator[bytes]:
    yield b"{"
    yield from _lists([(b"topics", topics)])
    yield b"}"


def _lists(named: Iterable[tuple[bytes, Iterable[object]]]) -> Iterator[bytes]:
    """Yield long lists as members of a JSON object, piece by piece: ``"name":[…],"other":[…]``."""
    for place, (name, values) in enumerate(named):
        yield (b"," if place else b"") + b'"' + name + b'":['
        rest, first = iter(values), True
        while some := list(itertools.islice(rest, _STEP)):
            yield (b"" if first else b",") + go_json(some)[1:-1]
            first = False
        yield b"]"
