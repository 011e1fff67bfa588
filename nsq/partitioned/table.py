"""What a client knows of a partitioned cluster, and what follows.

    Cluster    the answers of all nsqlookupds → one table for each topic: who leads which partition
    Refresh    when to ask the nsqlookupds ahead of their regular rounds
    PUBLISH    what each answer to a publish means

Pure: time and chance are arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from nsq.discovery.directory import Kind
from nsq.errors import (
    BadBody,
    BadExt,
    BadMessage,
    BadPartition,
    BadTopic,
    ExtNotSupported,
    InvalidCommand,
    InvalidHeader,
    InvalidTraceId,
    MpubFailed,
    NotLeader,
    NotWritable,
    PubFailed,
    ServerError,
    TagNotSupported,
    TooMuchWaiting,
    TopicNotExist,
)
from nsq.partitioned.wire import MAX_PARTITIONS, Meta
from nsq.pauses import doubled

#: Seconds after its refusal in which a node leads only where no other is named, or one that refused later.
_DOUBT = 60.0
#: The most partitions that a text lists.
_MOST_SHOWN = 20

# Answers of nsqlookupds.


@dataclass(frozen=True)
class TopicAnswer:
    """One nsqlookupd's answer about one topic. ``meta`` is None without a coordinator."""

    leaders: Mapping[int, str] = field(default_factory=dict)
    meta: Meta | None = None
    known: bool = True
    reason: str = ""
    """Why the topic is unknown, in the nsqlookupd's words."""


@dataclass(frozen=True)
class ClusterAnswer:
    """What one nsqlookupd has said in one round: its kind and the nsqlookupds of its cluster, with the leader
    among them; then the topics of a partitioned cluster, or the nsqds of an original one.
    """

    kind: Kind
    nsqlookupds: tuple[str, ...] | None = ()
    """None if it could not list them: those that it has listed before stay."""
    leader: str = ""
    topics: Mapping[str, TopicAnswer] = field(default_factory=dict)
    nsqds: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why it has no answer about a topic, by topic."""


# Tables.


@dataclass(frozen=True)
class TopicTable:
    """A snapshot of one topic: who leads which partition.

    ``known`` is None until an nsqlookupd has answered. Without ``meta``, from nsqlookupds without a
    coordinator, the number of partitions is unknown.
    """

    topic: str
    meta: Meta | None = None
    leaders: Mapping[int, str] = field(default_factory=dict)
    known: bool | None = None
    reason: str = ""

    @property
    def missing(self) -> tuple[int, ...]:
        """The partitions without a leader."""
        count = self.meta.partition_num if self.meta is not None else 0
        return tuple(partition for partition in range(count) if partition not in self.leaders)

    @property
    def incomplete(self) -> bool:
        """Whether a partition has no leader, or the topic is not known yet."""
        count = self.meta.partition_num if self.meta is not None else 0
        return not self.leaders or len(self.leaders) < count

    @property
    def problem(self) -> str:
        """Say in words which partitions an incomplete topic lacks."""
        missing = self.missing
        if not missing:
            return "" if self.leaders else "no partition has a leader"
        shown, more = ", ".join(map(str, missing[:_MOST_SHOWN])), len(missing) - _MOST_SHOWN
        return f"partitions without a leader: {shown}" + f" and {more} more" * (more > 0)


@dataclass(frozen=True)
class _Said:
    answer: ClusterAnswer
    asked_at: float


class _Refusal(NamedTuple):
    """A node's latest refusal to lead a partition. Questions that begin after ``until`` may name it again."""

    at: float = -math.inf
    until: float = -math.inf
    times: int = 0  # refusals in a row, each after it had been named again


_NEVER = _Refusal()


class Cluster:
    """Merges the answers of all nsqlookupds into tables.

    The answers of those that have failed since are used only where no other has answered. If two differ about
    a partition's leader, a node that has refused to be it loses for a minute. Then the nsqlookupd that leads
    them is right, else what most say, else the leader before.
    """

    def __init__(self, pinned: Kind | None = None) -> None:
        self.kind: Kind | None = pinned
        """The kind of the cluster; None until an nsqlookupd has said it."""
        self.tables: dict[str, TopicTable] = {}
        self.version = 0
        """Counts the facts: while it stays the same, so do the tables."""
        self._pinned = pinned
        self._asked_at: dict[str, float] = {}  # by topic: when the latest question began that was answered
        self._said: dict[str, _Said] = {}  # by nsqlookupd: its latest answer
        self._failed: set[str] = set()  # the nsqlookupds that have failed since their answer
        self._refused: dict[str, dict[tuple[int, str], _Refusal]] = {}  # by topic, then by partition and node

    # Facts.

    def heard(self, lookupd: str, answer: ClusterAnswer, asked_at: float) -> None:
        """Note the answer of an nsqlookupd to a question that began at ``asked_at``."""
        if answer.nsqlookupds is None:
            before = self._said[lookupd].answer if lookupd in self._said else ClusterAnswer(answer.kind)
            answer = replace(answer, nsqlookupds=before.nsqlookupds, leader=before.leader)
        self._said[lookupd] = _Said(answer, asked_at)
        self._failed.discard(lookupd)
        for topic in answer.topics:
            self._asked_at[topic] = max(asked_at, self.asked_at(topic))
        self._merge(answer.topics)

    def failed(self, lookupd: str) -> None:
        """Note that an nsqlookupd did not answer. What it said before is used while no other knows better."""
        if lookupd in self._said and lookupd not in self._failed:
            self._failed.add(lookupd)
            if self._failed != self._said.keys():
                self._merge(self._said[lookupd].answer.topics)

    def keep_only(self, lookupds: Collection[str]) -> None:
        """Forget the nsqlookupds that are no longer asked."""
        for lookupd in self._said.keys() - set(lookupds):
            gone = self._said.pop(lookupd)
            self._failed.discard(lookupd)
            if self._said:  # else keep the tables until another one answers
                self._merge(gone.answer.topics)

    def refuse(self, topic: str, partition: int, address: str, now: float) -> float:
        """Note that a node does not lead a partition: leave it out until a question that begins later names
        it again. If it refuses again then, a growing pause comes first. Return its end.
        """
        refused = self._refused.setdefault(topic, {})
        leads = self.table(topic).leaders.get(partition) == address
        at, until, times = refused.get((partition, address), _NEVER)
        if now - at > _DOUBT:
            until, times = now, 1
        elif leads:
            until, times = now + retry_ceiling(times), times + 1
        until = max(now, until)
        refused[partition, address] = _Refusal(now, until, times)
        if leads:
            self._merge((topic,), only=partition)
        return until

    def nsqds(self) -> frozenset[str]:
        """The nsqds of a cluster of the original kind."""
        return frozenset().union(*[said.answer.nsqds for said in self._heeded()])

    def lookupds(self) -> frozenset[str]:
        """The nsqlookupds that the cluster lists."""
        return frozenset().union(*[said.answer.nsqlookupds or () for said in self._heeded()])

    # Decisions.

    def table(self, topic: str) -> TopicTable:
        return self.tables.get(topic) or TopicTable(topic)

    def is_disputed(self, topic: str, partition: int) -> bool:
        """Whether nsqlookupds name different leaders of a partition."""
        answers = [said.answer.topics.get(topic, TopicAnswer()) for said in self._heeded()]
        return len({each.leaders[partition] for each in answers if partition in each.leaders}) > 1

    def asked_at(self, topic: str) -> float:
        """Return when the latest question about a topic began that has been answered."""
        return self._asked_at.get(topic, -math.inf)

    def _heeded(self) -> list[_Said]:
        """The answers to go by: of those that have not failed since, or of all if each has."""
        return [said for lookupd, said in self._said.items() if lookupd not in self._failed] or list(
            self._said.values()
        )

    def _merge(self, topics: Iterable[str], only: int | None = None) -> None:
        """Make the tables of these topics again; with ``only``, elect no more than the leader of that
        partition, as a node that leaves is refused for each of its partitions.
        """
        self.version += 1
        heeded = self._heeded()
        kinds = {said.answer.kind for said in heeded}
        if self._pinned is None and kinds:
            self.kind = "partitioned" if "partitioned" in kinds else "original"
        named = Counter(said.answer.leader for said in heeded if said.answer.leader)
        leading = self._said.get(max(named, key=lambda each: (named[each], each))) if named else None
        for topic in topics:
            table = self._merged(topic, heeded, leading, only)
            if table != self.tables.get(topic):  # else keep the same object
                self.tables[topic] = table

    def _merged(self, topic: str, heeded: list[_Said], leading: _Said | None, only: int | None) -> TopicTable:
        before = self.table(topic)
        said = [each for each in heeded if topic in each.answer.topics]
        if leading is not None:  # first, so that it wins
            said.sort(key=lambda each: each is not leading)
        answers = [each.answer.topics[topic] for each in said]
        known = [answer for answer in answers if answer.known]
        if not answers:  # none is asked any more: what was known stays, but for what was refused since
            refused, latest = self._refused.get(topic, {}), self.asked_at(topic)
            kept = {
                key: node
                for key, node in before.leaders.items()
                if refused.get((key, node), _NEVER).until < latest
            }
            return replace(before, leaders=MappingProxyType(kept))
        if not known:
            return TopicTable(topic, known=False, reason=answers[0].reason)
        meta = next((each.meta for each in known if each.meta and each.meta.partition_num > 0), None)
        refused = self._still_refused(topic, said)
        if only is not None:
            leaders = {key: node for key, node in before.leaders.items() if key != only}
            leaders |= _elect(topic, said, leading, refused, before, (only,))
        elif not refused and all(answer.leaders == known[0].leaders for answer in known):
            leaders = dict(known[0].leaders)
        else:
            leaders = _elect(topic, said, leading, refused, before)
        most = meta.partition_num if meta is not None else MAX_PARTITIONS
        if leaders and max(leaders) >= most:
            leaders = {partition: node for partition, node in leaders.items() if partition < most}
        return TopicTable(topic, meta, MappingProxyType(leaders), known=True)

    def _still_refused(self, topic: str, said: list[_Said]) -> dict[tuple[int, str], _Refusal]:
        refused = self._refused.get(topic)
        if not refused:
            return {}
        oldest = min(each.asked_at for each in said)
        kept = {key: each for key, each in refused.items() if each.at >= oldest - _DOUBT}
        self._refused[topic] = kept
        return kept


def _elect(
    topic: str,
    said: list[_Said],
    leading: _Said | None,
    refused: Mapping[tuple[int, str], _Refusal],
    before: TopicTable,
    only: Collection[int] | None = None,
) -> dict[int, str]:
    """Return the leader of each partition that any answer has, or of these only."""
    votes: dict[int, list[str]] = {}
    right: dict[int, str] = {}
    for each in said:
        answered = each.answer.topics[topic].leaders
        for partition in answered if only is None else answered.keys() & only:
            node = answered[partition]
            if each.asked_at > refused.get((partition, node), _NEVER).until:
                votes.setdefault(partition, []).append(node)
                if each is leading:
                    right[partition] = node
    leaders: dict[int, str] = {}
    for partition, nodes in votes.items():
        if nodes.count(nodes[0]) == len(nodes):  # the usual case, without the time that the rest takes
            leaders[partition] = nodes[0]
            continue
        count, former, word = Counter(nodes), before.leaders.get(partition), right.get(partition)
        refused_at = {node: refused.get((partition, node), _NEVER).at for node in nodes}
        leaders[partition] = max(
            nodes, key=lambda node: (-refused_at[node], node == word, count[node], node == former, node)
        )
    return leaders


# When to ask again.

#: Seconds before the second question while a publish or a subscription waits; the pause doubles up to the
#: longest.
_URGENT_PAUSE, _LONGEST_URGENT_PAUSE = 0.05, 1.0
#: The same while a topic is incomplete and nothing waits for it; the longest is the interval of the rounds.
_PAUSE = 1.0


class Refresh:
    """When to ask the nsqlookupds ahead of their regular rounds: at once when something waits for an answer,
    then again with growing pauses.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._asked_at = -math.inf
        self._asked = 0  # since all was well

    def asked(self, now: float) -> None:
        self._asked_at = now
        self._asked += 1

    def hurry(self) -> None:
        """Let the pauses begin anew: something has changed in the cluster."""
        self._asked = min(self._asked, 1)

    def due_at(self, *, urgent: bool, incomplete: bool) -> float:
        """Return when to ask; infinity if the regular rounds will do."""
        if not urgent and not incomplete:
            self._asked = 0
            return math.inf
        doubled = 2.0 ** min(self._asked, 62)
        pause = (
            min(_LONGEST_URGENT_PAUSE, _URGENT_PAUSE * doubled)
            if urgent
            else min(self._interval, _PAUSE * doubled / 2)
        )
        return self._asked_at + pause


# What the answers to a publish mean.


class Rule(NamedTuple):
    """What an answer to a publish means. ``tries`` counts the further tries that it allows."""

    tries: float = 0
    look_up: bool = False
    closes: bool = False
    maybe_stored: bool = False


#: The rule of an answer that no other line has: as with the original NSQ, it is final.
_FINAL = Rule(closes=True)

PUBLISH: Mapping[type[ServerError], Rule] = {
    NotLeader: Rule(math.inf, look_up=True),
    NotWritable: Rule(math.inf, look_up=True),
    TopicNotExist: Rule(math.inf, look_up=True, closes=True),
    PubFailed: Rule(math.inf, maybe_stored=True),
    MpubFailed: Rule(math.inf, maybe_stored=True),
    TooMuchWaiting: Rule(math.inf, closes=True),
    InvalidCommand: Rule(1, closes=True),
    ExtNotSupported: Rule(1, look_up=True),
    BadTopic: _FINAL,
    BadPartition: _FINAL,
    BadMessage: _FINAL,
    BadBody: _FINAL,
    TagNotSupported: Rule(),
    BadExt: Rule(),
    InvalidHeader: Rule(),
    InvalidTraceId: Rule(),
}

#: Seconds. A refusal that took longer came from a leader that has lost its quorum: the message may be stored.
_SLOW_REFUSAL = 1.0
#: The pause before the second try; it doubles up to the longest.
_RETRY_PAUSE, _LONGEST_RETRY_PAUSE = 0.05, 1.0


def rule_of(error: ServerError, took: float = 0.0, *, mpub_ext: bool = False) -> Rule:
    """Return the rule of an answer that came after ``took`` seconds."""
    rule = PUBLISH.get(type(error))
    if rule is None:
        rule = Rule(math.inf if error.retry else 0, closes=error.fatal, maybe_stored=error.maybe_stored)
    if isinstance(error, (NotLeader, NotWritable)) and took > _SLOW_REFUSAL:
        rule = rule._replace(maybe_stored=True)
    # After an error to MPUB_EXT nsqd takes the rest of the batch for commands.
    return rule._replace(closes=True) if mpub_ext else rule


def retry_pause(tries: int, chance: Callable[[], float]) -> float:
    """Return the seconds before the next try, after ``tries`` that failed: half of them are random."""
    return retry_ceiling(tries) * (1.0 - chance() / 2.0)


def retry_ceiling(tries: int) -> float:
    """Return the most seconds before the next try."""
    return doubled(_RETRY_PAUSE, _LONGEST_RETRY_PAUSE, tries - 1)
