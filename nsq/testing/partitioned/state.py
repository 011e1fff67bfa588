"""The state of a partitioned cluster: who leads which partition, what is stored, and who is alive.

Knows no sockets; the clock is an argument. All replicas of a partition share one log, so nothing that a
leader has acknowledged is ever lost, and a new leader continues where the old one stopped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from nsq.errors import UsageError
from nsq.wire.names import check_channel, check_topic

from .channel import Channel, ChannelState, Stored, StoredMessage, encode_id

MAX_PARTITIONS = 1024
#: How often a publish that waits for replicas looks at them, and timeouts and heartbeats are looked at.
TICK = 0.02
_COUNTER_BITS = 50

NOT_LEADER = "E_FAILED_ON_NOT_LEADER "
NOT_WRITABLE = "E_FAILED_ON_NOT_WRITABLE "
TOPIC_NOT_EXIST = "E_TOPIC_NOT_EXIST "


class Refused(Exception):
    """The text of an error that a client gets."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


@dataclass
class NodeState:
    """What the cluster knows about one nsqd."""

    index: int
    running: bool = True
    responsive: bool = True  # it runs and is not stalled
    lost: bool = False  # the coordinator has given up on it
    failures: int = 0
    write_disabled: str = ""  # or "all", or "ordered"
    refusals: list[tuple[str, str]] = field(
        default_factory=list
    )  # commands, and the errors that a test wants
    received: Counter[str] = field(default_factory=Counter)


@dataclass
class Topic:
    name: str
    replicas: int = 0
    ordered: bool = False
    extended: bool = False
    multi_part: bool = False  # several of its partitions can be at one node, though it is not ordered
    registered_channels_only: bool = False
    partitions: list[Partition] = field(default_factory=list, init=False)


class Partition:
    """One partition of a topic: its log, its channels, its leader and the nodes that have replicas."""

    def __init__(self, topic: Topic, number: int, replicas: Iterable[int], first_id: int) -> None:
        self.topic = topic
        self.number = number
        self.replicas = list(replicas)
        self.leader: int | None = None
        self.log: list[Stored] = []
        self.end = 0  # the offset of the next message
        self.channels: dict[str, Channel] = {}
        self.new = False  # it is being made, and has no leader yet
        self.moving = False
        self.blocked_for: float | None = None  # a replica is stopped: a publish waits that long in vain
        self.waiting_since: float | None = None
        self.quorum_lost = False
        self._next_id = (number << _COUNTER_BITS) + first_id

    def append(self, body: bytes, timestamp: int, trace_id: int = 0, ext: bytes = b"") -> Stored:
        if not ext and self.topic.extended:
            ext = b"\0"
        stored = Stored(self.end, encode_id(self._next_id, trace_id), timestamp, ext, body)
        self.log.append(stored)
        self._next_id += 1
        self.end += stored.size
        return stored

    def lead_by(self, node: int | None) -> None:
        """Let another node lead. Ids go on with a gap, as they do in the real cluster."""
        if self.leader is not None:
            self._next_id += 1
        self.leader = node
        for channel in self.channels.values():
            channel.leader_changed()


class ClusterState:
    """Nodes, topics, and what happens when a node fails or comes back."""

    def __init__(
        self,
        nodes: int,
        clock: Callable[[], float],
        later: Callable[..., object],
        *,
        coordinator: bool,
        first_twice: bool | str,
        election_time: float,
        quorum_timeout: float,
    ) -> None:
        self.clock = clock
        self._later = later
        self.nodes = [NodeState(index) for index in range(nodes)]
        self.topics: dict[str, Topic] = {}
        self.coordinator = coordinator
        self._first_twice = first_twice
        self._election_time = election_time
        self._quorum_timeout = quorum_timeout
        self._first_id = 2 if coordinator else 1
        self._first_leader = itertools.count()
        self.client_numbers = itertools.count(1)

    # Topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replicas: int,
        placement: Sequence[Sequence[int]] | None = None,
        channels: Iterable[str] = (),
        writable_after: float = 0.0,
        **options: bool,
    ) -> None:
        check_topic(name)
        if name in self.topics:
            raise UsageError(f"the topic {name!r} exists already")
        if not 0 < replicas <= len(self.nodes):
            raise UsageError(f"replicas={replicas}: the cluster has {len(self.nodes)} nodes")
        for node in (each for nodes in placement or () for each in nodes):
            if not 0 <= node < len(self.nodes):
                raise UsageError(f"placement: there is no node {node}, only 0 to {len(self.nodes) - 1}")
        topic = Topic(name, replicas, **options)
        placement = self._in_turn(topic, partitions) if placement is None else placement
        self._expand(topic, placement, new=writable_after > 0)
        self.topics[name] = topic
        for channel in channels:
            self.create_channel(name, channel)
        if writable_after > 0:
            self._later(writable_after, self._give_leaders, topic)

    def add_partitions(self, name: str, count: int) -> None:
        topic = self.topic(name)
        self._expand(topic, self._in_turn(topic, count))

    def _in_turn(self, topic: Topic, count: int) -> list[list[int]]:
        """Choose the nodes of new partitions: each is led by the next node."""
        if not 0 < count <= MAX_PARTITIONS - len(topic.partitions):
            raise UsageError(f"partitions={count}: a topic has 1 to {MAX_PARTITIONS}")
        firsts = [next(self._first_leader) for _ in range(count)]
        return [[(first + step) % len(self.nodes) for step in range(topic.replicas)] for first in firsts]

    def _expand(self, topic: Topic, placement: Iterable[Sequence[int]], *, new: bool = False) -> None:
        for nodes in placement:
            self._add(Partition(topic, len(topic.partitions), nodes, self._first_id), new=new)

    def _add(self, partition: Partition, *, new: bool = False) -> None:
        partition.new = new
        partition.topic.partitions.append(partition)
        self._elect(partition)

    def _give_leaders(self, topic: Topic) -> None:
        for partition in topic.partitions:
            partition.new = False
            self._elect(partition)

    def add_standalone(self, name: str, number: int, node: int, *, extended: bool) -> None:
        """Add a partition on a node that has no coordinator, as INTERNAL_CREATE_TOPIC does."""
        topic = self.topics.setdefault(name, Topic(name, 1, extended=extended))
        if all(partition.number != number for partition in topic.partitions):
            self._add(Partition(topic, number, [node], self._first_id))

    def delete_topic(self, name: str) -> None:
        for partition in self.topic(name).partitions:
            partition.lead_by(None)
        del self.topics[name]

    def create_channel(self, topic: str, channel: str) -> None:
        for partition in self.topic(topic).partitions:
            self.channel_of(partition, channel)

    def channel_of(self, partition: Partition, name: str) -> Channel:
        """Return a channel of the partition; a new one starts at the end of the log."""
        found = partition.channels.get(name)
        if found is None:
            found = Channel(check_channel(name), partition.log, self._first_twice)
            partition.channels[name] = found
        return found

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise UsageError(f"there is no topic {name!r} in this cluster")
        return self.topics[name]

    def partition(self, topic: str, number: int) -> Partition:
        for partition in self.topic(topic).partitions:
            if partition.number == number:
                return partition
        raise UsageError(f"the topic {topic!r} has no partition {number}")

    @property
    def partitions(self) -> Iterable[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def held(self, topic: str, number: int, node: int) -> Partition | None:
        """Return a partition of which this node has a replica; -1 is the first, preferably one led here."""
        known = self.topics.get(topic)
        held = [each for each in known.partitions if node in each.replicas] if known is not None else []
        if number == -1:
            led = [each for each in held if each.leader == node]
            return next(iter(led or held), None)
        return next((each for each in held if each.number == number), None)

    # What is stored

    def messages(self, topic: str, partition: int) -> list[StoredMessage]:
        return [stored.report() for stored in self.partition(topic, partition).log]

    def channel(self, topic: str, partition: int, name: str) -> ChannelState:
        channel = self.partition(topic, partition).channels.get(name)
        return ChannelState(0, 0, 0, 0) if channel is None else channel.state()

    def seek(self, topic: str, partition: int, channel: str, position: int) -> None:
        self.channel_of(self.partition(topic, partition), channel).seek(position)

    # Publishing

    async def wait_for_replicas(self, partition: Partition, node: NodeState, *, traced: bool) -> None:
        """Return when a publish can be stored, as soon as all replicas answer; else raise Refused."""
        while True:
            disabled = node.write_disabled == "all" or (node.write_disabled and partition.topic.ordered)
            if partition.leader != node.index or (disabled and not traced):
                raise Refused(NOT_LEADER)
            if partition.moving:
                raise Refused(NOT_WRITABLE)
            if self._all_answer(partition):
                partition.waiting_since, partition.quorum_lost = None, False
                return
            if partition.waiting_since is None:
                partition.waiting_since = self.clock()
            hold = self._quorum_timeout if partition.blocked_for is None else partition.blocked_for
            if partition.quorum_lost or self.clock() - partition.waiting_since >= hold:
                partition.quorum_lost = True
                raise Refused(NOT_LEADER)
            await asyncio.sleep(TICK)

    def _in_sync(self, partition: Partition) -> list[NodeState]:
        return [self.nodes[each] for each in partition.replicas if not self.nodes[each].lost]

    def _has_quorum(self, partition: Partition) -> bool:
        return len(self._in_sync(partition)) > len(partition.replicas) // 2

    def _all_answer(self, partition: Partition) -> bool:
        """Whether every replica in sync answers, and they are more than half of all."""
        answering = all(node.responsive for node in self._in_sync(partition))
        return answering and partition.blocked_for is None and self._has_quorum(partition)

    def shown_leader(self, partition: Partition, *, write: bool) -> int | None:
        """Return the leader as a nsqlookupd shows it to readers or writers."""
        leader = partition.leader
        if leader is None or not self.nodes[leader].running:
            return None
        lost = partition.quorum_lost and not self._all_answer(partition)
        return None if write and (lost or not self._has_quorum(partition)) else leader

    def leader(self, topic: str, partition: int) -> int | None:
        return self.partition(topic, partition).leader

    def is_writable(self, topic: str) -> bool:
        partitions = self.topic(topic).partitions
        return all(
            each.leader is not None and not each.moving and self._all_answer(each) for each in partitions
        )

    # Failures

    def failed(self, node: NodeState) -> None:
        """A node was killed or stalled: after the election time the coordinator gives it up."""
        node.failures += 1
        if self.coordinator:
            self._later(self._election_time, self._give_up, node, node.failures)

    def _give_up(self, node: NodeState, failure: int) -> None:
        if node.failures == failure and not node.responsive:
            node.lost = True
            for partition in self.partitions:
                self._elect(partition)

    def recovered(self, node: NodeState) -> None:
        """A node answers again: it catches up at once, and leads the partitions that have no leader."""
        node.lost = False
        for partition in self.partitions:
            self._elect(partition)

    def _elect(self, partition: Partition) -> None:
        """Give a partition another leader if it has none, or one that is lost."""
        leader = partition.leader
        if partition.new or (leader is not None and not self.nodes[leader].lost):
            return
        candidates = self._candidates(partition)
        if candidates or leader is not None:
            partition.lead_by(candidates[0] if candidates else None)

    def _candidates(self, partition: Partition) -> list[int]:
        return [node.index for node in self._in_sync(partition) if node.responsive]

    def lose_fins(self, node: NodeState, count: int) -> None:
        """Forget the last FINs of each channel that this node leads."""
        for partition in self.partitions:
            if partition.leader == node.index:
                for channel in partition.channels.values():
                    channel.lose_fins(count)

    def block(self, topic: str, number: int, seconds: float | None) -> int | None:
        """Stop a replica of a partition, as far as this partition is concerned; None lets it go on."""
        partition = self.partition(topic, number)
        partition.blocked_for = seconds
        return partition.leader

    def begin_move(self, topic: str, number: int, to: int | None) -> int:
        """Begin to move a leader; return where to. Until ``end_move`` publishes are refused."""
        partition = self.partition(topic, number)
        if to is None:
            others = [each for each in self._candidates(partition) if each != partition.leader]
            if not others:
                raise UsageError(f"no other replica of {topic} partition {number} could lead it")
            to = others[0]
        if not self.nodes[to].responsive:
            raise UsageError(f"node {to} cannot lead {topic} partition {number}: it does not run")
        partition.moving = True
        return to

    def end_move(self, topic: str, number: int, to: int) -> None:
        partition = self.partition(topic, number)
        partition.moving = False
        if self.nodes[to].responsive and partition.leader != to:
            if to not in partition.replicas:  # it takes the place of the old leader
                place = partition.replicas.index(partition.leader) if partition.leader is not None else 0
                partition.replicas[place] = to
            partition.lead_by(to)

    def deliver_all(self) -> None:
        for partition in self.partitions:
            self.deliver(partition)

    def deliver(self, partition: Partition) -> None:
        """Let the channels of a partition deliver, unless its leader is stalled."""
        if partition.leader is not None and self.nodes[partition.leader].responsive:
            for channel in partition.channels.values():
                channel.deliver(self.clock())
