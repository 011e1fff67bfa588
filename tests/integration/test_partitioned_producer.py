"""A producer in a partitioned cluster: which NSQ it is, each answer to a publish, keys, tracing, health."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import nsq
from nsq import aio
from nsq.partitioned import routing
from nsq.partitioned.keys import partition_for
from nsq.producer.routing import Plain
from nsq.testing import Nsqd, Nsqlookupd, PartitionedCluster
from nsq.testing.partitioned import Lookup, Node
from nsq.testing.plugin import partitioned_cluster as cluster
from nsq.tools.front_door import main
from tests.fakes.forks import in_child

from .patience import eventually

__all__ = ["cluster"]

#: Far beyond what anything here takes.
PATIENCE = 60.0


@pytest.fixture
def orders(cluster: PartitionedCluster) -> PartitionedCluster:
    cluster.create_topic("orders", partitions=4)
    return cluster


@pytest.fixture
def producer(orders: PartitionedCluster) -> Iterator[nsq.Producer]:
    with nsq.Producer(nsqlookupd=orders.lookup_addresses, publish_timeout=PATIENCE) as producer:
        yield producer


def bodies(cluster: PartitionedCluster, partition: int, topic: str = "orders") -> list[bytes]:
    return [message.body for message in cluster.messages(topic, partition)]


def leading(cluster: PartitionedCluster, partition: int = 0) -> Node:
    leader = cluster.leader("orders", partition)
    assert leader is not None
    return leader


# Where messages go.


def test_a_key_always_leads_to_the_same_partition_and_others_go_to_all(
    orders: PartitionedCluster, producer: nsq.Producer
) -> None:
    for number in range(8):
        producer.publish("orders", b"keyed", key="customer-42")
        producer.publish("orders", b"%d" % number)
    found = [bodies(orders, number) for number in range(4)]
    assert sorted(each.count(b"keyed") for each in found) == [0, 0, 0, 8]
    assert all(len(each) > each.count(b"keyed") for each in found)


def test_a_result_says_where_the_message_is_stored(
    orders: PartitionedCluster, producer: nsq.Producer
) -> None:
    orders.create_topic("events", extended=True)
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


def test_a_producer_has_two_threads_for_each_nsqd_and_not_for_each_partition(
    cluster: PartitionedCluster,
) -> None:
    cluster.create_topic("orders", partitions=60)
    before = threading.active_count()
    with nsq.Producer(nsqlookupd=cluster.lookup_addresses, publish_timeout=PATIENCE) as producer:
        pending = [producer.publish_async("orders", b"x", partition=number) for number in range(60)]
        for each in pending:
            each.result(PATIENCE)
        more = threading.active_count() - before
    assert 3 * 2 <= more < 3 * 2 + 10


# A blocked partition: its leader waits for a replica, and executes nothing behind it on the same connection.


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here ends because a producer's patience does."""
    monkeypatch.setattr(routing, "PATIENCE", PATIENCE)


@pytest.mark.parametrize("first", ["publish", "publish_async"])
def test_a_blocked_partition_holds_up_no_other_of_its_nsqd(
    cluster: PartitionedCluster, patient: None, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(routing.Router, "patience", 0.2)  # of a round trip
    cluster.create_topic("orders", placement=[[0, 1]] * 3)
    with nsq.Producer(nsqlookupd=cluster.lookup_addresses, publish_timeout=PATIENCE) as producer:
        for number in range(20 if first == "publish" else 1):  # by then a connection for round trips is open
            producer.publish("orders", b"%d" % number, partition=1)
        with cluster.blocked_partition("orders", 0, hold=PATIENCE):
            thread = threading.Thread(
                target=producer.publish, args=("orders", b"held"), kwargs={"partition": 0}
            )
            if first == "publish":
                thread.start()
                eventually(lambda: "orders 0" in producer.health().problems)
            else:
                held = producer.publish_async("orders", b"held", partition=0)
            behind = producer.publish_async("orders", b"behind it", partition=1)
            for number in range(30):
                producer.publish("orders", b"%d" % number, partition=1, timeout=10.0)
                producer.publish_async("orders", b"a%d" % number, partition=2).result(10.0)
                producer.publish("orders", b"any%d" % number, timeout=10.0)
            behind.result(10.0)
            assert b"held" not in bodies(cluster, 0)
        if first == "publish":
            thread.join()
        else:
            held.result(PATIENCE)
        assert b"held" in bodies(cluster, 0)


# Each answer to a publish.

#: One of each rule: an answer, and its error unless the publish is tried again.
ANSWERS = [
    ("E_FAILED_ON_NOT_LEADER ", None),
    ("E_TOPIC_NOT_EXIST ", None),
    ("E_PUB_FAILED pub failed", None),
    ("E_PUB_TOO_MUCH_WAITING too much", None),
    ("E_INVALID what", None),
    ("E_EXT_NOT_SUPPORT no", None),
    ("E_BAD_PARTITION no", nsq.BadPartition),
    ("E_BAD_MESSAGE no", nsq.BadMessage),
    ("E_UNAUTHORIZED no", nsq.Unauthorized),
    ("E_OF_THE_FUTURE no", nsq.ServerError),
]


@pytest.mark.parametrize("kind", ["publish", "publish_async"])
@pytest.mark.parametrize(("answer", "error"), ANSWERS, ids=[answer.split()[0] for answer, _ in ANSWERS])
def test_each_answer_is_tried_again_or_raised(
    orders: PartitionedCluster, producer: nsq.Producer, answer: str, error: type[Exception] | None, kind: str
) -> None:
    producer.publish("orders", b"before", partition=0)
    leading(orders).refuse("PUB", answer)
    expected = nullcontext() if error is None else pytest.raises(error, match=answer.split()[0])
    with expected:
        if kind == "publish":
            producer.publish("orders", b"body", partition=0)
        else:
            producer.publish_async("orders", b"body", partition=0).result(PATIENCE)
    producer.publish("orders", b"after", partition=0)
    assert bodies(orders, 0) == [b"before", *([b"body"] if error is None else []), b"after"]


def test_an_error_to_a_batch_with_headers_costs_the_connection_and_nothing_else(
    cluster: PartitionedCluster,
) -> None:
    cluster.create_topic("plain")
    with nsq.Producer(nsqlookupd=cluster.lookup_addresses, publish_timeout=PATIENCE) as producer:
        producer.publish("plain", b"before")
        with pytest.raises(nsq.ExtNotSupported):
            producer.multi_publish("plain", [b"one", b"two"], headers={"k": "v"})
        producer.publish("plain", b"after")
    assert bodies(cluster, 0, "plain") == [b"before", b"after"]


def test_a_node_that_stalls_is_given_up_long_before_the_deadline(
    orders: PartitionedCluster, producer: nsq.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing.Router, "patience", 0.5)
    monkeypatch.setattr("nsq.partitioned.routing.PATIENCE", 0.5)
    for number in range(20):
        producer.publish("orders", b"%d" % number, partition=0)
    stalled = leading(orders)
    stalled.stall()
    orders.wait_until_writable("orders")
    pending = producer.publish_async("orders", b"async", partition=0)
    producer.publish("orders", b"blocking", partition=0)
    pending.result(PATIENCE)
    assert {b"async", b"blocking"} <= set(bodies(orders, 0))
    stalled.resume()


# Which NSQ it is.


def set_list(cluster: PartitionedCluster, status: int, data: object) -> None:
    for lookup in cluster.lookups:
        lookup.answer("/listlookup", status, data)


def test_a_cluster_that_becomes_a_partitioned_one_is_followed(orders: PartitionedCluster) -> None:
    set_list(orders, 404, "NOT_FOUND")
    with nsq.Producer(
        nsqlookupd=orders.lookup_addresses, lookupd_poll_interval=0.2, publish_timeout=PATIENCE
    ) as producer:
        producer.publish("orders", b"to any nsqd")
        with pytest.raises(nsq.UsageError, match="key= needs a partitioned NSQ"):
            producer.publish("orders", b"x", key="k")
        for lookup in orders.lookups:
            lookup.tell_the_truth()
        eventually(lambda: isinstance(producer._pool.routing, routing.Router))
        producer.publish("orders", b"x", key="k")
        set_list(orders, 404, "NOT_FOUND")
        eventually(lambda: isinstance(producer._pool.routing, Plain))
        with pytest.raises(nsq.UsageError, match="key= needs a partitioned NSQ"):
            producer.publish("orders", b"x", key="k")
        producer.publish("orders", b"to any nsqd")


def test_an_option_of_a_partitioned_cluster_waits_until_the_kind_is_known(
    orders: PartitionedCluster, nsqd: Nsqd
) -> None:
    """Meanwhile plain publishes go to the nsqds that were named."""
    for lookup in orders.lookups:
        lookup.kill()
    with nsq.Producer(
        nsqd.tcp_address, nsqlookupd=orders.lookup_addresses, publish_timeout=PATIENCE
    ) as producer:
        producer.publish("orders", b"plain")
        producer.multi_publish("orders", [b"one", b"two"])
        with pytest.raises(nsq.PublishFailed, match="no nsqlookupd has said which NSQ this is"):
            producer.publish("orders", b"keyed", key="k", timeout=0.3)
        pending = producer.publish_async("orders", b"keyed", key="k")
        for lookup in orders.lookups:
            lookup.restart()
        pending.result(PATIENCE)
    assert sum(bodies(orders, number).count(b"keyed") for number in range(4)) == 1


def test_the_nsqlookupds_of_the_cluster_are_found_through_one_of_them(orders: PartitionedCluster) -> None:
    first, second = orders.lookups
    with nsq.Producer(
        nsqlookupd=first.http_address, publish_timeout=PATIENCE, lookupd_poll_interval=0.2
    ) as producer:
        producer.publish("orders", b"before", partition=0)
        eventually(lambda: asked(producer) == {first.http_address, second.http_address})
        first.kill()
        orders.move_leader("orders", 0)
        producer.publish("orders", b"after", partition=0)
        first.restart()
        (listed,) = [each for each in lookup_list(second) if each["HttpPort"] == port_of(first)]
        for lookup in (first, second):
            lookup.answer("/listlookup", 200, {"lookupdleader": listed, "lookupdnodes": [listed]})
        eventually(lambda: asked(producer) == {first.http_address})
    assert bodies(orders, 0) == [b"before", b"after"]


def asked(producer: nsq.Producer) -> set[str]:
    """The nsqlookupds that a producer asks."""
    urls = [line.split()[1] for line in producer._pool.nsqds.discovery.health()]
    return {url.removeprefix("http://").partition("/")[0] for url in urls}


def lookup_list(lookup: Lookup) -> list[dict[str, Any]]:
    with urlopen(f"http://{lookup.http_address}/listlookup", timeout=PATIENCE) as reply:
        listed: list[dict[str, Any]] = json.loads(reply.read())["data"]["lookupdnodes"]
        return listed


def port_of(lookup: Lookup) -> str:
    return lookup.http_address.rpartition(":")[2]


def test_a_new_topic_is_waited_for_until_it_has_leaders(cluster: PartitionedCluster) -> None:
    with nsq.Producer(nsqlookupd=cluster.lookup_addresses, publish_timeout=PATIENCE) as producer:
        cluster.create_topic("orders", writable_after=0.3)
        producer.publish("orders", b"x")
    assert bodies(cluster, 0) == [b"x"]


def test_a_producer_goes_on_while_etcd_is_away_and_leaders_are_still_found(
    orders: PartitionedCluster, producer: nsq.Producer
) -> None:
    producer.publish("orders", b"before", partition=0)
    set_list(orders, 500, "etcd cluster is unavailable or misconfigured")
    orders.move_leader("orders", 0)
    producer.publish("orders", b"after", partition=0)
    assert bodies(orders, 0) == [b"before", b"after"]


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"partition": 0}, {"trace": 1}, {"headers": {"k": "v"}}, {"tag": "green"}]
)
def test_the_original_nsq_is_named_when_it_lacks_an_option(
    options: dict[str, Any], nsqd: Nsqd, nsqlookupd: Nsqlookupd
) -> None:
    (option,) = options
    for address in ({"nsqd": nsqd.tcp_address}, {"nsqlookupd": nsqlookupd.http_address}):
        with nsq.Producer(**address) as producer, pytest.raises(nsq.UsageError, match=option):
            producer.publish("orders", b"x", timeout=PATIENCE, **options)


def test_without_a_coordinator_partitions_are_found_too() -> None:
    with PartitionedCluster(coordinator=False) as cluster:
        cluster.create_topic("orders", partitions=2)
        with nsq.Producer(nsqlookupd=cluster.lookup_addresses, publish_timeout=PATIENCE) as producer:
            producer.publish("orders", b"x", partition=1)
        assert bodies(cluster, 1) == [b"x"]


@pytest.mark.parametrize("known", [True, False])
def test_deferring_is_refused_by_name_whether_the_cluster_is_known_or_not(
    producer: nsq.Producer, known: bool
) -> None:
    if known:
        producer.publish("orders", b"x")
    with pytest.raises(nsq.UsageError, match="defer= is not possible"):
        producer.publish("orders", b"x", defer=1.0)


def test_an_nsqd_of_a_partitioned_cluster_is_warned_about_once_when_only_nsqds_are_named(
    orders: PartitionedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = [node.tcp_address for node in orders.nodes]
    with nsq.Producer(*addresses, publish_timeout=PATIENCE) as producer:
        eventually(lambda: producer.publish("orders", b"x") and all_open(producer, 3))
    assert caplog.text.count("of a partitioned NSQ, but this producer takes it for an original one") == 1


def all_open(producer: nsq.Producer, count: int) -> bool:
    return [each.state for each in producer.stats().connections] == ["open"] * count


# Keys.


@pytest.mark.parametrize(
    "options", [{"key_hash": 7}, {"key_partitions": {"orders": 0}}, {"key_partitions": {"no topic": 1}}]
)
def test_a_bad_option_of_keys_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(nsq.UsageError):
        nsq.Producer(nsqlookupd="127.0.0.1:4161", **options)


def test_more_partitions_move_keys_with_a_warning(
    orders: PartitionedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with nsq.Producer(
        nsqlookupd=orders.lookup_addresses, publish_timeout=PATIENCE, lookupd_poll_interval=0.2
    ) as producer:
        producer.publish("orders", b"x", key="k")
        orders.add_partitions("orders", 2)
        eventually(lambda: "orders" in producer.health().problems)
        assert "changed from 4 to 6" in producer.health().problems["orders"]
        assert "the number of partitions of 'orders' changed from 4 to 6" in caplog.text
        producer.publish("orders", b"new", partition=5)
    assert bodies(orders, 5) == [b"new"]


def test_a_partition_that_does_not_exist_is_refused_at_the_call(producer: nsq.Producer) -> None:
    with pytest.raises(nsq.UsageError, match="partition 4 of 'orders' does not exist: the topic has 4"):
        producer.publish("orders", b"x", partition=4)  # found out by the pool's thread
    with pytest.raises(nsq.UsageError, match="partition 9 of 'orders' does not exist"):
        producer.publish_async("orders", b"x", partition=9)


def test_publishes_prefer_the_nsqd_that_owes_fewer_answers(orders: PartitionedCluster) -> None:
    with nsq.Producer(
        nsqlookupd=orders.lookup_addresses, publish_timeout=PATIENCE, least_pending=True
    ) as producer:
        for number in range(4):
            producer.publish("orders", b"first", partition=number)
        leading(orders).stall()
        futures = [producer.publish_async("orders", b"x") for _ in range(200)]
        eventually(lambda: sum(future.done() for future in futures) > 150)
        leading(orders).resume()


async def publish_from_a_coroutine(orders: PartitionedCluster) -> list[nsq.Published]:
    async with aio.Producer(nsqlookupd=orders.lookup_addresses, publish_timeout=PATIENCE) as producer:
        return [
            await producer.publish("orders", b"x", partition=2, trace=7),
            await producer.multi_publish("orders", [b"y", b"z"], partition=2),
        ]


def test_coroutines_publish_with_the_same_options(orders: PartitionedCluster) -> None:
    traced, batch = asyncio.run(publish_from_a_coroutine(orders))
    first = orders.messages("orders", 2)[0]
    assert traced == (first.internal_id, 7, first.offset, first.size)
    assert batch == nsq.Published()
    assert bodies(orders, 2) == [b"x", b"y", b"z"]


def test_nsq_pub_publishes_by_key_and_to_a_partition(
    orders: PartitionedCluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "in").write_bytes(b"three\nfour\n")
    address = f"--lookupd-http-address={orders.lookup_addresses[0]}"
    assert main(["pub", address, "--key=customer-42", "orders", "one", "two"]) == 0
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["pub", address, "--partition=3", "orders"]) == 0
    assert main(["pub", address, "orders", *"abcdef"]) == 0
    assert "WARNING" not in capfd.readouterr().err
    partition = partition_for("customer-42", 4)
    assert bodies(orders, partition)[:2] == [b"one", b"two"]
    assert {b"three", b"four"} <= set(bodies(orders, 3))
    assert sum(len(bodies(orders, number)) for number in range(4)) == 10
    assert main(["pub", address, "--partition=4", "orders", "x"]) == 1
    assert "partition 4 of 'orders' does not exist" in capfd.readouterr().err


# Tracing and health.


def test_a_forked_child_publishes_and_traces_on_its_own(
    orders: PartitionedCluster, producer: nsq.Producer
) -> None:
    producer.trace("orders")
    producer.publish("orders", b"parent", partition=0)

    def child() -> None:
        assert producer.publish("orders", b"child", partition=0).trace_id is not None

    assert in_child(child) == 0
    producer.trace("orders", False)
    assert producer.publish("orders", b"parent again", partition=0).trace_id is None
    assert bodies(orders, 0) == [b"parent", b"child", b"parent again"]
