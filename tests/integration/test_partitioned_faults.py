"""Publishing to a partitioned cluster and consuming from it while leaders move, nodes die and nsqlookupds
mislead: what was acknowledged is handled, in order, and a move costs little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

import nsq
from nsq.testing import PartitionedCluster
from nsq.testing.partitioned import Node
from nsq.testing.plugin import partitioned_cluster as cluster

from .patience import PATIENCE, eventually

__all__ = ["cluster"]

TOPIC, CHANNEL, PARTITIONS = "orders", "billing", 4
#: What a move may cost a publisher, with the margin that a busy machine needs.
MOVE = 3.0


class Publisher:
    """A thread that publishes numbered messages to each partition in turn, and notes the longest wait.

    What is uncertain it publishes again.
    """

    def __init__(self, cluster: PartitionedCluster) -> None:
        self.published = [0] * PARTITIONS
        self.longest = 0.0
        self._producer = nsq.Producer(nsqlookupd=cluster.lookup_addresses)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.001):
                for partition in range(PARTITIONS):
                    began = time.monotonic()
                    while not self._publish(b"%d" % self.published[partition], partition):
                        pass
                    self.published[partition] += 1
                    self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as error:
            self._error = error

    def _publish(self, body: bytes, partition: int) -> bool:
        try:
            self._producer.publish(TOPIC, body, partition=partition, timeout=2.0)
        except (nsq.PublishUncertain, nsq.PublishFailed):
            return False
        return True

    def check(self) -> None:
        assert self._error is None, self._error

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        self._producer.close()
        self.check()


class Handler:
    """Records the numbers that it gets from each partition."""

    def __init__(self) -> None:
        self.handled: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def __call__(self, message: nsq.Message) -> None:
        assert message.partition is not None
        self.handled[message.partition].append(int(message.body))


class Scene:
    """A cluster with a publisher and a consumer at work."""

    def __init__(
        self, cluster: PartitionedCluster, publisher: Publisher, handler: Handler, *, ordered: bool
    ) -> None:
        self.ordered = ordered
        self.cluster = cluster
        self.publisher = publisher
        self.handler = handler

    def go_on(self, count: int = 25) -> None:
        """Wait until every partition has got and delivered more messages."""
        targets = [number + count for number in self.publisher.published]

        def missing() -> list[int]:
            self.publisher.check()
            return [
                partition
                for partition, target in enumerate(targets)
                if not self.handler.handled[partition] or max(self.handler.handled[partition]) < target
            ]

        eventually(missing, lambda found: not found)

    def check(self) -> None:
        """Nothing acknowledged is missing; in an ordered topic nothing came after a later message."""
        targets = self.publisher.published.copy()
        eventually(
            lambda: [
                sorted(set(range(target)) - set(found.copy()))
                for target, found in zip(targets, self.handler.handled, strict=True)
            ],
            lambda missing: not any(missing),
        )
        for handled in self.handler.handled if self.ordered else ():
            found = handled.copy()
            assert found == sorted(found), "a message was handled after a later one"

    def leader(self, partition: int = 0) -> Node:
        leader = self.cluster.leader(TOPIC, partition)
        assert leader is not None
        return leader

    def move_all(self) -> None:
        for partition in range(PARTITIONS):
            self.cluster.move_leader(TOPIC, partition)


def leaders_move(scene: Scene) -> None:
    for _ in range(2):
        scene.move_all()
        scene.go_on()
    assert scene.publisher.longest < MOVE


def all_nodes_die_and_come_back_one_after_the_other(scene: Scene) -> None:
    for node in scene.cluster.nodes:
        node.kill()
        scene.cluster.wait_until_writable(TOPIC)
        scene.go_on()
        node.restart()


def all_nodes_restart_one_after_the_other(scene: Scene) -> None:
    for node in scene.cluster.nodes:
        node.restart()
        scene.go_on()


def a_leader_stalls_and_leads_again_later(scene: Scene) -> None:
    stalled = scene.leader()
    stalled.stall()
    scene.cluster.wait_until_writable(TOPIC)
    scene.go_on()
    stalled.resume()
    scene.cluster.move_leader(TOPIC, 0, to=stalled)
    scene.go_on()


def connections_are_reset(scene: Scene) -> None:
    for node in scene.cluster.nodes:
        node.drop_connections()
    scene.go_on()


def a_nsqlookupd_lags(scene: Scene) -> None:
    scene.cluster.lookups[1].freeze()
    scene.move_all()
    scene.go_on()


def a_nsqlookupd_lies(scene: Scene) -> None:
    for partition in range(PARTITIONS):
        wrong = next(node for node in scene.cluster.nodes if node is not scene.leader(partition))
        scene.cluster.lookups[1].claim(TOPIC, partition, wrong)
    scene.move_all()
    scene.go_on()


def only_one_nsqlookupd_answers(scene: Scene) -> None:
    for lookup in scene.cluster.lookups:
        lookup.kill()
        scene.move_all()
        scene.go_on()
        lookup.restart()
    scene.cluster.lookups[0].stall()
    scene.move_all()
    scene.go_on()
    scene.cluster.lookups[0].resume()


FAULTS: list[Callable[[Scene], None]] = [
    leaders_move,
    all_nodes_die_and_come_back_one_after_the_other,
    all_nodes_restart_one_after_the_other,
    a_leader_stalls_and_leads_again_later,
    connections_are_reset,
    a_nsqlookupd_lags,
    a_nsqlookupd_lies,
    only_one_nsqlookupd_answers,
]


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def scene(cluster: PartitionedCluster, request: pytest.FixtureRequest) -> Iterator[Scene]:
    cluster.create_topic(TOPIC, partitions=PARTITIONS, ordered=request.param, channels=[CHANNEL])
    handler = Handler()
    consumer = nsq.Consumer(
        TOPIC,
        CHANNEL,
        nsqlookupd=cluster.lookup_addresses,
        ordered=request.param,
        reconnect_initial=0.05,
        heartbeat_interval=1.0,
        read_timeout=3.0,  # after so much silence a node that stalls counts as lost
        max_in_flight=50,
    )
    consumer.add_handler(handler, threads=4)
    with consumer, Publisher(cluster) as publisher:
        scene = Scene(cluster, publisher, handler, ordered=request.param)
        scene.go_on()
        yield scene


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_nothing_is_lost_and_order_is_kept_when(fault: Callable[[Scene], None], scene: Scene) -> None:
    fault(scene)
    scene.go_on()
    scene.check()
