"""What a test can do to the double of the partitioned NSQ, seen through bare connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nsq.errors import UsageError
from nsq.testing import PartitionedCluster, V2Client
from nsq.testing.daemons.http import ask
from nsq.testing.partitioned import Lookup, Node
from nsq.testing.plugin import partitioned_cluster as cluster
from nsq.wire import commands
from nsq.wire.frames import FRAME_MESSAGE, FRAME_RESPONSE

from .consuming import until

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


def test_a_blocked_partition_holds_one_publish_and_what_is_behind_it_on_the_connection() -> None:
    with PartitionedCluster() as cluster:
        cluster.create_topic("orders", placement=[[0, 1], [0, 1]])
        with talking(cluster.nodes[0]) as client, talking(cluster.nodes[0]) as other:
            with cluster.blocked_partition("orders", 0, hold=0.5) as leader:
                assert leader == cluster.nodes[0]
                publish(client, b"held in vain")
                publish(client, b"behind it", partition=1)
                publish(other, b"on another connection", partition=1)
                other.expect_ok()
                client.expect_silence(0.2)
                client.expect_error(NOT_LEADER)
                client.expect_ok()
                publish(client, b"refused at once")
                client.expect_error(NOT_LEADER)
                assert set(lookup(cluster.lookups[0], "orders")) == {"1"}
            publish(client, b"stored")
            client.expect_ok()
            with cluster.blocked_partition("orders", 0):
                publish(client, b"held until the replica goes on")
                client.expect_silence(0.1)
            client.expect_ok()
        assert [message.body for message in cluster.messages("orders", 0)] == [
            b"stored",
            b"held until the replica goes on",
        ]
        assert [message.body for message in cluster.messages("orders", 1)] == [
            b"on another connection",
            b"behind it",
        ]


def test_a_client_whose_publish_is_held_misses_no_heartbeat(cluster: PartitionedCluster) -> None:
    cluster.create_topic("orders")
    with V2Client(leading(cluster).tcp_address) as client, cluster.blocked_partition("orders", 0, hold=1.0):
        client.identify(heartbeat_interval=100)
        publish(client, b"held")
        for _ in range(8):
            client.expect(FRAME_RESPONSE, b"_heartbeat_")
            client.send(b"NOP\n")


def test_a_stalled_node_does_nothing_until_it_goes_on(cluster: PartitionedCluster) -> None:
    cluster.create_topic("orders", replicas=1)
    leader = leading(cluster)
    with talking(leader) as client:
        leader.stall()
        publish(client, b"over TCP")
        with pytest.raises(TimeoutError):
            ask(leader.http_address, "POST", "/pub?topic=orders", b"over HTTP", {}, timeout=0.2)
        assert cluster.messages("orders", 0) == []
        leader.resume()
        client.expect_ok()
        until("both stored", lambda: len(cluster.messages("orders", 0)) == 2)


def test_a_killed_leader_takes_the_last_fins_with_it(cluster: PartitionedCluster) -> None:
    cluster.create_topic("orders", channels=["billing"])
    with talking(leading(cluster)) as client:
        consume(client)
        for number in range(5):
            publish(client, b"%d" % number)
        frames = [client.frame() for _ in range(10)]  # the OKs and the messages
        for frame in frames:
            if frame.type == FRAME_MESSAGE:
                client.send(b"FIN " + frame.data[10:26] + b"\n")
        until("all finished", lambda: cluster.channel("orders", 0, "billing").finished == 5)
    killed = leading(cluster)
    killed.kill(lost_fins=2)
    until("another leader", lambda: cluster.leader("orders", 0) not in (None, killed))
    assert cluster.channel("orders", 0, "billing") == (2, 0, 3, 0)
    with talking(leading(cluster)) as client:
        consume(client)
        assert [client.expect_message().body[-1:] for _ in range(2)] == [b"3", b"4"]
        client.expect_silence(0.1)


def test_a_new_topic_has_no_leaders_for_a_while(cluster: PartitionedCluster) -> None:
    cluster.create_topic("orders", partitions=2, writable_after=0.3)
    assert cluster.leader("orders", 0) is None
    assert lookup(cluster.lookups[0], "orders", "r") == lookup(cluster.lookups[0], "orders", "w") == {}
    with talking(cluster.nodes[0]) as client:
        publish(client, b"too early")
        client.expect_error(NOT_LEADER)
        cluster.wait_until_writable("orders")
        publish(client, b"in time")
        client.expect_ok()


def test_without_etcd_the_nsqlookupds_are_not_listed_but_answer(orders: PartitionedCluster) -> None:
    there = orders.lookups[0]
    there.answer("/listlookup", 500, "etcd cluster is unavailable or misconfigured")
    for headers in ({}, {"Accept": "application/vnd.nsq; version=1.0"}):
        assert ask(there.http_address, "GET", "/listlookup", None, headers, timeout=20).status == 500
    assert set(lookup(there, "orders")) == {"0", "1", "2"}


def test_a_message_that_waits_for_its_time_belongs_to_nobody(orders: PartitionedCluster) -> None:
    with talking(leading(orders)) as client:
        consume(client)
        publish(client, b"x")
        client.expect_ok()
        message_id = client.frame().data[10:26]
        client.send(b"REQ %b 60000\nFIN %b\n" % (message_id, message_id))
        assert b" : client does not own message : 0 vs " in client.expect_error("E_FIN_FAILED").data


def test_a_channel_of_one_partition_is_paused_emptied_and_deleted(orders: PartitionedCluster) -> None:
    leader = leading(orders, partition=0)

    def post(verb: str, node: Node = leader) -> int:
        target = f"/channel/{verb}?topic=orders&channel=billing&partition=0"
        return ask(node.http_address, "POST", target, b"", {}, timeout=20).status

    with talking(leader) as client:
        consume(client)
        assert post("pause") == 200
        publish(client, b"waits")
        client.expect_ok()
        client.expect_silence(0.1)
        assert post("unpause") == 200
        assert client.expect_message().body == b"waits"
        publish(client, b"waits, too")
        assert post("empty", orders.nodes[1]) == 400, "it does not lead"
        assert post("empty") == 200
        assert orders.channel("orders", 0, "billing").depth == 0
        assert post("delete") == 200
        assert post("delete") == 404
    assert orders.channel("orders", 1, "billing").finished == 0


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
