"""Snapshots of topics for a producer: what follows from the leaders and the open connections.

A leader that is connected takes its partitions' publishes. The pool's thread makes new snapshots when either
changes; callers read them. Pure, but for the warning that keys move.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from nsq.errors import ConfigError
from nsq.log import Logger
from nsq.partitioned.table import TopicTable
from nsq.partitioned.wire import MAX_PARTITIONS
from nsq.producer.routing import Target, Targets
from nsq.wire.names import check_topic

log = Logger("nsq.producer")

#: By partition: the nsqd whose further endpoint, with this number, takes its publishes alone.
Apart = Mapping[tuple[str, int], tuple[str, int]]

#: A topic, and a partition; None: the publishes that wait for any partition, or for their topic's table.
Place = tuple[str, int | None]


class TopicSnapshot(NamedTuple):
    """A snapshot of a topic for callers."""

    table: TopicTable
    modulus: int | None
    """The number by which keys are divided."""
    live: tuple[int, ...]
    """The partitions that take publishes without a key."""
    destinations: tuple[str, ...]
    """Theirs, if publishes without a key take them in turn."""
    targets: Mapping[int, Target]
    turn: itertools.count[int]


class Snapshots:
    """The latest snapshots. ``moduli`` pins numbers by which keys are divided; with ``in_turn`` publishes
    without a key take the partitions in turn.
    """

    def __init__(self, moduli: Mapping[str, int], *, in_turn: bool) -> None:
        self.open: Mapping[str, Target] = {}
        """By address: the connected nsqds."""
        self._apart: dict[tuple[str, int], Target | None] = {}
        self.topics: Mapping[str, TopicSnapshot] = {}
        self.targets: Mapping[str, Targets] = {}
        """By destination."""
        self.seen: object = None
        """What they were made of."""
        self.incomplete = False
        """Whether a partition has no leader, or one that is not connected or does not answer: another node
        may lead it by now.
        """
        self.moved: dict[str, str] = {}
        """By topic: how its number of partitions has changed."""
        self._moduli = checked_moduli(moduli)
        self._in_turn = in_turn
        self._counts: dict[str, int] = {}  # partitions by topic
        self._turns: dict[str, itertools.count[int]] = {}

    def update(self, targets: Targets, tables: Mapping[str, TopicTable], apart: Apart) -> bool:
        """Make new snapshots if anything has changed; return whether it has."""
        seen = targets, tuple(endpoint.overdue for endpoint, _ in targets), dict(tables), dict(apart)
        if seen == self.seen:
            return False
        self.seen = seen
        numbered = {(endpoint.address, endpoint.number): (endpoint, conn) for endpoint, conn in targets}
        self.open = {address: target for (address, number), target in numbered.items() if not number}
        self._apart = {place: numbered.get(where) for place, where in apart.items()}
        self.topics = {table.topic: self._topic(table) for table in tables.values() if table.known}
        self.targets = {
            destination(name, partition): (target,)
            for name, topic in self.topics.items()
            for partition, target in topic.targets.items()
        }
        self.incomplete = any(
            topic.table.incomplete
            or len(topic.targets) < len(topic.table.leaders)
            or any(endpoint.overdue for endpoint, _ in topic.targets.values())
            for topic in self.topics.values()
        )
        return True

    def without(self, hidden: Collection[Place]) -> tuple[Mapping[str, TopicSnapshot], Mapping[str, Targets]]:
        """Return topics, and targets by destination, without some partitions."""
        if not hidden:
            return self.topics, self.targets
        without = {destination(*place) for place in hidden}
        topics = {}
        for name, topic in self.topics.items():
            live = tuple(each for each in topic.live if (name, each) not in hidden)
            topics[name] = topic._replace(live=live, destinations=self._destinations(name, live))
        return topics, {where: each for where, each in self.targets.items() if where not in without}

    def disconnected(self, table: TopicTable) -> TopicSnapshot:
        """Return the snapshot of a topic without any connection."""
        return TopicSnapshot(table, self._modulus(table), (), (), {}, itertools.count())

    def _topic(self, table: TopicTable) -> TopicSnapshot:
        name, open_ = table.topic, self.open
        found = {
            each: self._apart[name, each] if (name, each) in self._apart else open_.get(leader)
            for each, leader in table.leaders.items()
        }
        targets = {each: target for each, target in found.items() if target is not None}
        # A blocked partition takes publishes without a key only where all are blocked.
        shared = [each for each in table.leaders if (name, each) not in self._apart]
        usable = [each for each in targets if each in shared or not shared]
        live = tuple(each for each in usable if not targets[each][0].overdue) or tuple(usable)
        modulus = self._modulus(table)
        if modulus is not None:
            self._note_count(name, modulus)
        turn = self._turns.setdefault(name, itertools.count())
        return TopicSnapshot(table, modulus, live, self._destinations(name, live), targets, turn)

    def _modulus(self, table: TopicTable) -> int | None:
        return self._moduli.get(table.topic) or (table.meta.partition_num if table.meta else None)

    def _destinations(self, name: str, live: Iterable[int]) -> tuple[str, ...]:
        return tuple(destination(name, partition) for partition in live) if self._in_turn else ()

    def _note_count(self, name: str, count: int) -> None:
        before = self._counts.get(name, count)
        self._counts[name] = count
        if before != count:
            self.moved[name] = f"the number of partitions changed from {before} to {count}"
            log.warning(
                "the number of partitions of %r changed from %d to %d: from now on keys go to other "
                "partitions, so that order for a key holds only before and after",
                name,
                before,
                count,
                extra={"nsq_topic": name},
            )


def destination(name: str, partition: int | None) -> str:
    """Return the words after PUB."""
    return f"{name} {partition}"


def checked_moduli(given: Mapping[str, int]) -> dict[str, int]:
    for topic, count in given.items():
        check_topic(topic)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_PARTITIONS:
            raise ConfigError(
                f"key_partitions has {count!r} for {topic!r}, must be an int from 1 to {MAX_PARTITIONS}"
            )
    return dict(given)
