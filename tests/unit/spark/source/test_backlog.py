from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from nsq.http.nsqd import ChannelStats, NsqdStats, TopicStats
from nsq.spark.source.backlog import Backlog, added, counts, measure, next_port
from nsq.spark.source.options import SourceOptions


def channel(
    name: str, depth: int = 0, in_flight: int = 0, deferred: int = 0, paused: bool = False
) -> ChannelStats:
    return {
        "channel_name": name,
        "depth": depth,
        "backend_depth": 0,
        "in_flight_count": in_flight,
        "deferred_count": deferred,
        "message_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
        "paused": paused,
        "clients": [],
    }


def topic(name: str, *channels: ChannelStats, depth: int = 0, paused: bool = False) -> TopicStats:
    return {
        "topic_name": name,
        "channels": list(channels),
        "depth": depth,
        "backend_depth": 0,
        "message_count": 0,
        "paused": paused,
    }


def stats(*topics: TopicStats) -> NsqdStats:
    return {"version": "1.3.0", "health": "OK", "topics": list(topics)}


def test_the_backlog_counts_the_channel_and_what_its_topic_still_holds() -> None:
    counted = stats(
        topic("other", channel("mine", 9)),
        topic("orders", channel("else", 8), channel("mine", 5, 3, 2), depth=1),
    )
    assert counts(counted, "orders".__eq__, "mine") == Backlog(depth=6, in_flight=3, deferred=2, asked=1)


def test_the_backlog_of_a_channel_that_is_not_created_yet_is_that_of_its_topic() -> None:
    assert counts(stats(topic("orders", depth=7)), "orders".__eq__, "mine") == Backlog(depth=7, asked=1)


def test_a_topic_that_does_not_exist_has_no_backlog() -> None:
    assert counts(stats(), "orders".__eq__, "mine") == Backlog(asked=1)


def test_a_paused_topic_pauses_its_channels() -> None:
    assert counts(stats(topic("orders", channel("mine"), paused=True)), "orders".__eq__, "mine").paused
    assert counts(stats(topic("orders", channel("mine", paused=True))), "orders".__eq__, "mine").paused


def test_the_backlogs_of_several_nsqds_are_added_up() -> None:
    one, other = Backlog(1, 2, 3, asked=1, paused=True), Backlog(10, 20, 30, asked=1)
    assert added([one, other]) == Backlog(11, 22, 33, False, 2)
    assert added([one]).paused
    assert added([]) == Backlog()


def test_messages_received_since_the_measurement_are_not_expected() -> None:
    asked = Backlog(depth=90, in_flight=10, deferred=5, asked=1, received=1000)
    assert [asked.unreceived(now) for now in (1000, 1060, 1100, 5000)] == [100, 40, 0, 0]


def test_a_run_waits_for_depth_and_on_request_for_messages_in_flight() -> None:
    backlog = Backlog(1, 20, 300)
    assert (backlog.waiting(True), backlog.waiting(False)) == (321, 1)


@pytest.mark.parametrize(
    ("tcp", "http"), [("host:4150", "host:4151"), ("[::1]:4150", "[::1]:4151"), ("host", "host")]
)
def test_http_is_a_port_further(tcp: str, http: str) -> None:
    assert next_port(tcp) == http


@pytest.mark.parametrize(("topics", "lookups"), [(10, 10), (11, 0)])
def test_many_topics_are_not_looked_up_one_by_one(
    topics: int, lookups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with trigger(availableNow=True) measures the backlog twice a second."""

    def places(lookupds: object, config: object, asked_for: Collection[str]) -> tuple[list[Any], list[Any]]:
        assert len(asked_for) == lookups  # none: all nsqds
        return [], []

    monkeypatch.setattr("nsq.spark.lookups.places", places)
    names = tuple(f"orders-{number}" for number in range(topics))
    options = SourceOptions(topics=names, channel="spark", wal="/wal", lookupd=("lookup:4161",))
    assert measure(options, 7).received == 7
