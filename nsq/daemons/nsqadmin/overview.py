"""The state of the whole cluster, which the page polls: topics, channels and nsqds, with rates and health.

Every upstream is polled by a task of its own. ``Overview.look`` waits for them a moment and then uses their
last replies, so that a slow nsqd delays no page; the page marks it as slow. However many pages are open, no
upstream is polled more than once a second, and none while no page is open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter, sub
from typing import Any, Generic, NamedTuple, TypeVar

from nsq.daemons.nsqadmin import health
from nsq.daemons.nsqadmin.aggregate import MOST, Json, rows, value
from nsq.daemons.nsqadmin.cluster import Cluster, Node, get, merge_nodes, newest_version, version_number
from nsq.errors import NsqError
from nsq.http.calls import Misshapen, json_value
from nsq.http.nsqlookupd import RegisteredNode

T = TypeVar("T")

#: An overview is reused for this long.
_FRESH = 0.9
#: How long ``look`` waits for nsqlookupds, and then for nsqds; and how long for an upstream without recent
#: figures, because the sums would be too small without it.
_PATIENCE, _FIRST_PATIENCE = 0.7, 2.0
#: The shortest time that rates cover, once figures of this age exist.
_BASE = 5.0
#: Older figures of an nsqd are ignored.
_TRUSTED = 30.0
#: How long an nsqd stays on the page when no nsqlookupd lists it any more.
_REMEMBERED = 3600.0

# The counts of a channel, in the order of ``Counts``.
_CHANNEL = itemgetter(
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
DEPTH, BACKEND, IN_FLIGHT, DEFERRED, REQUEUED, TIMED_OUT, MESSAGES, CLIENTS = range(8)
_SHOWN = ("depth", "backend_depth", "in_flight", "deferred", "requeued", "timed_out", "messages", "clients")
_COLUMNS = len(_SHOWN)
_NAME, _PAUSED = itemgetter("channel_name"), itemgetter("paused")
Counts = tuple[int, ...]


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


@dataclass(frozen=True)
class Summary:
    """The statistics of one nsqd at one time."""

    at: float
    health: str
    start_time: int
    memory: Json
    topics: dict[str, TopicSummary]


def summarize(stats: Any, at: float) -> Summary:
    """Summarize an nsqd's /stats. Raises Misshapen if they are invalid."""
    try:
        topics = {value(topic, "topic_name", str): _summarize_topic(topic) for topic in rows(stats, "topics")}
        memory = stats.get("memory") or {}
        figures = {name: value(memory, name, int) for name in memory if isinstance(name, str)}
    except (KeyError, TypeError, AttributeError) as error:
        raise Misshapen(f"its statistics lack something: {error}") from None
    return Summary(at, value(stats, "health", str) or "OK", value(stats, "start_time", int), figures, topics)


def _summarize_topic(topic: Json) -> TopicSummary:
    channels = rows(topic, "channels")
    try:
        counts, names, paused = _columns(channels)
    except KeyError:  # an nsqd from before 1.2.1 does not count the clients
        older = (
            {"client_count": len(told.get("clients") or ()), "paused": False} | told for told in channels
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
    )


def _columns(channels: list[Json]) -> tuple[Counts, tuple[str, ...], tuple[bool, ...]]:
    """Return the counts of all channels in one flat tuple, their names, and whether they are paused."""
    counts = tuple(chain.from_iterable(map(_CHANNEL, channels)))
    return counts, tuple(map(_NAME, channels)), tuple(map(_PAUSED, channels))


class Poll(Generic[T]):
    """The last reply of one upstream, and the task that polls it."""

    def __init__(self) -> None:
        self.value: T | None = None
        self.answered = float("-inf")
        self.error = ""
        self.task: asyncio.Task[None] | None = None
        self.waiting_since: float | None = None  # time of the first poll since the last reply

    def start(self, ask: Callable[[], Awaitable[T]], clock: Callable[[], float]) -> None:
        """Start a poll, unless one is running."""
        if self.waiting_since is None:
            self.waiting_since = clock()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._ask(ask, clock))

    async def _ask(self, ask: Callable[[], Awaitable[T]], clock: Callable[[], float]) -> None:
        try:
            self.value = await ask()
            self.error, self.waiting_since = "", None
            self.answered = clock()
        except NsqError as error:
            self.error = str(error)

    def silent(self, now: float) -> float:
        """Return for how many seconds polls have had no reply."""
        return 0.0 if self.waiting_since is None else now - self.waiting_since


async def _wait_for(polls: Iterable[Poll[Any]], began: float) -> None:
    """Wait a moment for replies; longer for a first poll (since ``began``) without recent figures."""
    pending = {poll.task: poll for poll in polls if poll.task is not None}
    if pending:
        _, late = await asyncio.wait(pending, timeout=_PATIENCE)
        first = [task for task in late if _is_missed(pending[task], began)]
        if first:
            await asyncio.wait(first, timeout=_FIRST_PATIENCE - _PATIENCE)


def _is_missed(poll: Poll[Any], began: float) -> bool:
    return began - poll.answered > _TRUSTED and (poll.waiting_since or 0) >= began


class NodePoll(Poll[Summary]):
    """A poll of an nsqd, with its figures of some seconds ago, to compute rates."""

    def __init__(self, node: Node, now: float) -> None:
        super().__init__()
        self.node = node
        self.listed_at = now
        self.listed = True
        self.memory_size: int | None = None
        self._middle: Summary | None = None
        self.base: Summary | None = None

    def keep(self, summary: Summary) -> Summary:
        base = self.base
        if base is None or summary.start_time != base.start_time or summary.at < base.at:
            self.base = self._middle = summary  # a new or restarted nsqd, or the clock was set back
        elif self._middle is not None and summary.at - self._middle.at >= _BASE:
            self.base, self._middle = self._middle, summary
        return summary

    def growth(self, topic: str) -> tuple[float, TopicSummary | None]:
        """Return the seconds since ``base`` (0 without one) and the topic at that time. The seconds are
        rounded, so that nsqds polled at the same time have equal spans.
        """
        now, base = self.value, self.base
        if now is None or base is None or now.at - base.at < 0.5:
            return 0.0, None
        return round(now.at - base.at, 1), base.topics.get(topic)


class Overview:
    """Makes the JSON of /api/overview."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._clock = clock
        self._directory: dict[str, Poll[Any]] = {}  # by nsqlookupd, or without one by nsqd
        self._nodes: dict[str, NodePoll] = {}
        self._last: tuple[float, Json] | None = None
        self._looking: asyncio.Task[Json] | None = None
        self._reading = asyncio.Lock()

    async def look(self, within: float = _FRESH) -> Json:
        """Return the overview, which may be ``within`` seconds old."""
        if self._last is not None and self._is_younger(within):
            return self._last[1]
        return await asyncio.shield(self._begin())

    def prepare(self, within: float) -> None:
        """Start polling for a page that is about to call ``look``, unless the overview is recent enough."""
        if not self._is_younger(within):
            self._begin()

    def _is_younger(self, seconds: float) -> bool:
        return self._last is not None and 0 <= self._clock() - self._last[0] < seconds

    def _begin(self) -> asyncio.Task[Json]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._looking

    async def close(self) -> None:
        polls: Iterable[Poll[Any]] = [*self._directory.values(), *self._nodes.values()]
        tasks = [task for task in [self._looking, *(poll.task for poll in polls)] if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> Json:
        topics = await self._find_nodes()
        began = self._clock()
        for poll in self._nodes.values():
            poll.start(self._asking(poll), self._clock)
        await _wait_for(self._nodes.values(), began)
        now = self._clock()
        shown = describe(list(self._nodes.values()), topics, now)
        shown["upstreams"] = [
            {"address": address, "error": poll.error or health.of_silence(poll.silent(now))}
            for address, poll in self._directory.items()
        ]
        self._last = (now, shown)
        return shown

    async def _find_nodes(self) -> list[str]:
        """Update the list of nsqds; return the topics that nsqlookupds know."""
        cluster, now = self._cluster, self._clock()
        addresses = cluster.lookupds or cluster.nsqds
        self._directory = {address: self._directory.get(address) or Poll() for address in addresses}

        def asking(address: str) -> Callable[[], Awaitable[Any]]:
            return lambda: cluster.listed(address) if cluster.lookupds else cluster.named_node(address)

        for address, poll in self._directory.items():
            poll.start(asking(address), self._clock)
        await _wait_for(self._directory.values(), now)
        answered = {address: poll.value for address, poll in self._directory.items() if poll.value}
        topics: list[str] = []
        if cluster.lookupds:
            listed: dict[str, list[RegisteredNode]] = {}
            for address, (nodes, names) in answered.items():
                listed[address] = nodes
                topics += names
            found = merge_nodes(listed)
        else:
            found = list(answered.values())
        for known in self._nodes.values():
            known.listed = False
        for node in found:
            poll = self._nodes.setdefault(node.name, NodePoll(node, now))
            poll.node, poll.listed, poll.listed_at = node, True, now
        self._nodes = {name: poll for name, poll in self._nodes.items() if now - poll.listed_at < _REMEMBERED}
        return topics

    def _asking(self, poll: NodePoll) -> Callable[[], Awaitable[Summary]]:
        args = {"format": "json", "include_clients": "false", "include_mem": "true"}

        async def ask() -> Summary:
            stats = self._cluster.ask(get(poll.node.url, "/stats", args, lambda reply: reply))
            if poll.memory_size is None:
                reply, poll.memory_size = await asyncio.gather(stats, self._memory_size(poll.node))
            else:
                reply = await stats
            at = self._clock()
            async with self._reading:  # one at a time; the event loop serves others in between
                await asyncio.sleep(0)
                return poll.keep(summarize(json_value(reply), at))

        return ask

    async def _memory_size(self, node: Node) -> int:
        """Return how many messages a channel of the nsqd keeps in memory; 0 if unknown."""
        try:
            told = await self._cluster.ask(get(node.url, "/config/mem_queue_size", {}, json_value))
        except NsqError:
            return 0
        return told if type(told) is int and told > 0 else 0


# Merging. Pure, except that it reads the polls.


def describe(polls: list[NodePoll], known_topics: Iterable[str], now: float) -> Json:
    newest = newest_version(poll.node for poll in polls)
    topics: dict[str, _TopicRates] = {name: _TopicRates() for name in known_topics}
    nodes = []
    for poll in polls:
        nodes.append(_describe_node(poll, now, newest))
        if poll.value is not None and poll.listed and now - poll.value.at < _TRUSTED:
            for name, summary in poll.value.topics.items():
                topic = topics.get(name)
                if topic is None:
                    topic = topics[name] = _TopicRates()
                topic.add(poll, name, summary)
    return {
        "time": now,
        "topics": [topics[name].shown(name) for name in sorted(topics)],
        "nodes": nodes,
    }


class _TopicRates:
    """One topic, merged over all nsqds."""

    def __init__(self) -> None:
        self.nodes = self.depth = self.backend = self.messages = 0
        self.rate = 0.0
        self.paused = False
        # By the names of its channels, which are usually the same on all nsqds.
        self.by_channels: dict[tuple[str, ...], _SameChannels] = {}

    def add(self, poll: NodePoll, name: str, summary: TopicSummary) -> None:
        seconds, base = poll.growth(name)
        self.nodes += 1
        self.depth += summary.depth
        self.backend += summary.backend
        self.messages += summary.messages
        self.paused |= summary.paused
        if base is not None:
            self.rate += max(0, summary.messages - base.messages) / seconds
        alike = self.by_channels.get(summary.channels)
        if alike is None:
            alike = self.by_channels[summary.channels] = _SameChannels()
        alike.add(summary, base, seconds, poll.memory_size)

    def shown(self, name: str) -> Json:
        merged: dict[str, _Channel] = {}
        for names, alike in self.by_channels.items():
            for channel, part in zip(names, alike.channels(), strict=True):
                merged[channel] = merged[channel].merged_with(part) if channel in merged else part
        channels = [merged[channel].shown(channel) for channel in sorted(merged)]
        healths = [health.Health(*channel["health"]) for channel in channels]
        judged = health.of_topic(depth=self.depth, paused=self.paused, channels=healths, nodes=self.nodes)
        return {
            "name": name,
            "nodes": self.nodes,
            "depth": self.depth,
            "backend_depth": self.backend,
            "messages": self.messages,
            "rate": round(self.rate, 2),
            "paused": self.paused,
            "health": judged,
            "channels": channels,
        }


class _SameChannels:
    """A topic on those nsqds where it has the same channels, whose counts can be added column by column."""

    def __init__(self) -> None:
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

    def channels(self) -> Iterable[_Channel]:
        totals = tuple(_added(each.counts for each in self._summaries))
        changes = [0.0] * len(totals)
        for seconds, (now, then) in self._spans.items():
            changed = map(sub, _added(now), _added(then))
            changes = [rate + each / seconds for rate, each in zip(changes, changed, strict=True)]
        paused = map(any, zip(*(each.paused_channels for each in self._summaries), strict=True))
        for start, is_paused in zip(range(0, len(totals), _COLUMNS), paused, strict=True):
            end = start + _COLUMNS
            room = self._room(start) if changes[start + DEPTH] > 0 else None
            yield _Channel(totals[start:end], changes[start:end], is_paused, room)

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
    places = {name: number * _COLUMNS for number, name in enumerate(base.channels)}
    before: list[int] = []
    for start, name in zip(range(0, len(summary.counts), _COLUMNS), summary.channels, strict=True):
        counts, place = (base.counts, places[name]) if name in places else (summary.counts, start)
        before += counts[place : place + _COLUMNS]
    return tuple(before)


def _added(counts: Iterable[Counts]) -> Iterable[int]:
    return map(sum, zip(*counts, strict=True))


class _Channel(NamedTuple):
    """One channel, merged over several nsqds. ``changes`` are the changes of its counts per second."""

    counts: Counts
    changes: list[float]
    paused: bool
    room: int | None

    def merged_with(self, other: _Channel) -> _Channel:
        return _Channel(
            tuple(map(int.__add__, self.counts, other.counts)),
            [one + another for one, another in zip(self.changes, other.changes, strict=True)],
            self.paused or other.paused,
            None if self.room is None or other.room is None else self.room + other.room,
        )

    def shown(self, name: str) -> Json:
        counts, change = dict(zip(_SHOWN, self.counts, strict=True)), self.changes
        came = max(0.0, change[MESSAGES])
        taken = max(0.0, came - change[DEPTH] - change[IN_FLIGHT] - change[DEFERRED])
        state = health.ChannelState(
            depth=counts["depth"],
            in_flight=counts["in_flight"],
            clients=counts["clients"],
            paused=self.paused,
            growth=change[DEPTH],
            taken=taken,
            requeued=max(0.0, change[REQUEUED]),
            timed_out=max(0.0, change[TIMED_OUT]),
            room=self.room,
        )
        return {
            "name": name,
            **counts,
            "paused": self.paused,
            "rate": round(came, 2),
            "taken": round(taken, 2),
            "health": health.of_channel(state),
        }


def _describe_node(poll: NodePoll, now: float, newest: tuple[int, ...]) -> Json:
    told, summary = poll.node.info, poll.value
    silent = poll.silent(now)
    judged = health.of_node(
        error=poll.error,
        silent=silent,
        listed=poll.listed,
        health=summary.health if summary else "OK",
        outdated=version_number(told.version) < newest,
    )
    topics = summary.topics.values() if summary else ()
    return {
        "name": poll.node.name,
        "hostname": told.hostname,
        "tcp_port": told.tcp_port,
        "version": told.version,
        "zone": told.topology_zone,
        "region": told.topology_region,
        "health": judged,
        "silent": round(silent, 1),
        "start_time": summary.start_time if summary else 0,
        "topics": len(topics),
        "depth": sum(topic.depth for topic in topics)
        + sum(sum(topic.counts[DEPTH::_COLUMNS]) for topic in topics),
        "messages": sum(topic.messages for topic in topics),
        "clients": sum(sum(topic.counts[CLIENTS::_COLUMNS]) for topic in topics),
        "memory": summary.memory if summary else {},
    }
