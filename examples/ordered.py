"""Handle the steps of each order in their sequence, while leaders move and a node dies:

    python examples/ordered.py                                 # on a test double, no server needed
    python examples/ordered.py 10.0.0.7:4161 10.0.0.8:4161     # your nsqlookupds; the topic must exist

A partitioned NSQ keeps the order within a partition. With ``key=`` all steps of an order go to one partition;
with ``ordered=True`` each partition hands out one message at a time, and partitions side by side.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import defaultdict
from contextlib import nullcontext

import nsq
from nsq.testing import PartitionedCluster

TOPIC, CHANNEL = "order-steps", "shipping"
STEPS = ["placed", "paid", "packed", "shipped", "delivered"]
ORDERS = 40
PARTITIONS = 4


class Desk:
    """Handles steps, and fails once in a while: the same step comes again, and the next one waits."""

    def __init__(self) -> None:
        self.done: dict[str, list[str]] = defaultdict(list)
        self.finished = threading.Event()
        self._failed: set[bytes] = set()
        self._lock = threading.Lock()

    def handle(self, message: nsq.Message) -> None:
        order, step = message.body.decode().split()
        time.sleep(0.001)
        with self._lock:
            if step == "paid" and order.endswith("7") and message.body not in self._failed:
                self._failed.add(message.body)
                raise RuntimeError(f"the bank does not answer for {order}")
            if step not in self.done[order]:  # a message can come again, but never after a later one
                self.done[order].append(step)
            if sum(map(len, self.done.values())) == ORDERS * len(STEPS):
                self.finished.set()


def decide(stuck: nsq.Stuck) -> float:
    """Say when a step that failed is tried again; its partition waits for it."""
    print(f"attempt {stuck.attempts} at {stuck.message.body!r} failed: {stuck.error}")
    return 0.05


def disturb(cluster: PartitionedCluster) -> None:
    for partition in range(PARTITIONS):
        time.sleep(0.1)
        print(f"partition {partition} moves to {cluster.move_leader(TOPIC, partition)}")
    print("node 0 dies")
    cluster.nodes[0].kill()


def run(lookups: list[str], cluster: PartitionedCluster | None) -> int:
    desk = Desk()
    consumer = nsq.Consumer(TOPIC, CHANNEL, nsqlookupd=lookups, ordered=True, on_stuck=decide)
    consumer.add_handler(desk.handle, threads=PARTITIONS)
    with consumer, nsq.Producer(nsqlookupd=lookups) as producer:
        trouble = threading.Thread(target=disturb, args=(cluster,)) if cluster is not None else None
        if trouble is not None:
            trouble.start()
        for step in STEPS:
            for number in range(ORDERS):
                producer.publish(TOPIC, f"order-{number} {step}".encode(), key=f"order-{number}", timeout=60)
                time.sleep(0.002)
        complete = desk.finished.wait(60)
        if trouble is not None:
            trouble.join()
    in_order = sum(steps == STEPS for steps in desk.done.values())
    print(f"{in_order} of {ORDERS} orders were handled completely and in sequence")
    return 0 if complete and in_order == ORDERS else 1


def main(lookups: list[str]) -> int:
    logging.basicConfig(
        level=logging.ERROR if lookups else logging.CRITICAL
    )  # here failures are part of the show
    with nullcontext() if lookups else PartitionedCluster() as cluster:
        if cluster is None:
            return run(lookups, None)
        cluster.create_topic(TOPIC, partitions=PARTITIONS, ordered=True, channels=[CHANNEL])
        return run(cluster.lookup_addresses, cluster)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
