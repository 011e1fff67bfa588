from __future__ import annotations

import pytest

from nsq.config import Config
from nsq.errors import UsageError
from nsq.http.nsqd import ChannelStats, NsqdStats, TopicStats
from nsq.spark import lookups
from nsq.spark.lookups import Place

pytest.importorskip("pyspark")

from nsq.spark.batch import PeekOptions, safe_places

A, B = Place("a:4150", "a:4151"), Place("b:4150", "b:4151")


def channel(name: str) -> ChannelStats:
    return {
        "channel_name": name,
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "message_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
        "paused": False,
        "clients": [],
    }


def topic(*channels: str) -> TopicStats:
    return {
        "topic_name": "orders",
        "channels": [channel(name) for name in channels],
        "depth": 3,
        "backend_depth": 0,
        "message_count": 3,
        "paused": False,
    }


def safe(found: list[Place], **channels: list[str] | None) -> list[Place]:
    """By the host's name: the channels of its topic, or None if it has no such topic."""

    def stats_of(nsqd: str, config: Config, wanted: str) -> NsqdStats:
        assert wanted == "orders"
        names = channels[nsqd[0]]
        return {"version": "1.3.0", "health": "OK", "topics": [] if names is None else [topic(*names)]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "stats_of", stats_of)
        return safe_places(found, PeekOptions(mode="peek", topic="orders", nsqd=("a:4150",)))


def test_a_topic_with_a_lasting_channel_can_be_looked_at() -> None:
    assert safe([A], a=["billing", "tail#ephemeral"]) == [A]


def test_a_topic_without_a_channel_keeps_what_a_look_would_take() -> None:
    with pytest.raises(UsageError, match="'orders' has no lasting channel on a:4150") as told:
        safe([A], a=[])
    assert "\n" not in str(told.value)


def test_channels_that_may_leave_at_any_moment_do_not_count() -> None:
    with pytest.raises(UsageError, match="no lasting channel"):
        safe([A], a=["tail#ephemeral", "nsq-peek-1#ephemeral"])


def test_an_nsqd_without_the_topic_is_left_alone() -> None:
    """Subscribing would create it there."""
    assert safe([A, B], a=None, b=["billing"]) == [B]


def test_one_where_a_look_takes_something_forbids_all() -> None:
    with pytest.raises(UsageError, match="b:4150"):
        safe([A, B], a=["billing"], b=[])


def test_a_topic_that_is_nowhere_is_told() -> None:
    with pytest.raises(UsageError, match="no nsqd has a topic 'orders'"):
        safe([A, B], a=None, b=None)
    with pytest.raises(UsageError, match="no nsqd has a topic 'orders'"):
        safe([])
