"""A model of a cluster: its nsqds, from the lists of nsqlookupds, and its topics and channels, from the
statistics of nsqds.

Pure: takes answers and times, and asks nothing itself. The tools and Spark ask with ``nsq.http.asking``,
nsqadmin with asyncio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter, sub
from typing import Any, NamedTuple

from nsq.errors import NsqError, UsageError
from nsq.http.calls import Misshapen
from nsq.http.message import Url, parse_url
from nsq.http.nsqd import NsqdInfo, NsqdStats, plain_stats
from nsq.http.nsqlookupd import Lookup, NsqdNode, RegisteredNode
from nsq.transport.addresses import is_unix, split
from nsq.wire.identify import PARTITIONED_VERSION

# Which nsqds there are


@dataclass(frozen=True, eq=False)
class Node:
    """An nsqd and the URL of its HTTP API. ``topics`` maps each topic to whether it is tombstoned there."""

    info: NsqdNode
    url: Url
    topics: Mapping[str, bool] = field(default_factory=dict)
    #: By topic: the partitions that a partitioned nsqd leads.
    partitions: Mapping[str, Iterable[str]] = field(default_factory=dict)
    #: For each nsqlookupd that lists it: nsqlookupd's address/the nsqd's address. None if none was asked.
    registrations: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """``broadcast_address:http_port``, as people and nsqlookupd name it."""
        return self.info.http_address

    @property
    def partitioned(self) -> bool:
        """Whether it belongs to a partitioned NSQ."""
        return PARTITIONED_VERSION in self.info.version

    @property
    def problem(self) -> str:
        """Say why no client can use the registered addresses; empty if they are usable."""
        info = self.info
        try:
            if is_unix(info.broadcast_address):
                raise UsageError(f"broadcast address {info.broadcast_address!r} is not a host")
            split(info.tcp_address)
            if not parse_url(info.http_address).port:
                raise UsageError("HTTP port is 0")
        except NsqError as error:
            known_as = info.hostname or info.remote_address or "an nsqd"
            return f"{known_as} is registered with addresses that cannot be used, and is skipped: {error}"
        return ""


def merge_nodes(listed: Mapping[str, Iterable[RegisteredNode]]) -> list[Node]:
    """Merge the lists of several nsqlookupds, by their addresses: each nsqd once, sorted by host name."""
    nodes: dict[str, Node] = {}
    for lookupd, each in listed.items():
        for node in each:
            nodes[node.tcp_address] = _listed(nodes.get(node.tcp_address), node, lookupd)
    return sorted(nodes.values(), key=by_host)


def _listed(known: Node | None, node: RegisteredNode, lookupd: str) -> Node:
    """Return a node, merged with the entry of one more nsqlookupd."""
    registration = f"{lookupd}/{node.remote_address}"
    topics = {name: name in node.tombstoned for name in node.topics}
    if known is None:
        return Node(node, _url(node), topics, node.partitions or {}, (registration,))
    # A topic counts as tombstoned only if all nsqlookupds that list it there say so.
    for name, hidden in known.topics.items():
        topics[name] = hidden and topics.get(name, hidden)
    partitions = {**known.partitions, **(node.partitions or {})}
    registrations = (*(known.registrations or ()), registration)
    return replace(known, topics=topics, partitions=partitions, registrations=registrations)


def merge_lookups(lookups: Iterable[Lookup]) -> list[Node]:
    """Merge what several nsqlookupds answered about one topic: each nsqd once."""
    by_address = {node.tcp_address: node for each in lookups for node in each.producers}
    return [Node(node, _url(node)) for node in by_address.values()]


def named_node(url: Url, info: NsqdInfo) -> Node:
    """Return the nsqd at this URL, which answered with this info."""
    node = NsqdNode(
        broadcast_address=info.broadcast_address,
        tcp_port=info.tcp_port,
        http_port=info.http_port,
        hostname=info.hostname,
        version=info.version,
        topology_region=info.topology_region,
        topology_zone=info.topology_zone,
    )
    return Node(node, url)


def by_host(node: Node) -> tuple[str, str]:
    return node.info.hostname, node.name


def _url(info: NsqdNode) -> Url:
    return Url("http", info.broadcast_address, info.http_port, "/", told=True)


def newest_version(nodes: Iterable[Node]) -> tuple[int, ...]:
    return max((version_number(node.info.version) for node in nodes), default=())


def version_number(text: str) -> tuple[int, ...]:
    """Parse a version: ``1.3.0-alpha`` is 1, 3, 0."""
    words = text.partition("-")[0].split(".")
    return tuple(int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10)


# What one nsqd counts: its /stats, summarized

#: The largest figure that is accepted: a larger integer could make a division fail.
MOST = 2**63

#: The counts of a channel, in this order.
Counts = tuple[int, ...]
_COUNTED = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
_CHANNEL = itemgetter(*_COUNTED, "dropped_count")
_UNBOUNDED_CHANNEL = itemgetter(*_COUNTED)  # of an nsqd without --max-channel-depth, and of Go's
DEPTH, BACKEND, IN_FLIGHT, DEFERRED, REQUEUED, TIMED_OUT, MESSAGES, CLIENTS, DROPPED = range(9)
COLUMNS = 9
_NAME, _PAUSED = itemgetter("channel_name"), itemgetter("paused")


class TopicSummary(NamedTuple):
    """A topic of one nsqd. ``counts`` has the counts of all its channels in one flat tuple: 500 topics with 5
    channels on 10 nsqds are 25,000 channels in each poll, too many for one object each.
    """

    depth: int
    backend: int
    messages: int
    paused: bool
    channels: tuple[str, ...]
    paused_channels: tuple[bool, ...]
    counts: Counts
    #: The partitions that a partitioned nsqd leads, and the bytes that it stores of them.
    partitions: tuple[str, ...] = ()
    stored_bytes: int = 0
    #: Messages that the topic itself has dropped, with --max-channel-depth.
    dropped: int = 0

    def column(self, place: int) -> int:
        """Return the sum of one count over all channels."""
        return sum(self.counts[place::COLUMNS])


@dataclass(frozen=True)
class Summary:
    """The statistics of one nsqd at one time."""

    at: float
    health: str
    start_time: int
    memory: dict[str, int]
    topics: dict[str, TopicSummary]


def summarize(stats: Any, at: float) -> Summary:
    """Summarize an nsqd's /stats. Raises Misshapen if they are invalid."""
    try:
        topics: dict[str, TopicSummary] = {}
        for topic in rows(plain_stats(stats), "topics"):
            name, summary = value(topic, "topic_name", str), _summarize_topic(topic)
            # A partitioned nsqd lists a topic once for each partition.
            topics[name] = _with_partition(topics[name], summary) if name in topics else summary
        memory = stats.get("memory") or {}
        figures = {name: value(memory, name, int) for name in memory if isinstance(name, str)}
    except (KeyError, TypeError, AttributeError) as error:
        raise Misshapen(f"its statistics lack something: {error}") from None
    return Summary(at, value(stats, "health", str) or "OK", value(stats, "start_time", int), figures, topics)


def _summarize_topic(topic: dict[str, Any]) -> TopicSummary:
    channels = rows(topic, "channels")
    try:
        counts, names, paused = _columns(channels)
    except KeyError:  # an nsqd from before 1.2.1 does not count the clients
        older = (
            {"client_count": len(channel.get("clients") or ()), "paused": False} | channel
            for channel in channels
        )
        counts, names, paused = _columns(list(older))
    if counts and (type(sum(counts)) is not int or not -MOST <= min(counts) <= max(counts) <= MOST):
        raise Misshapen("its statistics have counts that are not whole numbers, or are too large")
    if not {*map(type, names)} <= {str} or not {*map(type, paused)} <= {bool}:
        raise Misshapen("its statistics have a channel with an invalid name or paused flag")
    return TopicSummary(
        value(topic, "depth", int),
        value(topic, "backend_depth", int),
        value(topic, "message_count", int),
        value(topic, "paused", bool),
        names,
        paused,
        counts,
        (value(topic, "topic_partition", str),) if "topic_partition" in topic else (),
        value(topic, "stored_bytes", int),
        value(topic, "dropped_count", int),
    )


def _with_partition(one: TopicSummary, other: TopicSummary) -> TopicSummary:
    """Add up two partitions of a topic."""
    channels: dict[str, tuple[Counts, bool]] = {}
    for each in (one, other):
        for place, (name, paused) in enumerate(zip(each.channels, each.paused_channels, strict=True)):
            counts = each.counts[place * COLUMNS : (place + 1) * COLUMNS]
            before, was_paused = channels.get(name, ((0,) * COLUMNS, False))
            channels[name] = tuple(map(int.__add__, before, counts)), was_paused or paused
    return TopicSummary(
        one.depth + other.depth,
        one.backend + other.backend,
        one.messages + other.messages,
        one.paused or other.paused,
        tuple(channels),
        tuple(paused for _, paused in channels.values()),
        tuple(chain.from_iterable(counts for counts, _ in channels.values())),
        one.partitions + other.partitions,
        one.stored_bytes + other.stored_bytes,
        one.dropped + other.dropped,
    )


def _columns(channels: list[dict[str, Any]]) -> tuple[Counts, tuple[str, ...], tuple[bool, ...]]:
    """Return the counts of all channels in one flat tuple, their names, and whether they are paused."""
    if channels and "dropped_count" in channels[0]:
        counts = tuple(chain.from_iterable(map(_CHANNEL, channels)))
    else:
        counts = tuple(chain.from_iterable((*each, 0) for each in map(_UNBOUNDED_CHANNEL, channels)))
    return counts, tuple(map(_NAME, channels)), tuple(map(_PAUSED, channels))


def rows(given: Any, name: str) -> list[Any]:
    """Return a list in an object; Go writes an empty one as null."""
    found = an_object(given).get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise Misshapen(f"{name} is {type(found).__name__}, not a list")
    return found


def value(given: Any, name: str, kind: type) -> Any:
    """Return a checked value. If it is missing, as with old versions, return 0, an empty text or False."""
    found = an_object(given).get(name)
    if found is None:
        return kind()
    if type(found) is int and abs(found) > MOST:
        raise Misshapen(f"{name} is too large for a count")
    if type(found) is not kind:
        raise Misshapen(f"{name} is {type(found).__name__}, not {kind.__name__}")
    return found


def an_object(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Misshapen(f"its statistics have {type(given).__name__} where an object belongs")
    return given


class Track:
    """The last summary of one nsqd, and one of some seconds before, from which rates are computed."""

    def __init__(self, span: float = 0.0) -> None:
        self._span = span  # the shortest time that rates cover, once there is a summary of that age
        #: How many messages a channel keeps in memory; 0 or None if unknown.
        self.memory_size: int | None = None
        self.last: Summary | None = None
        self._middle: Summary | None = None
        self._base: Summary | None = None

    def add(self, summary: Summary) -> Summary:
        base, middle = self._base, self._middle
        if base is None or middle is None or summary.start_time != base.start_time or summary.at < base.at:
            self._base = self._middle = summary  # a new or restarted nsqd, or the clock was set back
        elif summary.at - middle.at >= self._span:
            self._base, self._middle = middle, summary
        self.last = summary
        return summary

    def before(self, topic: str) -> tuple[float, TopicSummary | None]:
        """Return a topic as it was some seconds before, and these seconds; None without it. The seconds are
        rounded, so that nsqds polled at the same time have equal spans.
        """
        now, base = self.last, self._base
        seconds = 0.0 if now is None or base is None else round(now.at - base.at, 1)
        return (seconds, base.topics.get(topic)) if base is not None and seconds > 0 else (0.0, None)


# Topics and channels, merged over nsqds


class Channel(NamedTuple):
    """A channel, merged over nsqds. ``changes`` are the changes of its counts per second, in their order."""

    name: str
    depth: int
    backend_depth: int
    in_flight: int
    deferred: int
    requeued: int
    timed_out: int
    messages: int
    clients: int
    dropped: int
    paused: bool
    changes: tuple[float, ...]
    #: How many more messages fit into the nsqds' memory, if that is known and the depth grows.
    room: int | None

    @property
    def counts(self) -> Counts:
        return self[1 : 1 + COLUMNS]  # type: ignore[return-value]

    @property
    def rate(self) -> float:
        """Messages that arrive, per second."""
        return max(0.0, self.changes[MESSAGES])

    @property
    def delivered(self) -> float:
        """Messages that leave the queue for consumers, per second."""
        return max(0.0, self.rate - self.changes[DEPTH] - self.changes[DROPPED])

    @property
    def finished(self) -> float:
        """Messages that consumers finish, per second."""
        left = self.changes[DEPTH] + self.changes[IN_FLIGHT] + self.changes[DEFERRED] + self.changes[DROPPED]
        return max(0.0, self.rate - left)

    def merged_with(self, other: Channel) -> Channel:
        counts = map(int.__add__, self.counts, other.counts)
        changes = tuple(one + another for one, another in zip(self.changes, other.changes, strict=True))
        room = None if self.room is None or other.room is None else self.room + other.room
        return Channel._make((self.name, *counts, self.paused or other.paused, changes, room))


class Topic(NamedTuple):
    """A topic, merged over the ``nodes`` nsqds that have it. Per second are ``rate``, of the messages
    published, ``growth``, of its own depth, and ``dropping``, of what the topic itself drops.
    ``stored_bytes`` is None unless the topic has partitions.
    """

    name: str
    nodes: int
    depth: int
    backend_depth: int
    messages: int
    paused: bool
    rate: float
    growth: float
    channels: tuple[Channel, ...]
    stored_bytes: int | None = None
    dropping: float = 0.0


def merge_topics(tracks: Iterable[Track], known: Iterable[str] = ()) -> list[Topic]:
    """Merge the topics of all nsqds, sorted by name. ``known`` are names that nsqlookupds know besides."""
    merged: dict[str, _Sum] = {name: _Sum() for name in known}
    for track in tracks:
        for name, summary in track.last.topics.items() if track.last else ():
            topic = merged.get(name)
            if topic is None:
                topic = merged[name] = _Sum()
            topic.add(track, name, summary)
    return [merged[name].topic(name) for name in sorted(merged)]


def count_topics(stats: Iterable[NsqdStats], known: Iterable[str] = ()) -> list[Topic]:
    """Merge the statistics of several nsqds at one time, without rates."""
    tracks = []
    for each in stats:
        tracks.append(Track())
        tracks[-1].add(summarize(each, 0.0))
    return merge_topics(tracks, known)


class _Sum:
    """One topic, added up nsqd by nsqd."""

    def __init__(self) -> None:
        self._nodes = self._depth = self._backend = self._messages = 0
        self._stored: int | None = None
        self._rate = self._growth = self._dropping = 0.0
        self._paused = False
        # By the names of its channels, which are usually the same on all nsqds.
        self._by_channels: dict[tuple[str, ...], _SameChannels] = {}

    def add(self, track: Track, name: str, summary: TopicSummary) -> None:
        seconds, base = track.before(name)
        if base is not None and base.partitions != summary.partitions:
            base = None  # it counts the messages of other partitions than before
        if summary.partitions:
            self._stored = (self._stored or 0) + summary.stored_bytes
        self._nodes += 1
        self._depth += summary.depth
        self._backend += summary.backend
        self._messages += summary.messages
        self._paused |= summary.paused
        if base is not None:
            self._rate += max(0, summary.messages - base.messages) / seconds
            self._growth += (summary.depth - base.depth) / seconds
            self._dropping += max(0, summary.dropped - base.dropped) / seconds
        alike = self._by_channels.get(summary.channels)
        if alike is None:
            alike = self._by_channels[summary.channels] = _SameChannels(summary.channels)
        alike.add(summary, base, seconds, track.memory_size)

    def topic(self, name: str) -> Topic:
        merged: dict[str, Channel] = {}
        for alike in self._by_channels.values():
            for channel in alike.channels():
                known = merged.get(channel.name)
                merged[channel.name] = channel if known is None else known.merged_with(channel)
        return Topic(
            name,
            self._nodes,
            self._depth,
            self._backend,
            self._messages,
            self._paused,
            self._rate,
            self._growth,
            tuple(merged[each] for each in sorted(merged)),
            self._stored,
            self._dropping,
        )


class _SameChannels:
    """A topic on those nsqds where it has the same channels, whose counts can be added column by column."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._summaries: list[TopicSummary] = []
        self._memory_sizes: list[int | None] = []
        # By seconds since the base: the counts now, and those of the base.
        self._spans: dict[float, tuple[list[Counts], list[Counts]]] = {}

    def add(
        self, summary: TopicSummary, base: TopicSummary | None, seconds: float, memory_size: int | None
    ) -> None:
        self._summaries.append(summary)
        self._memory_sizes.append(memory_size)
        if base is not None:
            now, then = self._spans.setdefault(seconds, ([], []))
            now.append(summary.counts)
            then.append(base.counts if base.channels == summary.channels else _counts_before(base, summary))

    def channels(self) -> Iterable[Channel]:
        totals = tuple(_added(each.counts for each in self._summaries))
        changes = [0.0] * len(totals)
        for seconds, (now, then) in self._spans.items():
            changed = map(sub, _added(now), _added(then))
            changes = [rate + each / seconds for rate, each in zip(changes, changed, strict=True)]
        paused = map(any, zip(*(each.paused_channels for each in self._summaries), strict=True))
        for start, name, is_paused in zip(range(0, len(totals), COLUMNS), self._names, paused, strict=True):
            end = start + COLUMNS
            room = self._room(start) if changes[start + DEPTH] > 0 else None
            yield Channel._make((name, *totals[start:end], is_paused, tuple(changes[start:end]), room))

    def _room(self, start: int) -> int | None:
        """Count the messages that still fit into the nsqds' memory; None if a size is unknown."""
        if not all(self._memory_sizes):
            return None
        room = 0
        for each, size in zip(self._summaries, self._memory_sizes, strict=True):
            if not each.counts[start + BACKEND]:
                room += max(0, (size or 0) - each.counts[start + DEPTH])
        return room


def _counts_before(base: TopicSummary, summary: TopicSummary) -> Counts:
    """Return the base's counts of the topic's current channels; a new channel counts as unchanged."""
    places = {name: number * COLUMNS for number, name in enumerate(base.channels)}
    before: list[int] = []
    for start, name in zip(range(0, len(summary.counts), COLUMNS), summary.channels, strict=True):
        counts, place = (base.counts, places[name]) if name in places else (summary.counts, start)
        before += counts[place : place + COLUMNS]
    return tuple(before)


def _added(counts: Iterable[Counts]) -> Iterable[int]:
    return map(sum, zip(*counts, strict=True))
