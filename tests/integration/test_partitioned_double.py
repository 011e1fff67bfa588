"""What a test can do to the double of the partitioned NSQ, seen through bare connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from nsq.errors import UsageError
from nsq.testing import PartitionedCluster, V2Client
from nsq.testing.daemons.http import ask
from nsq.testing.partitioned import Lookup, Node
from nsq.testing.plugin import partitioned_cluster as cluster
from nsq.testing.v2 import PeerClosed
from nsq.wire import commands

NOT_LEADER = "E_FAILED_ON_NOT_LEADER"

__all__ = ["cluster"]


def lookup(there: Lookup, topic: str, access: str = "w") -> dict[str, int]:
    """Return the TCP port of each partition's leader, as this nsqlookupd shows it."""
    reply = ask(there.http_address, "GET", f"/lookup?topic={topic}&access={access}", None, {}, timeout=20)
    return {number: node["tcp_port"] for number, node in json.loads(reply.body)["data"]["partitions"].items()}


def port(node: Node | None) -> int:
    assert node is not None
    return int(node.tcp_address.rpartition(":")[2])


def leading(cluster: PartitionedCluster, topic: str = "orders", partition: int = 0) -> Node:
    leader = cluster.leader(topic, partition)
    assert leader is not None
    return leader


@contextmanager
def talking(node: Node) -> Iterator[V2Client]:
    with V2Client(node.tcp_address) as client:
        client.identify()
        yield client


def publish(client: V2Client, body: bytes, partition: int = 0) -> None:
    client.send(commands.pub(f"orders {partition}", body))


def consume(client: V2Client, verb: str = "SUB", partition: int = 0) -> None:
    client.send(f"{verb} orders billing {partition}\nRDY 10\n".encode())
    client.expect_ok()


@pytest.fixture
def orders(cluster: PartitionedCluster) -> PartitionedCluster:
    cluster.create_topic("orders", partitions=3, channels=["billing"])
    return cluster


@pytest.mark.parametrize("process", [False, True])
def test_a_cluster_runs_in_a_thread_or_in_a_process_of_its_own(process: bool) -> None:
    with PartitionedCluster(process=process) as cluster:
        cluster.create_topic("orders")
        with talking(leading(cluster)) as client:
            publish(client, b"first")
            client.expect_ok()
        (message,) = cluster.messages("orders", 0)
        assert (message.body, message.offset, message.size, message.headers) == (b"first", 0, 35, {})
        assert leading(cluster).received["PUB"] == 1
        with pytest.raises(UsageError, match="no topic 'refunds'"):
            cluster.messages("refunds", 0)


def test_partitions_are_led_by_the_nodes_in_turn_and_nsqlookupds_show_it(orders: PartitionedCluster) -> None:
    expected = {str(number): port(orders.leader("orders", number)) for number in range(3)}
    assert len(set(expected.values())) == 3
    for each in orders.lookups:
        assert lookup(each, "orders", "r") == lookup(each, "orders", "w") == expected


def test_a_moved_leader_refuses_publishes_and_ends_subscriptions(orders: PartitionedCluster) -> None:
    old = leading(orders)
    with talking(old) as producer, talking(old) as consumer:
        consume(consumer)
        new = orders.move_leader("orders", 0)
        assert new is leading(orders)
        assert new is not old
        consumer.expect_closed()
        publish(producer, b"late")
        producer.expect_error(NOT_LEADER)
        assert lookup(orders.lookups[1], "orders")["0"] == port(new)
    with talking(new) as producer:
        publish(producer, b"in time")
        producer.expect_ok()
    assert [message.body for message in orders.messages("orders", 0)] == [b"in time"]


def test_another_node_leads_after_a_kill_and_has_all_messages(orders: PartitionedCluster) -> None:
    killed = leading(orders)
    with talking(killed) as client:
        publish(client, b"acknowledged")
        client.expect_ok()
        killed.kill()
        client.expect_closed()
    assert "0" not in lookup(orders.lookups[0], "orders", "r")
    with pytest.raises(ConnectionRefusedError):
        V2Client(killed.tcp_address)
    orders.wait_until_writable("orders")
    with talking(leading(orders)) as client:
        consume(client)
        assert client.expect_message().body == b"acknowledged"
    killed.restart()
    with talking(killed) as client:
        publish(client, b"not here")
        client.expect_error(NOT_LEADER)


def test_a_publish_waits_for_a_stalled_replica_until_it_is_given_up(orders: PartitionedCluster) -> None:
    leader = leading(orders)
    stalled = next(node for node in orders.nodes if node is not leader)
    with talking(leader) as client:
        stalled.stall()
        publish(client, b"waits")
        client.expect_silence(0.1)
        client.expect_ok()


def test_without_a_quorum_a_publish_waits_and_the_next_ones_are_refused_at_once() -> None:
    with PartitionedCluster(quorum_timeout=0.5) as cluster:
        cluster.create_topic("orders", placement=[[0, 1]])
        cluster.nodes[1].kill()
        with talking(cluster.nodes[0]) as client:
            publish(client, b"waits in vain")
            client.expect_silence(0.2)
            client.expect_error(NOT_LEADER)
            assert lookup(cluster.lookups[0], "orders", "w") == {}
            assert lookup(cluster.lookups[0], "orders", "r") == {"0": port(cluster.nodes[0])}
            cluster.nodes[1].restart()
            publish(client, b"stored")
            client.expect_ok()
        assert [message.body for message in cluster.messages("orders", 0)] == [b"stored"]


def test_a_nsqlookupd_lags_lies_answers_anything_or_is_gone(orders: PartitionedCluster) -> None:
    first, second = orders.lookups
    old = leading(orders)
    first.freeze()
    new = orders.move_leader("orders", 0)
    assert (lookup(first, "orders")["0"], lookup(second, "orders")["0"]) == (port(old), port(new))
    first.tell_the_truth()
    assert lookup(first, "orders")["0"] == port(new)
    first.claim("orders", 0, old)
    assert lookup(first, "orders")["0"] == port(old)
    second.answer("/listlookup", 404, "NOT_FOUND")
    headers = {"Accept": "application/vnd.nsq; version=1.0"}
    reply = ask(second.http_address, "GET", "/listlookup", None, headers, timeout=20)
    assert (reply.status, reply.json()) == (404, {"message": "NOT_FOUND"})
    first.kill()
    with pytest.raises(ConnectionRefusedError):
        lookup(first, "orders")
    first.restart()
    assert lookup(first, "orders")


def test_a_deleted_topic_takes_nothing_more(orders: PartitionedCluster) -> None:
    with talking(leading(orders)) as producer, talking(leading(orders)) as consumer:
        consume(consumer)
        publish(producer, b"in time")
        producer.expect_ok()
        assert consumer.expect_message().body == b"in time"
        orders.delete_topic("orders")
        publish(producer, b"late")
        producer.expect_error("E_TOPIC_NOT_EXIST")
        producer.expect_closed()
        consumer.expect_closed()


@pytest.mark.parametrize("garbage", [b"IDENTIFY\n\0\0\0\2[]", b"\0" * 20_000, b"RDY\n", b"SUB\n"])
def test_garbage_costs_its_connection_and_nothing_else(orders: PartitionedCluster, garbage: bytes) -> None:
    with V2Client(leading(orders).tcp_address) as client, talking(leading(orders)) as other:
        client.send(garbage)
        with suppress(PeerClosed):
            client.expect_error("E_INVALID")
        client.expect_closed()
        publish(other, b"stored")
        other.expect_ok()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partitions": 0}, "1 to 1024"),
        ({"partitions": 2000}, "1 to 1024"),
        ({"replicas": 4}, "has 3 nodes"),
        ({"placement": [[0], [7]]}, "no node 7"),
    ],
)
def test_a_topic_that_cannot_be_is_an_error(
    cluster: PartitionedCluster, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        cluster.create_topic("orders", **options)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("verb", ["send", "poll", "recv"])
def test_an_interrupted_request_leaves_the_answers_of_later_ones_alone(
    verb: str, late: bool, orders: PartitionedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when pytest-timeout ends a test that shares its cluster with others."""
    assert orders._run is not None
    call = getattr(orders._run._control, verb)

    def interrupt(*arguments: Any) -> Any:
        if late:
            call(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(orders._run._control, verb, interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                orders.messages("orders", 0)
    assert port(orders.leader("orders", 0)) == port(orders.nodes[0])
