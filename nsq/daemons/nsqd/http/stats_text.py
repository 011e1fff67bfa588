"""/stats as text for people: pure."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nsq.daemons.nsqd.stats import Json
from nsq.literals import format_duration


@dataclass(frozen=True)
class Snapshot:
    """Everything /stats shows, in the order of its JSON."""

    version: str
    health: str
    start_time: int
    topics: list[Json] | None
    memory: Json | None
    producers: list[Json] | None


def render(snapshot: Snapshot, now: float) -> str:
    return "\n".join(_lines(snapshot, now)) + "\n"


def _lines(snapshot: Snapshot, now: float) -> Iterator[str]:
    yield f"nsqd v{snapshot.version} (built w/{platform.python_implementation()} {platform.python_version()})"
    yield f"start_time {_rfc3339(snapshot.start_time)}"
    yield f"uptime {format_duration(max(0.0, now - snapshot.start_time))}"
    yield ""
    yield f"Health: {snapshot.health}"
    if snapshot.memory is not None:
        yield ""
        yield "Memory:"
        for name, value in snapshot.memory.items():
            yield f"   {name:<25}\t{value}"
    yield ""
    yield "Topics:" if snapshot.topics else "Topics: None"
    for place, topic in enumerate(snapshot.topics or ()):
        if place:
            yield ""
        yield from _topic(topic, now)
    yield ""
    yield "Producers:" if snapshot.producers else "Producers: None"
    for producer in snapshot.producers or ():
        yield f"   {_producer(producer, now)}"


def _topic(topic: Json, now: float) -> Iterator[str]:
    yield (
        f"{_paused(topic, '   ')}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
        f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: "
        f"{_latency(topic)}"
    )
    for channel in topic["channels"]:
        yield (
            f"{_paused(channel, '      ')}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} e2e%: "
            f"{_latency(channel)}"
        )
        for client in channel["clients"] or ():
            yield f"        {_consumer(client, now)}"


def _latency(thing: Json) -> str:
    percentiles = thing["e2e_processing_latency"]["percentiles"]
    return ", ".join(_rough_duration(entry["value"]) for entry in percentiles or ())


def _rough_duration(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds > size:
            return f"{nanoseconds / size:.1f}{unit}"
    return f"{nanoseconds:.1f}ns"


def _paused(thing: Json, margin: str) -> str:
    return margin[:-3] + "*P " if thing["paused"] else margin


def _consumer(client: Json, now: float) -> str:
    return (
        f"{_name(client)} state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} "
        f"re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8} "
        f"connected: {_since(client, now)}"
    )


def _producer(client: Json, now: float) -> str:
    counts = client["pub_counts"]
    total = sum(entry["count"] for entry in counts)
    topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in counts)
    return f"{_name(client)} msgs: {total:<8} topics: {topics} connected: {_since(client, now)}"


def _name(client: Json) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    return f"[{client['version']} {name:<21}]"


def _since(client: Json, now: float) -> str:
    return format_duration(max(0, int(now) - client["connect_ts"]))


def _rfc3339(seconds: int) -> str:
    text = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))
    return text[:-5] + "Z" if text.endswith("+0000") else f"{text[:-2]}:{text[-2:]}"
