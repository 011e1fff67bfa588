"""Publishing to a partitioned cluster: where messages go, what the result says, and what has to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import nsq
from nsq.testing import Nsqd, PartitionedCluster
from nsq.testing.plugin import partitioned_cluster as cluster

__all__ = ["cluster"]

#: Far beyond what anything here takes.
PATIENCE = 60.0


@pytest.fixture
def orders(cluster: PartitionedCluster) -> PartitionedCluster:
    cluster.create_topic("orders", partitions=4, channels=["billing"])
    return cluster


@contextmanager
def producing(cluster: PartitionedCluster, **options: Any) -> Iterator[nsq.Producer]:
    options = {"publish_timeout": PATIENCE, **options}
    with nsq.Producer(nsqlookupd=cluster.lookup_addresses, **options) as producer:
        yield producer


def bodies(cluster: PartitionedCluster, topic: str = "orders", partitions: int = 4) -> list[list[bytes]]:
    """Return what each partition holds."""
    return [[message.body for message in cluster.messages(topic, number)] for number in range(partitions)]


def test_a_key_always_leads_to_the_same_partition_and_others_go_to_all(orders: PartitionedCluster) -> None:
    with producing(orders) as producer:
        for number in range(8):
            producer.publish("orders", b"keyed", key="customer-42")
            producer.publish("orders", b"%d" % number)
    found = bodies(orders)
    assert sorted(each.count(b"keyed") for each in found) == [0, 0, 0, 8]
    assert all(len(each) > each.count(b"keyed") for each in found)


def test_a_result_says_where_the_message_is_stored(orders: PartitionedCluster) -> None:
    orders.create_topic("events", extended=True)
    with producing(orders) as producer:
        traced = producer.publish("orders", b"traced", partition=1, trace=2**64 - 1)
        batch = producer.multi_publish("orders", [b"one", b"two"], partition=1, trace=7)
        extended = producer.publish("events", b"x", headers={"k": "v"}, tag="green", trace=9)
        plain = producer.publish("orders", b"plain")
    first, second, third = orders.messages("orders", 1)[:3]
    assert traced == (first.internal_id, 2**64 - 1, first.offset, first.size)
    assert batch == (second.internal_id, 7, second.offset, second.size + third.size)
    assert (second.trace_id, third.trace_id) == (7, 7)
    (event,) = orders.messages("events", 0)
    assert extended == (event.internal_id, 9, event.offset, event.size)
    assert event.headers == {"k": "v", "##trace_id": "9", "##client_dispatch_tag": "green"}
    assert plain == (None, None, None, None)


def test_a_keyed_publish_waits_for_its_partition_and_then_fails_by_name(orders: PartitionedCluster) -> None:
    with PartitionedCluster(nodes=2, quorum_timeout=0.2) as cluster:
        cluster.create_topic("orders", placement=[[0], [1]])
        with producing(cluster) as producer:
            producer.publish("orders", b"before", partition=0)
            cluster.nodes[0].kill()
            with pytest.raises((nsq.PublishFailed, nsq.PublishUncertain), match="partition 0"):
                producer.publish("orders", b"too late", partition=0, timeout=1.0)
            producer.publish("orders", b"to the other one")
            cluster.nodes[0].restart()
            producer.publish("orders", b"after", partition=0)
        assert cluster.messages("orders", 0)[-1].body == b"after"
        assert [message.body for message in cluster.messages("orders", 1)] == [b"to the other one"]


def test_a_lost_quorum_holds_publishes_up_until_it_is_back() -> None:
    with PartitionedCluster(quorum_timeout=0.3) as cluster:
        cluster.create_topic("orders", placement=[[0, 1]])
        with producing(cluster) as producer:
            producer.publish("orders", b"before")
            cluster.nodes[1].kill()
            pending = producer.publish_async("orders", b"meanwhile")
            time.sleep(0.6)  # it is refused at least once
            cluster.nodes[1].restart()
            pending.result(PATIENCE)
        assert [message.body for message in cluster.messages("orders", 0)] == [b"before", b"meanwhile"]


def test_a_producer_has_two_threads_for_each_nsqd_and_not_for_each_partition() -> None:
    with PartitionedCluster() as cluster:
        cluster.create_topic("orders", partitions=60)
        before = threading.active_count()
        with producing(cluster) as producer:
            pending = [producer.publish_async("orders", b"x", partition=number) for number in range(60)]
            for each in pending:
                each.result(PATIENCE)
            more = threading.active_count() - before
        assert more < 3 * 2 + 10
    assert more >= 3 * 2


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"partition": 0}, {"trace": 1}, {"headers": {"k": "v"}}, {"tag": "green"}]
)
def test_the_original_nsq_is_named_when_it_lacks_an_option(
    options: dict[str, Any], nsqd: Nsqd, nsqlookupd: Any
) -> None:
    (option,) = options
    with nsq.Producer(nsqd.tcp_address) as producer, pytest.raises(nsq.UsageError, match=option):
        producer.publish("orders", b"x", **options)
    with (
        nsq.Producer(nsqlookupd=nsqlookupd.http_address) as producer,
        pytest.raises(nsq.UsageError, match=option),
    ):
        producer.publish("orders", b"x", timeout=PATIENCE, **options)
