"""Evaluates the records of a chaos test: confirmed and handled messages, duplicates and their reasons, and
how long the recovery took.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos import records
from tests.chaos.actors import Actor, Life
from tests.chaos.records import Record
from tests.chaos.stage import MSG_TIMEOUT, READ_TIMEOUT, Injury

#: Seconds by which one side may learn later than the other that a connection has ended.
_LAG = READ_TIMEOUT * 2 + 2.0
_SOON = 0.9


class Handling(NamedTuple):
    life: Life
    record: Record


class Progress:
    """The messages that are confirmed and handled so far; ``look`` reads the new records."""

    def __init__(self, actors: Iterable[Actor]) -> None:
        self.confirmed: set[int] = set()
        self.handled: set[int] = set()
        self._actors = list(actors)
        self._offsets: Counter[str] = Counter()

    def look(self) -> None:
        for actor in self._actors:
            for life in actor.lives:
                new = list(records.read(life.path, self._offsets[str(life.path)]))
                self._offsets[str(life.path)] += len(new)
                self.confirmed.update(each.message for each in new if each.kind == records.CONFIRMED)
                self.handled.update(each.message for each in new if each.kind == records.HANDLED)

    @property
    def missing(self) -> set[int]:
        return self.confirmed - self.handled


@dataclass
class Verdict:
    """``duplicates`` by their reason, ``faults`` by their kind; recoveries are seconds, and from what."""

    faults: Counter[str] = field(default_factory=Counter)
    confirmed: int = 0
    lost: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    recoveries: list[tuple[float, str]] = field(default_factory=list)
    overlapping: int = 0
    unrecovered: list[str] = field(default_factory=list)

    def recovery(self, share: float) -> float:
        times = sorted(seconds for seconds, _ in self.recoveries)
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

    def __str__(self) -> str:
        slowest = [f"{seconds:.2f} s {what}" for seconds, what in sorted(self.recoveries)[-3:]]
        return "\n".join(
            [
                f"faults      {_listed(self.faults)}",
                f"messages    {self.confirmed:,} confirmed, {self.lost} lost",
                f"duplicates  {_listed(self.duplicates)}; {len(self.unexplained)} unexplained",
                f"recovery    {len(self.recoveries)} times: p50 {self.recovery(0.5):.2f} s, "
                f"p99 {self.recovery(0.99):.2f} s, max {self.recovery(1.0):.2f} s; "
                f"{self.overlapping} overtaken by the next fault, {len(self.unrecovered)} never",
                f"            the slowest: {', '.join(slowest) or 'none'}",
            ]
        )


def _listed(counted: Counter[str]) -> str:
    each = ", ".join(f"{name} {count:,}" for name, count in counted.most_common())
    return f"{counted.total():,}: {each}" if each else "none"


def judge(actors: Iterable[Actor], injuries: list[Injury]) -> Verdict:
    actors = list(actors)
    verdict = Verdict(faults=Counter(injury.kind for injury in injuries))
    _Duplicates(actors, injuries).explain(verdict)
    _measure(actors, injuries, verdict)
    return verdict


class _Duplicates:
    def __init__(self, actors: list[Actor], injuries: list[Injury]) -> None:
        self._doubted: set[int] = set()
        self._handled: dict[int, list[Handling]] = defaultdict(list)
        self._refused: dict[tuple[int, int], list[float]] = defaultdict(list)  # by life and nsqd
        self._lost: dict[tuple[int, int], list[float]] = defaultdict(list)  # by life and nsqd
        self._ends: dict[tuple[str, int], set[float]] = defaultdict(set)  # by kind and nsqd
        for injury in injuries:
            if injury.kind in ("kill nsqd", "restart nsqd"):
                for _, nsqd in injury.pairs:
                    self._ends[injury.kind, nsqd].add(injury.at)
        for life, record in _all(actors):
            if record.kind == records.DOUBTED:
                self._doubted.add(record.message)
            elif record.kind == records.HANDLED:
                self._handled[record.message].append(Handling(life, record))
            elif record.kind == records.REFUSED:
                self._refused[life.number, record.nsqd].append(record.at)
            elif record.kind == records.LOST:
                self._lost[life.number, record.nsqd].append(record.at)

    def explain(self, verdict: Verdict) -> None:
        for message, handlings in self._handled.items():
            if len(handlings) == 1:
                continue
            copies = _copies(handlings)
            for before, again in itertools.chain.from_iterable(map(itertools.pairwise, copies)):
                self._account(verdict, message, before, again, self._reason(before, again))
            for before, again in itertools.pairwise(copy[0] for copy in copies):
                doubted = "published again after PublishUncertain" if message in self._doubted else ""
                self._account(verdict, message, before, again, doubted or self._reason(before, again))

    def _account(
        self, verdict: Verdict, message: int, before: Handling, again: Handling, reason: str
    ) -> None:
        if reason:
            verdict.duplicates[reason] += 1
        else:
            verdict.unexplained.append(_words(message, before, again))

    def _reason(self, before: Handling, again: Handling) -> str:
        first, second = before.record, again.record
        if _between(self._ends["kill nsqd", first.nsqd], first.since, second.since):
            return "nsqd killed before the answer lasted"
        if _between(self._ends["restart nsqd", first.nsqd], first.since, second.since):
            return "nsqd stopped before the answer arrived"
        if before.life.killed is not None and first.since <= before.life.killed <= second.since + _LAG:
            return "consumer killed before its answer arrived"
        if _between(self._lost[before.life.number, first.nsqd], first.since, second.since + _LAG):
            return "connection lost before the answer arrived"
        late = _between(self._refused[before.life.number, first.nsqd], first.since, second.since + _LAG)
        if late or second.since - first.since >= MSG_TIMEOUT * _SOON:
            return "answered too late"
        if before.life.timeout is not None:
            return "consumer stopped before its answer arrived"
        return ""


def _copies(handlings: list[Handling]) -> list[list[Handling]]:
    """The history of each copy of a message; the one that came first is the first."""
    found: dict[tuple[int, int], list[Handling]] = {}
    for each in sorted(handlings, key=lambda each: each.record.since):
        found.setdefault((each.record.nsqd, each.record.copy), []).append(each)
    return list(found.values())


def _words(message: int, before: Handling, again: Handling) -> str:
    return f"{message}: {before.life.words} {before.record}, then {again.life.words} {again.record}"


def _between(moments: Iterable[float], begin: float, end: float) -> bool:
    return any(begin <= moment <= end for moment in moments)


def _all(actors: Iterable[Actor]) -> Iterator[tuple[Life, Record]]:
    for actor in actors:
        for life in actor.lives:
            for record in records.read(life.path):
                yield life, record


def _measure(actors: list[Actor], injuries: list[Injury], verdict: Verdict) -> None:
    """The time from the end of a fault until the subscriber gets a message of that nsqd again. If another
    fault comes in between, its recovery counts for both.
    """
    came: dict[tuple[str, int], list[float]] = defaultdict(list)
    for life, record in _all(actors):
        if record.kind == records.HANDLED:
            came[life.actor.name, record.nsqd].append(record.since)
    for moments in came.values():
        moments.sort()
    struck: dict[tuple[str, int], list[float]] = defaultdict(list)
    for injury in injuries:
        for pair in injury.pairs:
            struck[pair].append(injury.at)
    for injury in injuries:
        for pair in injury.pairs:
            again = _first_after(came[pair], injury.until)
            next_strike = _first_after(struck[pair], injury.at + 1e-9)
            if next_strike is not None and (again is None or next_strike < again):
                verdict.overlapping += 1
            elif again is None:
                verdict.unrecovered.append(f"{injury.kind}: nothing came to {pair[0]} from nsqd {pair[1]}")
            else:
                verdict.recoveries.append((again - injury.until, f"{injury.kind} {pair[0]}"))


def _first_after(moments: list[float], moment: float) -> float | None:
    place = bisect.bisect_left(moments, moment)
    return moments[place] if place < len(moments) else None
