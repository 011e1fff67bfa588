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


def test_a_message_that_waits_for_its_time_belongs_to_nobody(orders: PartitionedCluster) -> None:
    with talking(leading(orders)) as client:
        consume(client)
        publish(client, b"x")
        client.expect_ok()
        message_id = client.frame().data[10:26]
        client.send(b"REQ %b 60000\nFIN %b\n" % (message_id, message_id))
        assert b" : client does not own message : 0 vs " in client.expect_error("E_FIN_FAILED").data


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
