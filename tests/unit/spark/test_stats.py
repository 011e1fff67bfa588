from __future__ import annotations

from nsq.http.nsqd import ChannelStats, NsqdStats, TopicStats
from nsq.spark.stats import COLUMNS, stats_rows

CHANNEL: ChannelStats = {
    "channel_name": "billing",
    "depth": 4,
    "backend_depth": 1,
    "in_flight_count": 2,
    "deferred_count": 3,
    "message_count": 20,
    "requeue_count": 5,
    "timeout_count": 6,
    "paused": True,
    "clients": [],
    "client_count": 7,
    "e2e_processing_latency": {
        "count": 2,
        "percentiles": [{"quantile": 0.99, "value": 1_500_000_000}, {"quantile": 0.999, "value": 2e9}],
    },
}


def topic(*channels: ChannelStats) -> TopicStats:
    return {
        "topic_name": "orders",
        "channels": list(channels),
        "depth": 9,
        "backend_depth": 8,
        "message_count": 30,
        "paused": False,
    }


def stats(*topics: TopicStats) -> NsqdStats:
    return {"version": "1.3.0", "health": "OK", "topics": list(topics)}


def test_each_channel_is_a_row() -> None:
    other: ChannelStats = {**CHANNEL, "channel_name": "archive", "client_count": 0}

    first, second = stats_rows("a:4151", stats(topic(CHANNEL, other)))

    assert first == {
        "nsqd": "a:4151",
        "topic": "orders",
        "channel": "billing",
        "depth": 4,
        "backend_depth": 1,
        "in_flight": 2,
        "deferred": 3,
        "requeued": 5,
        "timed_out": 6,
        "message_count": 20,
        "clients": 7,
        "paused": True,
        "topic_depth": 9,
        "topic_paused": False,
        "e2e_latency": {"p99": 1.5, "p99.9": 2.0},
    }
    assert (second["channel"], second["clients"]) == ("archive", 0)


def test_a_topic_without_a_channel_is_a_row_of_its_own() -> None:
    (row,) = stats_rows("a:4151", stats(topic()))

    assert (row["topic"], row.get("channel"), row["depth"], row["topic_depth"]) == ("orders", None, 9, 9)
    assert row["e2e_latency"] is None


def test_a_topic_without_channels_is_no_row_when_a_channel_is_requested() -> None:
    assert list(stats_rows("a:4151", stats(topic()), "billing")) == []


def test_every_row_has_columns_that_are_declared() -> None:
    found = [*stats_rows("a", stats(topic(CHANNEL), topic())), {"error": "no answer"}]

    assert set().union(*found) == set(COLUMNS)
