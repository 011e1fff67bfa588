"""A partitioned cluster under attack, with publishers and consumers; and whether they kept their promises.

Publishers number the messages of each key, and publish the next ones when the last ones are acknowledged.
What is uncertain they publish again: a partition may have a message twice, but for each key never a later
one first.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import nsq
from nsq.testing import PartitionedCluster
from nsq.testing.partitioned import Node

ORDERED, UNORDERED, CHANNEL = "ordered", "unordered", "work"
#: A publish waits as long for a partition; longer than any fault, on a busy machine.
PUBLISH_TIMEOUT = 60.0
#: For what is stored to be handled, once all faults are over.
FINISH_TIMEOUT = 120.0
#: Seconds until a killed or stalled node comes back, and between two faults.
_DOWN = (0.1, 1.0)
_PAUSE = (0.01, 0.2)
#: Between two batches of a publisher, so that the attack has time.
_BREATH = 0.002
_KEYS = 10  # of each publisher, in each topic
_PUBLISHERS, _BATCH = 6, 4


class Publisher:
    """A thread that publishes to keys of its own, and remembers what was stored: one by one, in batches or,
    with a negative ``batch``, as many without waiting.

    It ends after that many messages, when ``enough`` says so, too.
    """

    def __init__(
        self,
        producer: nsq.Producer,
        number: int,
        messages: int,
        batch: int,
        enough: Callable[[], bool] = lambda: True,
    ) -> None:
        self.stored: Counter[str] = Counter()  # key -> the number of its messages
        self.repeated = 0
        self.error: BaseException | None = None
        self._producer = producer
        self._keys = [f"{topic}/{number}-{key}" for key in range(_KEYS) for topic in (ORDERED, UNORDERED)]
        self._messages = messages
        self._batch, self._waits = abs(batch), batch > 0
        self._enough = enough
        self.thread = threading.Thread(target=self._run, name=f"publisher-{number}", daemon=True)

    def _run(self) -> None:
        try:
            keys = itertools.cycle(self._keys)
            while self.stored.total() < self._messages or not self._enough():
                key = next(keys)
                first = self.stored[key]
                bodies = [f"{key} {number}".encode() for number in range(first, first + self._batch)]
                while not self._publish(key, bodies):
                    self.repeated += 1
                self.stored[key] += self._batch
                time.sleep(_BREATH)
        except BaseException as error:
            self.error = error

    def _publish(self, key: str, bodies: list[bytes]) -> bool:
        topic = key.partition("/")[0]
        by_key: dict[str, Any] = {"key": key} if topic == ORDERED else {}
        try:
            if not self._waits:
                publish = self._producer.publish_async
                pending = [publish(topic, body, timeout=PUBLISH_TIMEOUT, **by_key) for body in bodies]
                for future in pending:
                    future.result()
            elif len(bodies) == 1:
                self._producer.publish(topic, bodies[0], timeout=PUBLISH_TIMEOUT, **by_key)
            else:
                self._producer.multi_publish(topic, bodies, timeout=PUBLISH_TIMEOUT, **by_key)
        except nsq.PublishUncertain:
            return False
        return True


class Handler:
    """Records what it handles, and fails now and then the first time."""

    def __init__(self, seed: int) -> None:
        self.handled: dict[int, list[tuple[int, bytes]]] = defaultdict(list)  # partition -> offset and body
        self.overlaps = 0
        self.bodies: set[bytes] = set()
        self._chance = random.Random(seed)
        self._failed: set[tuple[int, int]] = set()
        self._busy: Counter[int] = Counter()
        self._lock = threading.Lock()

    def ordered(self, message: nsq.Message) -> bool:
        partition, offset = message.partition, message.offset
        assert partition is not None
        assert offset is not None
        with self._lock:
            self._busy[partition] += 1
            self.overlaps += self._busy[partition] > 1
            place = partition, offset
            fails = self._chance.random() < 0.005 and place not in self._failed
            if fails:
                self._failed.add(place)
        time.sleep(0)
        with self._lock:
            self._busy[partition] -= 1
            if not fails:
                self.handled[partition].append((offset, message.body))
                self.bodies.add(message.body)
        return not fails

    def unordered(self, message: nsq.Message) -> bool:
        with self._lock:
            self.bodies.add(message.body)
        return True


class Attack:
    """A thread that moves leaders, kills and stalls nodes, blocks partitions, has nsqlookupds lag and lie,
    until it is stopped. ``more`` has further faults.
    """

    def __init__(self, cluster: PartitionedCluster, seed: int, *more: Callable[[], object]) -> None:
        self.faults: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attack", daemon=True)
        self._kinds: list[Callable[[], object]] = [
            *more,
            self._move_leader,
            self._move_leader,
            self._move_leader,
            self._kill_node,
            self._lose_quorum,
            self._block_partition,
            self._stall_node,
            self._restart_node,
            self._drop_connections,
            self._stop_lookup,
            self._stall_lookup,
            self._freeze_lookup,
            self._let_lookup_lie,
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            first = self._chance.sample(self._kinds, len(self._kinds))  # each kind once, then at random
            while not self._wait(_PAUSE):
                fault = first.pop() if first else self._chance.choice(self._kinds)
                fault()
                self.faults[fault.__name__.removeprefix("_")] += 1
        except BaseException as error:
            self.error = error

    def _wait(self, between: tuple[float, float]) -> bool:
        return self._stopped.wait(self._chance.uniform(*between))

    def _node(self) -> Node:
        return self._chance.choice(self._cluster.nodes)

    def _move_leader(self) -> None:
        """Move a leader, also to a node that had no replica: the old one knows the partition no more."""
        topic, partition = self._chance.choice((ORDERED, UNORDERED)), self._chance.randrange(8)
        self._cluster.move_leader(topic, partition, to=self._node())

    def _kill_node(self) -> None:
        node = self._node()
        node.kill()
        self._wait(_DOWN)
        node.restart()

    def _lose_quorum(self) -> None:
        """Kill two nodes: partitions that have replicas on both take no publish until one is back."""
        nodes = self._chance.sample(self._cluster.nodes, 2)
        for node in nodes:
            node.kill()
        self._wait(_DOWN)
        for node in nodes:
            node.restart()

    def _block_partition(self) -> None:
        """Stop a replica of a partition: its leader holds publishes, and what is behind them."""
        topic, partition = self._chance.choice((ORDERED, UNORDERED)), self._chance.randrange(8)
        with self._cluster.blocked_partition(topic, partition, hold=0.5):
            self._wait(_DOWN)

    def _restart_node(self) -> None:
        self._node().restart()

    def _stall_node(self) -> None:
        node = self._node()
        node.stall()
        self._wait(_DOWN)
        node.resume()

    def _drop_connections(self) -> None:
        self._node().drop_connections()

    def _stop_lookup(self) -> None:
        lookup = self._chance.choice(self._cluster.lookups)
        lookup.kill()
        self._wait(_DOWN)
        lookup.restart()

    def _stall_lookup(self) -> None:
        lookup = self._chance.choice(self._cluster.lookups)
        lookup.stall()
        self._wait(_DOWN)
        lookup.resume()

    def _freeze_lookup(self) -> None:
        lookup = self._chance.choice(self._cluster.lookups)
        lookup.freeze()
        self._cluster.move_leader(ORDERED, self._chance.randrange(8))
        self._wait(_DOWN)
        lookup.tell_the_truth()

    def _let_lookup_lie(self) -> None:
        """Have the second nsqlookupd, which is not the leader of them, name a wrong node."""
        liar = self._cluster.lookups[1]
        liar.claim(ORDERED, self._chance.randrange(8), self._node())
        self._cluster.move_leader(ORDERED, self._chance.randrange(8))
        self._wait(_DOWN)
        liar.tell_the_truth()


def play(seed: int, messages: int, faults: int) -> str:
    """Publish at least that many messages under attack, half of them in order, and check all promises.

    Returns a line that says what happened.
    """
    with ExitStack() as stack:
        cluster = stack.enter_context(PartitionedCluster(nodes=4, process=True))
        for topic in (ORDERED, UNORDERED):
            cluster.create_topic(topic, partitions=8, ordered=topic == ORDERED, channels=[CHANNEL])
        handler = Handler(seed)
        ordered = OrderedConsumer(cluster, handler)
        unordered = consumer_of(cluster, UNORDERED, max_in_flight=100)
        unordered.add_handler(handler.unordered, threads=2)
        producer = stack.enter_context(nsq.Producer(nsqlookupd=cluster.lookup_addresses))
        stack.callback(ordered.stop)
        stack.enter_context(unordered)
        attack = Attack(cluster, seed, ordered.renew_consumer)
        crowd = [
            Publisher(
                producer,
                number,
                messages // _PUBLISHERS + 1,
                (1, -_BATCH, _BATCH)[number % 3],
                lambda: attack.faults.total() >= faults or attack.error is not None,
            )
            for number in range(_PUBLISHERS)
        ]
        began = time.monotonic()
        with attack.running():
            for publisher in crowd:
                publisher.thread.start()
            for publisher in crowd:
                publisher.thread.join()
        took = time.monotonic() - began
        for publisher in crowd:
            if publisher.error is not None:
                raise publisher.error
        stored = {partition: cluster.messages(ORDERED, partition) for partition in range(8)}
        await_all(cluster)
        check_order_in_the_log(stored)
        check_order_of_handling(handler, stored)
        check_nothing_is_lost(crowd, handler)
        total = sum(publisher.stored.total() for publisher in crowd)
        repeated = sum(publisher.repeated for publisher in crowd)
        return (
            f"seed {seed}: {total} messages in {took:.0f} s, {repeated} batches published again, "
            f"{attack.faults.total()} faults: {dict(attack.faults)}"
        )


class OrderedConsumer:
    """A consumer of the ordered topic, whose handler goes on with the next one."""

    def __init__(self, cluster: PartitionedCluster, handler: Handler) -> None:
        self._cluster, self._handler = cluster, handler
        self._start()

    def _start(self) -> None:
        self._consumer = consumer_of(self._cluster, ORDERED, ordered=True)
        self._consumer.add_handler(self._handler.ordered, threads=8)
        self._consumer.start()

    def stop(self) -> None:
        self._consumer.stop()

    def renew_consumer(self) -> None:
        """Stop the consumer in the midst of its messages, and start another one."""
        self.stop()
        self._start()


def consumer_of(cluster: PartitionedCluster, topic: str, **options: Any) -> nsq.Consumer:
    return nsq.Consumer(
        topic,
        CHANNEL,
        nsqlookupd=cluster.lookup_addresses,
        lookupd_poll_interval=2.0,
        reconnect_initial=0.05,
        reconnect_max=0.5,
        heartbeat_interval=1.0,
        read_timeout=3.0,
        **options,
    )


def await_all(cluster: PartitionedCluster) -> None:
    deadline = time.monotonic() + FINISH_TIMEOUT
    while True:
        states = {
            (topic, partition): cluster.channel(topic, partition, CHANNEL)
            for topic in (ORDERED, UNORDERED)
            for partition in range(8)
        }
        open_ones = {place: state for place, state in states.items() if state.depth or state.in_flight}
        if not open_ones:
            return
        assert time.monotonic() < deadline, f"not handled within {FINISH_TIMEOUT:g} s: {open_ones}"
        time.sleep(0.05)


def check_order_in_the_log(stored: dict[int, list[Any]]) -> None:
    """Each key is in one partition, and each of its messages first comes after the one before."""
    places: dict[str, int] = {}
    for partition, messages in stored.items():
        highest: dict[str, int] = defaultdict(lambda: -1)
        for message in messages:
            key, number = message.body.decode().split()
            assert places.setdefault(key, partition) == partition, f"{key} is in two partitions"
            assert int(number) <= highest[key] + 1, f"{key}: {number} was stored after {highest[key]}"
            highest[key] = max(highest[key], int(number))


def check_order_of_handling(handler: Handler, stored: dict[int, list[Any]]) -> None:
    """Each partition was handled in the order of its log; a message may have been handled twice in a row."""
    assert not handler.overlaps, "two messages of a partition were handled at a time"
    for partition, messages in stored.items():
        handled = [place for place, _ in itertools.groupby(handler.handled[partition])]
        expected = [(message.offset, message.body) for message in messages]
        assert handled == expected, f"partition {partition}: {first_difference(handled, expected)}"


def first_difference(found: list[Any], expected: list[Any]) -> str:
    for number, pair in enumerate(itertools.zip_longest(found, expected)):
        if pair[0] != pair[1]:
            return f"message {number} is {pair[0]}, should be {pair[1]}"
    return "none"


def check_nothing_is_lost(crowd: list[Publisher], handler: Handler) -> None:
    for publisher in crowd:
        for key, count in publisher.stored.items():
            lost = [number for number in range(count) if f"{key} {number}".encode() not in handler.bodies]
            assert not lost, f"{key}: acknowledged but never handled: {lost[:10]}"
