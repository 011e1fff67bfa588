"""nsqd's statistics as rows, one for each channel. Pure; imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nsq.http.nsqd import ChannelStats, Latency, NsqdStats, TopicStats

COLUMNS = {
    "nsqd": "string",
    "topic": "string",
    "channel": "string",
    "depth": "bigint",
    "backend_depth": "bigint",
    "in_flight": "bigint",
    "deferred": "bigint",
    "requeued": "bigint",
    "timed_out": "bigint",
    "message_count": "bigint",
    "clients": "int",
    "paused": "boolean",
    "topic_depth": "bigint",
    "topic_paused": "boolean",
    "e2e_latency": "map<string,double>",
    "error": "string",
}
"""Names and types, as Spark writes them."""

_NANOSECONDS = 1e-9

Row = dict[str, Any]


def rows(nsqd: str, stats: NsqdStats, channel: str = "") -> Iterator[Row]:
    """A topic that has no channel yet is a row without one, unless a certain channel is wanted."""
    for topic in stats["topics"]:
        for each in topic["channels"]:
            yield _of_channel(nsqd, topic, each)
        if not topic["channels"] and not channel:
            yield _of_topic(nsqd, topic)


def failed(nsqd: str, fault: Exception) -> Row:
    """The row of one that did not answer."""
    return {"nsqd": nsqd, "error": str(fault)}


def projected(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    """What is not known is null."""
    return tuple(row.get(name) for name in columns)


def _of_channel(nsqd: str, topic: TopicStats, channel: ChannelStats) -> Row:
    return {
        **_of_topic(nsqd, topic),
        "channel": channel["channel_name"],
        "depth": channel["depth"],
        "backend_depth": channel["backend_depth"],
        "in_flight": channel["in_flight_count"],
        "deferred": channel["deferred_count"],
        "requeued": channel["requeue_count"],
        "timed_out": channel["timeout_count"],
        "message_count": channel["message_count"],
        "clients": channel.get("client_count"),
        "paused": channel["paused"],
        "e2e_latency": _latency(channel.get("e2e_processing_latency")),
    }


def _of_topic(nsqd: str, topic: TopicStats) -> Row:
    return {
        "nsqd": nsqd,
        "topic": topic["topic_name"],
        "depth": topic["depth"],
        "backend_depth": topic["backend_depth"],
        "message_count": topic["message_count"],
        "paused": topic["paused"],
        "topic_depth": topic["depth"],
        "topic_paused": topic["paused"],
        "e2e_latency": _latency(topic.get("e2e_processing_latency")),
    }


def _latency(told: Latency | None) -> dict[str, float] | None:
    """``{"p99": seconds}``; None unless nsqd was told to measure it."""
    percentiles = (told or {}).get("percentiles") or []
    if not percentiles:
        return None
    return {f"p{each['quantile'] * 100:g}": each["value"] * _NANOSECONDS for each in percentiles}
