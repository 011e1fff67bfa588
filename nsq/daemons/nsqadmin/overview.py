"""The state of the whole cluster, which the page polls: topics, channels and nsqds, with rates and health.

Every upstream is polled by a task of its own. ``Overview.look`` waits for them a moment and then uses their
last replies, so that a slow nsqd delays no page; the page marks it as slow. However many pages are open, no
upstream is polled more than once a second. ``Overview.watch`` polls every 10 s also while no page is open, so
that a page shows curves of the last minutes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from nsq.daemons.nsqadmin import health
from nsq.daemons.nsqadmin.aggregate import Json
from nsq.daemons.nsqadmin.cluster import Cluster, get
from nsq.errors import NsqError
from nsq.http.calls import json_value
from nsq.http.cluster import (
    CLIENTS,
    DEPTH,
    DROPPED,
    REQUEUED,
    TIMED_OUT,
    Channel,
    Node,
    Summary,
    Topic,
    Track,
    merge_nodes,
    merge_topics,
    newest_version,
    summarize,
    version_number,
)
from nsq.http.nsqd import stats_args
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
#: Seconds between two polls while no page is open, and between two points of the curves.
_WATCHED_EVERY = 10.0
#: How long the curves are, in seconds.
_HISTORY = 300.0
#: How long an nsqd stays on the page when no nsqlookupd lists it any more.
_REMEMBERED = 3600.0


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
        self.track = Track(_BASE)


class Overview:
    """Makes the JSON of /api/overview."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._clock = clock
        self._directory: dict[str, Poll[Any]] = {}  # by nsqlookupd, or without one by nsqd
        self._nodes: dict[str, NodePoll] = {}
        self.history = History()
        self._last: tuple[float, Json] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[Json] | None = None
        self._reading = asyncio.Lock()

    async def look(self, within: float = _FRESH) -> Json:
        """Return the overview, which may be ``within`` seconds old."""
        if self._last is not None and self._is_younger(within):
            return self._last[1]
        return await asyncio.shield(self._begin())

    def watch(self) -> None:
        """Poll now and then until ``close``."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="overview-watch")

    async def _watch(self) -> None:
        while True:
            try:
                await self.look(_WATCHED_EVERY / 2)
            except Exception as error:
                context = {"message": "watching the cluster failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            await asyncio.sleep(_WATCHED_EVERY)

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
        tasks = [
            task
            for task in [self._watching, self._looking, *(poll.task for poll in polls)]
            if task is not None
        ]
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
        self.history.add(shown)
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
        args = stats_args(include_mem=True)

        async def ask() -> Summary:
            stats = self._cluster.ask(get(poll.node.url, "/stats", args, lambda reply: reply))
            if poll.track.memory_size is None:
                reply, poll.track.memory_size = await asyncio.gather(stats, self._memory_size(poll.node))
            else:
                reply = await stats
            at = self._clock()
            async with self._reading:  # one at a time; the event loop serves others in between
                await asyncio.sleep(0)
                return poll.track.add(summarize(json_value(reply), at))

        return ask

    async def _memory_size(self, node: Node) -> int:
        """Return how many messages a channel of the nsqd keeps in memory; 0 if unknown."""
        try:
            size = await self._cluster.ask(get(node.url, "/config/mem_queue_size", {}, json_value))
        except NsqError:
            return 0
        return size if type(size) is int and size > 0 else 0


class History:
    """Figures of the last minutes, by the names that the page gives them: the points of its curves."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()
        self._figures: dict[str, deque[float]] = {}

    def add(self, overview: Json) -> None:
        """Keep the overview's figures, unless the last ones are recent."""
        now, times = round(overview["time"], 1), self._times
        if times and 0 <= now - times[-1] < _WATCHED_EVERY * 0.9:
            return
        if times and now < times[-1]:  # the clock was set back
            times.clear()
            self._figures.clear()
        times.append(now)
        while times[0] < now - _HISTORY:
            times.popleft()
        figures = dict(_figures_of(overview))
        self._figures = {name: self._figures.get(name, deque()) for name in figures}
        for name, figure in figures.items():
            kept = self._figures[name]
            kept.append(figure)
            while len(kept) > len(times):
                kept.popleft()

    def shown(self) -> Json:
        """Return the times, and for each name the figures at the last of these times."""
        return {
            "times": list(self._times),
            "figures": {name: list(figures) for name, figures in self._figures.items()},
        }


def _figures_of(overview: Json) -> Iterable[tuple[str, float]]:
    total = rate = 0
    for topic in overview["topics"]:
        name, waiting = topic["name"], topic["depth"]
        for channel in topic["channels"]:
            waiting += channel["depth"]
            yield f"channel {name} {channel['name']}", channel["depth"]
        yield f"topic {name}", waiting
        total += waiting
        rate += topic["rate"]
    yield "waiting", total
    yield "rate", round(rate, 2)
    for node in overview["nodes"]:
        yield f"memory {node['name']}", node["memory"].get("heap_in_use_bytes", 0)
        yield f"pause {node['name']}", node["memory"].get("gc_pause_usec_99", 0)
        yield f"depth {node['name']}", node["depth"]


# Its JSON. Pure, except that it reads the polls.


def describe(polls: list[NodePoll], known_topics: Iterable[str], now: float) -> Json:
    newest = newest_version(poll.node for poll in polls)
    counted = [
        poll.track
        for poll in polls
        if poll.value is not None and poll.listed and now - poll.value.at < _TRUSTED
    ]
    return {
        "time": now,
        "topics": [_describe_topic(topic) for topic in merge_topics(counted, known_topics)],
        "nodes": [_describe_node(poll, now, newest) for poll in polls],
    }


def _describe_topic(topic: Topic) -> Json:
    judged = [_judge(channel) for channel in topic.channels]
    return {
        "name": topic.name,
        "nodes": topic.nodes,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "stored_bytes": topic.stored_bytes,
        "messages": topic.messages,
        "rate": round(topic.rate, 2),
        "paused": topic.paused,
        "health": health.of_topic(
            depth=topic.depth,
            paused=topic.paused,
            channels=judged,
            nodes=topic.nodes,
            dropping=topic.dropping,
        ),
        "channels": [
            {
                "name": each.name,
                "depth": each.depth,
                "backend_depth": each.backend_depth,
                "in_flight": each.in_flight,
                "deferred": each.deferred,
                "requeued": each.requeued,
                "timed_out": each.timed_out,
                "dropped": each.dropped,
                "messages": each.messages,
                "clients": each.clients,
                "paused": each.paused,
                "rate": round(each.rate, 2),
                "finished": round(each.finished, 2),
                "health": worth,
            }
            for each, worth in zip(topic.channels, judged, strict=True)
        ],
    }


def _judge(channel: Channel) -> health.Health:
    return health.of_channel(
        health.ChannelState(
            depth=channel.depth,
            in_flight=channel.in_flight,
            clients=channel.clients,
            paused=channel.paused,
            growth=channel.changes[DEPTH],
            finished=channel.finished,
            requeued=max(0.0, channel.changes[REQUEUED]),
            timed_out=max(0.0, channel.changes[TIMED_OUT]),
            dropped=max(0.0, channel.changes[DROPPED]),
            room=channel.room,
        )
    )


def _describe_node(poll: NodePoll, now: float, newest: tuple[int, ...]) -> Json:
    info, summary = poll.node.info, poll.value
    silent = poll.silent(now)
    judged = health.of_node(
        error=poll.error,
        silent=silent,
        listed=poll.listed,
        health=summary.health if summary else "OK",
        outdated=version_number(info.version) < newest,
    )
    topics = summary.topics.values() if summary else ()
    return {
        "name": poll.node.name,
        "hostname": info.hostname,
        "tcp_port": info.tcp_port,
        "version": info.version,
        "zone": info.topology_zone,
        "region": info.topology_region,
        "health": judged,
        "silent": round(silent, 1),
        "start_time": summary.start_time if summary else 0,
        "topics": len(topics),
        "depth": sum(topic.depth + topic.column(DEPTH) for topic in topics),
        "messages": sum(topic.messages for topic in topics),
        "clients": sum(topic.column(CLIENTS) for topic in topics),
        "memory": summary.memory if summary else {},
    }
