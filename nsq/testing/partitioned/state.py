"""The state of a partitioned cluster: who leads which partition, what is stored, and who is alive.

Knows no sockets; the time is an argument. All replicas of a partition share one log, so nothing that a leader
has acknowledged is ever lost, and a new leader continues where the old one stopped.
"""

from __future__ import annotations

import heapq
import itertools
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from nsq.errors import UsageError
from nsq.wire.names import check_channel, check_topic

from .channel import Channel, Stored

#: Bytes that the server's queue adds to the body of a stored message.
STORED_OVERHEAD = 30
MAX_PARTITIONS = 1024
_ID = struct.Struct(">QQ")
_COUNTER_BITS = 50
_NOBODY = -1

NOT_LEADER = b"E_FAILED_ON_NOT_LEADER "
NOT_WRITABLE = b"E_FAILED_ON_NOT_WRITABLE "
TOPIC_NOT_EXIST = b"E_TOPIC_NOT_EXIST "


class MustWait(Exception):
    """The publish waits for replicas that do not answer."""


class Refusal(NamedTuple):
    """An answer that a test wants to be given instead of the true one."""

    verb: str
    answer: bytes
    close: bool


class NodeState:
    """What the cluster knows about one nsqd."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.running = True
        self.stalled = False
        self.lost = False  # the coordinator has given up on it
        self.failures = 0
        self.write_disabled = ""  # or "all", or "ordered"
        self.refusals: list[Refusal] = []
        self.received: Counter[str] = Counter()

    @property
    def responsive(self) -> bool:
        return self.running and not self.stalled


class Topic:
    def __init__(
        self, name: str, *, replicas: int, ordered: bool, extended: bool, registered_channels_only: bool
    ) -> None:
        self.name = name
        self.replicas = replicas
        self.ordered = ordered
        self.extended = extended
        self.registered_channels_only = registered_channels_only
        self.partitions: list[Partition] = []


class Partition:
    """One partition of a topic: its log, its channels, its leader and its replicas in sync."""

    def __init__(self, topic: Topic, number: int, replicas: Iterable[int], first_id: int) -> None:
        self.topic = topic
        self.number = number
        self.replicas = list(replicas)
        self.leader: int | None = self.replicas[0]
        self.in_sync = set(self.replicas)
        self.log: list[Stored] = []
        self.end = 0  # the offset of the next message
        self.channels: dict[str, Channel] = {}
        self.moving = False
        self.quorum_lost = False
        self.waiting_since: float | None = None
        self.blocked_for: float | None = None  # a replica is stopped: a publish waits that long in vain
        #: The node that stores a publish without asking others; None while anything is unusual.
        self.writable_at = self.replicas[0]
        self._next_id = (number << _COUNTER_BITS) + first_id

    def extend(self, bodies: list[bytes], timestamp: int) -> None:
        """Append many plain messages."""
        ext = b"\0" if self.topic.extended else b""
        overhead, pack, offset, next_id = STORED_OVERHEAD + len(ext), _ID.pack, self.end, self._next_id
        add = self.log.append
        for body in bodies:
            size = overhead + len(body)
            add(Stored(pack(next_id, 0), timestamp, ext, body, offset, size))
            offset, next_id = offset + size, next_id + 1
        self.end, self._next_id = offset, next_id

    def append(self, body: bytes, timestamp: int, trace_id: int = 0, ext: bytes = b"") -> Stored:
        if not ext and self.topic.extended:
            ext = b"\0"
        size = STORED_OVERHEAD + len(ext) + len(body)
        stored = Stored(_ID.pack(self._next_id, trace_id), timestamp, ext, body, self.end, size)
        self.log.append(stored)
        self._next_id += 1
        self.end += size
        return stored

    def channel(self, name: str, *, first_twice: bool) -> Channel:
        """Return the channel; a new one starts at the end of the log."""
        found = self.channels.get(name)
        if found is None:
            found = self.channels[name] = Channel(name, self.log, first_twice=first_twice)
        return found

    def lead_by(self, node: int | None) -> None:
        """Let another node lead. Ids go on with a gap, as they do in the real cluster."""
        self.leader = node
        self._next_id += 1
        for channel in self.channels.values():
            channel.leader_changed()


class ClusterState:
    """Nodes, topics, and what happens when a node fails or comes back."""

    def __init__(
        self,
        nodes: int,
        *,
        coordinator: bool,
        first_twice: bool,
        election_time: float,
        quorum_timeout: float,
    ) -> None:
        self.nodes = [NodeState(index) for index in range(nodes)]
        self.topics: dict[str, Topic] = {}
        self.coordinator = coordinator
        self.first_twice = first_twice
        self.election_time = election_time
        self.quorum_timeout = quorum_timeout
        self._first_id = 2 if coordinator else 1
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._first_leader = itertools.count()

    # Topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replicas: int,
        ordered: bool,
        extended: bool,
        placement: Sequence[Sequence[int]] | None,
        channels: Iterable[str],
        registered_channels_only: bool,
    ) -> None:
        check_topic(name)
        if name in self.topics:
            raise UsageError(f"the topic {name!r} exists already")
        if not 0 < replicas <= len(self.nodes):
            raise UsageError(f"replicas={replicas}: the cluster has {len(self.nodes)} nodes")
        for node in (each for nodes in placement or () for each in nodes):
            if not 0 <= node < len(self.nodes):
                raise UsageError(f"placement: there is no node {node}, only 0 to {len(self.nodes) - 1}")
        topic = Topic(
            name,
            replicas=replicas,
            ordered=ordered,
            extended=extended,
            registered_channels_only=registered_channels_only,
        )
        self._expand(topic, self._in_turn(topic, partitions) if placement is None else placement)
        self.topics[name] = topic
        for channel in channels:
            self.create_channel(name, channel)

    def add_partitions(self, name: str, count: int) -> None:
        topic = self.topic(name)
        self._expand(topic, self._in_turn(topic, count))

    def _in_turn(self, topic: Topic, count: int) -> list[list[int]]:
        """Choose the nodes of new partitions: each is led by the next node."""
        if not 0 < count <= MAX_PARTITIONS - len(topic.partitions):
            raise UsageError(f"partitions={count}: a topic has 1 to {MAX_PARTITIONS}")
        firsts = [next(self._first_leader) for _ in range(count)]
        return [[(first + step) % len(self.nodes) for step in range(topic.replicas)] for first in firsts]

    def _expand(self, topic: Topic, placement: Iterable[Sequence[int]]) -> None:
        for nodes in placement:
            self._add(Partition(topic, len(topic.partitions), nodes, self._first_id))

    def add_standalone(self, name: str, number: int, node: int, *, extended: bool) -> None:
        """Add a partition on a node that has no coordinator, as INTERNAL_CREATE_TOPIC does."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(
                name, replicas=1, ordered=False, extended=extended, registered_channels_only=False
            )
        if all(partition.number != number for partition in topic.partitions):
            self._add(Partition(topic, number, [node], self._first_id))

    def _add(self, partition: Partition) -> None:
        partition.topic.partitions.append(partition)
        for node in self.nodes:
            if node.lost:
                partition.in_sync.discard(node.index)
        self._elect(partition)
        self._refresh(partition)

    def delete_topic(self, name: str) -> None:
        for partition in self.topic(name).partitions:
            partition.lead_by(None)
            self._refresh(partition)
        del self.topics[name]

    def create_channel(self, topic: str, channel: str) -> None:
        check_channel(channel)
        for partition in self.topic(topic).partitions:
            partition.channel(channel, first_twice=self.first_twice)

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise UsageError(f"there is no topic {name!r} in this cluster")
        return self.topics[name]

    def partition(self, topic: str, number: int) -> Partition:
        for partition in self.topic(topic).partitions:
            if partition.number == number:
                return partition
        raise UsageError(f"the topic {topic!r} has no partition {number}")

    def held(self, topic: str, number: int, node: int) -> Partition | None:
        """Return a partition of which this node has a replica; -1 is the first, preferably one led here."""
        known = self.topics.get(topic)
        held = [each for each in known.partitions if node in each.replicas] if known is not None else []
        if number == -1:
            led = [each for each in held if each.leader == node]
            return next(iter(led or held), None)
        return next((each for each in held if each.number == number), None)

    # Publishing

    def refuse(self, partition: Partition, node: NodeState, now: float, *, traced: bool) -> bytes | None:
        """Return the error for a publish at this node, None if it is stored. Raises MustWait."""
        if partition.leader != node.index:
            return NOT_LEADER
        if partition.moving:
            return NOT_WRITABLE
        disabled = node.write_disabled == "all" or (node.write_disabled and partition.topic.ordered)
        if disabled and not traced:
            return NOT_LEADER
        if partition.writable_at == node.index:
            return None
        if partition.quorum_lost:
            return NOT_LEADER
        if partition.waiting_since is None:
            partition.waiting_since = now
        blocked_for = partition.blocked_for
        if now - partition.waiting_since < (self.quorum_timeout if blocked_for is None else blocked_for):
            raise MustWait
        partition.quorum_lost = True
        return NOT_LEADER

    def shown_leader(self, partition: Partition, *, write: bool) -> int | None:
        """Return the leader as a nsqlookupd shows it to readers or writers."""
        leader = partition.leader
        if leader is None or not self.nodes[leader].running:
            return None
        if write and (partition.quorum_lost or not _has_quorum(partition)):
            return None
        return leader

    # Failures

    def failed(self, node: NodeState, now: float) -> None:
        """A node was killed or stalled: after the election time the coordinator gives it up."""
        node.failures += 1
        failure = node.failures

        def give_up(_: float) -> None:
            if node.failures == failure and not node.responsive:
                self._give_up(node)

        if self.coordinator:
            heapq.heappush(self._due, (now + self.election_time, next(self._numbers), give_up))
        self._refresh_all()

    def recovered(self, node: NodeState) -> None:
        """A node answers again: it catches up at once, and leads the partitions that have no leader."""
        node.lost = False
        for partition in self._partitions():
            if node.index in partition.replicas:
                partition.in_sync.add(node.index)
                self._elect(partition)
        self._refresh_all()

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
        self._refresh(partition)
        return to

    def end_move(self, topic: str, number: int, to: int) -> None:
        partition = self.partition(topic, number)
        partition.moving = False
        if self.nodes[to].responsive and partition.leader != to:
            if to not in partition.replicas:  # it takes the place of the old leader
                place = partition.replicas.index(partition.leader) if partition.leader is not None else 0
                partition.in_sync.discard(partition.replicas[place])
                partition.replicas[place] = to
            partition.in_sync.add(to)
            partition.lead_by(to)
        self._refresh(partition)

    def block(self, topic: str, number: int, seconds: float | None) -> int | None:
        """Stop a replica of a partition, as far as this partition is concerned; None lets it go on."""
        partition = self.partition(topic, number)
        partition.blocked_for = seconds
        self._refresh(partition)
        return partition.leader

    def tick(self, now: float) -> float:
        """Do what is due; return when something is due next."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2](now)
        return self._due[0][0] if self._due else math.inf

    def _give_up(self, node: NodeState) -> None:
        node.lost = True
        for partition in self._partitions():
            if len(partition.in_sync) > 1:
                partition.in_sync.discard(node.index)
            if partition.leader == node.index:
                partition.lead_by(None)
                self._elect(partition)
        self._refresh_all()

    def _elect(self, partition: Partition) -> None:
        leader = partition.leader
        if leader is not None and not self.nodes[leader].lost:
            return
        candidates = self._candidates(partition)
        if candidates:
            partition.lead_by(candidates[0])
        elif leader is not None:
            partition.lead_by(None)

    def _candidates(self, partition: Partition) -> list[int]:
        in_sync = [each for each in partition.replicas if each in partition.in_sync]
        return [each for each in in_sync if self.nodes[each].responsive]

    def _partitions(self) -> Iterable[Partition]:
        return (partition for topic in self.topics.values() for partition in topic.partitions)

    def _refresh_all(self) -> None:
        for partition in self._partitions():
            self._refresh(partition)

    def _refresh(self, partition: Partition) -> None:
        answering = all(self.nodes[each].responsive for each in partition.in_sync)
        answering = answering and partition.blocked_for is None
        writable = answering and partition.leader in partition.in_sync and _has_quorum(partition)
        if writable:
            partition.quorum_lost, partition.waiting_since = False, None
        leader = partition.leader
        partition.writable_at = (
            leader if writable and not partition.moving and leader is not None else _NOBODY
        )


def _has_quorum(partition: Partition) -> bool:
    return len(partition.in_sync) > len(partition.replicas) // 2
