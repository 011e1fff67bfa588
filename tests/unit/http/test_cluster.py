"""The model of a cluster: nsqds from the lists of nsqlookupds, topics and channels from statistics."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nsq.http.cluster import DROPPED, Track, count_topics, merge_lookups, merge_nodes, merge_topics, summarize
from nsq.http.nsqd import NsqdStats
from nsq.http.nsqlookupd import Lookup, RegisteredNode


def registered(host: str, **more: Any) -> RegisteredNode:
    given = {"broadcast_address": host, "tcp_port": 4150, "http_port": 4151, "hostname": host, **more}
    return RegisteredNode(**given)


def stats(depth: int = 0, messages: int = 0, *, started: int = 1, channels: str = "ab") -> dict[str, Any]:
    counts = {"backend_depth": 0, "in_flight_count": 1, "deferred_count": 2, "requeue_count": messages // 10}
    counts |= {"timeout_count": 0, "message_count": messages, "client_count": 3, "depth": depth}
    given = [{"channel_name": name, **counts, "paused": name == "b"} for name in channels]
    topic = {"topic_name": "orders", "depth": 1, "message_count": messages, "channels": given}
    return {"health": "OK", "start_time": started, "topics": [topic]}


def test_an_nsqd_that_two_nsqlookupds_list_is_one_node() -> None:
    both = ("x", "y")
    nodes = merge_nodes(
        {
            "a:4161": [registered("n2"), registered("n1", topics=both, tombstones=(True, True))],
            "b:4161": [registered("n1", topics=both, tombstones=(True, False), remote_address="r:1")],
        }
    )
    assert [(node.name, dict(node.topics)) for node in nodes] == [
        ("n1:4151", {"x": True, "y": False}),  # tombstoned only if all say so
        ("n2:4151", {}),
    ]
    assert nodes[0].registrations == ("a:4161/", "b:4161/r:1")
    lookups = [Lookup((), (registered("n1"),)), Lookup((), (registered("n1"), registered("n2")))]
    assert [node.name for node in merge_lookups(lookups)] == ["n1:4151", "n2:4151"]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"http_port": 99999}, "Port out of range"),
        ({"http_port": 0}, "HTTP port is 0"),
        ({"tcp_port": 0}, "port '0'"),
        ({"broadcast_address": "[::1"}, "address '[[::1]:4151' is not a URL"),
        ({"broadcast_address": "u@h"}, "holds a user name"),
        ({"broadcast_address": "unix:/x"}, "'unix:/x' is not a host"),
        ({"broadcast_address": "a b"}, "'a b:4150' is not host:port"),
        ({"broadcast_address": ""}, "':4150' is not host:port"),
    ],
)
def test_a_node_says_why_its_registered_addresses_are_unusable(broken: dict[str, Any], reason: str) -> None:
    (node,) = merge_nodes({"a:4161": [registered("n1", **{"hostname": "machine", **broken})]})
    assert node.problem.startswith("machine is registered with addresses that cannot be used")
    assert reason in node.problem


def test_usable_addresses_are_no_problem() -> None:
    nodes = merge_nodes({"a:4161": [registered(host) for host in ("n1", "10.0.0.7", "::1")]})
    assert [node.problem for node in nodes] == ["", "", ""]


def test_statistics_of_several_nsqds_are_added_up() -> None:
    given = [stats(depth=2, messages=10), stats(depth=3, messages=10, channels="bc")]
    (known, orders) = count_topics([cast("NsqdStats", each) for each in given], known=["old"])
    assert (known.name, known.nodes, known.channels) == ("old", 0, ())
    assert (orders.nodes, orders.depth, orders.messages, orders.paused) == (2, 2, 20, False)
    assert [
        (each.name, each.depth, each.in_flight, each.clients, each.paused) for each in orders.channels
    ] == [
        ("a", 2, 1, 3, False),
        ("b", 5, 2, 6, True),
        ("c", 3, 1, 3, False),
    ]
    assert orders.channels[1].rate == 0.0


def partitions(*led: str, replicas: str = "", messages: int = 10) -> dict[str, Any]:
    """What a partitioned nsqd answers: a topic for each partition, with bytes as its depth."""
    topics = []
    for partition in (*led, *replicas):
        (topic,) = stats(depth=2, messages=messages)["topics"]
        topic |= {"topic_partition": partition, "is_leader": partition in led, "depth": 500}
        for channel in topic["channels"]:
            channel["client_num"] = channel.pop("client_count")
        topics.append(topic)
    return {"health": "OK", "start_time": 1, "topics": topics}


def test_a_topic_is_added_up_over_the_partitions_that_an_nsqd_leads() -> None:
    given = [partitions("0", "2", replicas="13"), partitions("1", replicas="02"), partitions(replicas="3")]
    (orders,) = count_topics([cast("NsqdStats", each) for each in given])
    assert (orders.nodes, orders.messages) == (2, 30)
    assert (orders.depth, orders.backend_depth, orders.stored_bytes) == (0, 0, 1500)
    assert [(each.name, each.depth, each.clients, each.paused) for each in orders.channels] == [
        ("a", 6, 9, False),
        ("b", 6, 9, True),
    ]


def test_a_partition_that_comes_to_another_leader_is_not_taken_for_new_messages() -> None:
    track = Track()
    for second, led in ((0.0, "0"), (1.0, "01")):
        track.add(summarize(partitions(*led, messages=1000), second))
    (orders,) = merge_topics([track])
    assert (orders.messages, orders.rate, orders.channels[0].rate) == (2000, 0.0, 0.0)


def test_rates_cover_the_span_of_a_track() -> None:
    track = Track(span=5.0)
    rates = []
    for second in range(0, 14, 2):
        track.add(summarize(stats(messages=second * second), float(second)))
        (topic,) = merge_topics([track])
        rates.append(topic.rate)
    # Since 0, 0, 0, 0, 0, then since 6, for a base is replaced when the next one is 5 s old.
    assert rates == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 18.0]


def test_a_restarted_nsqd_counts_from_zero_and_has_no_rate() -> None:
    track = Track()
    for second, messages, started in ((0.0, 100, 1), (1.0, 120, 1), (2.0, 500, 2)):
        track.add(summarize(stats(messages=messages, started=started), second))
    (topic,) = merge_topics([track])
    assert (topic.messages, topic.rate) == (500, 0.0)
    track.add(summarize(stats(messages=510, started=2), 3.0))
    (topic,) = merge_topics([track])
    assert (topic.rate, topic.channels[0].rate, topic.channels[0].finished) == (10.0, 10.0, 10.0)


def test_what_an_nsqd_drops_is_neither_delivered_nor_finished() -> None:
    track = Track()
    for at, dropped in ((0.0, 0), (10.0, 50)):
        counted = stats(depth=100, messages=10 * dropped)
        for topic in counted["topics"]:
            topic["dropped_count"] = 2 * dropped
            for channel in topic["channels"]:
                channel["dropped_count"] = dropped
        track.add(summarize(counted, at))
    (topic,) = merge_topics([track])
    assert topic.dropping == 10.0
    assert {(each.dropped, each.changes[DROPPED]) for each in topic.channels} == {(50, 5.0)}
    assert {(each.rate, each.delivered, each.finished) for each in topic.channels} == {(50.0, 45.0, 45.0)}
