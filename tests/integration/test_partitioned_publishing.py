"""Publishing to a partitioned cluster whose leaders move, whose nodes die and whose nsqlookupds mislead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import nsq
from nsq.testing import Nsqd, PartitionedCluster
from nsq.testing.partitioned import Node
from nsq.testing.plugin import partitioned_cluster as cluster

__all__ = ["cluster"]

#: Far beyond what anything here takes.
PATIENCE = 60.0
#: What a move may cost a publisher, with the margin that a busy machine needs.
MOVE = 3.0


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


def leading(cluster: PartitionedCluster, partition: int = 0) -> Node:
    leader = cluster.leader("orders", partition)
    assert leader is not None
    return leader


class Stream:
    """A thread that publishes numbered messages to each partition in turn, and notes the longest wait.

    What is uncertain it publishes again.
    """

    def __init__(self, producer: nsq.Producer) -> None:
        self.published = [0, 0, 0, 0]
        self.longest = 0.0
        self.repeated = 0
        self._producer = producer
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for partition in range(4):
                    began = time.monotonic()
                    body = b"%d" % self.published[partition]
                    while not self._publish(body, partition):
                        self.repeated += 1
                    self.published[partition] += 1
                    self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as error:
            self._error = error

    def _publish(self, body: bytes, partition: int) -> bool:
        try:
            self._producer.publish("orders", body, partition=partition)
        except nsq.PublishUncertain:
            return False
        return True

    def wait_for_more(self, count: int = 40) -> None:
        aim = [number + count for number in self.published]
        deadline = time.monotonic() + PATIENCE
        while any(have < wanted for have, wanted in zip(self.published, aim, strict=True)):
            assert self._error is None, self._error
            assert time.monotonic() < deadline, f"nothing more is published: {self.published}, {aim}"
            time.sleep(0.005)

    def __enter__(self) -> Stream:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error


def check(stream: Stream, cluster: PartitionedCluster) -> None:
    """Everything acknowledged is stored in its order; a message may be stored twice in a row."""
    for found, count in zip(bodies(cluster), stream.published, strict=True):
        assert list(dict.fromkeys(found))[:count] == [b"%d" % number for number in range(count)]
        assert found == sorted(found, key=int)


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


def test_a_move_of_the_leader_costs_a_publisher_little(orders: PartitionedCluster) -> None:
    with producing(orders) as producer, Stream(producer) as stream:
        for partition in (0, 1, 2, 3, 0, 1):
            orders.move_leader("orders", partition)
            stream.wait_for_more()
    assert stream.longest < MOVE
    assert stream.repeated == 0
    check(stream, orders)


def test_all_nodes_restart_one_after_the_other(orders: PartitionedCluster) -> None:
    with producing(orders) as producer, Stream(producer) as stream:
        for node in orders.nodes:
            node.kill()
            orders.wait_until_writable("orders")
            stream.wait_for_more()
            node.restart()
    check(stream, orders)


def test_a_node_that_stalls_is_left_and_found_again(orders: PartitionedCluster) -> None:
    with producing(orders, publish_timeout=1.0) as producer, Stream(producer) as stream:
        stalled = leading(orders)
        stalled.stall()
        orders.wait_until_writable("orders")
        stream.wait_for_more()
        stalled.resume()
        orders.move_leader("orders", 0, to=stalled)
        stream.wait_for_more()
    check(stream, orders)


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


def test_a_nsqlookupd_that_lags_or_lies_misleads_no_publish(orders: PartitionedCluster) -> None:
    orders.lookups[1].freeze()
    with producing(orders) as producer, Stream(producer) as stream:
        for partition in range(4):
            orders.move_leader("orders", partition)
            stream.wait_for_more()
        for partition in range(4):
            wrong = next(node for node in orders.nodes if node is not leading(orders, partition))
            orders.lookups[1].claim("orders", partition, wrong)
        orders.move_leader("orders", 0)
        stream.wait_for_more()
    check(stream, orders)


def test_one_nsqlookupd_is_enough_while_the_others_are_gone(orders: PartitionedCluster) -> None:
    with producing(orders) as producer, Stream(producer) as stream:
        for lookup in orders.lookups:
            lookup.kill()
            orders.move_leader("orders", 0)
            stream.wait_for_more()
            lookup.restart()
        orders.lookups[0].stall()
        orders.move_leader("orders", 1)
        stream.wait_for_more()
        orders.lookups[0].resume()
    check(stream, orders)


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
