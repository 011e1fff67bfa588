"""When the nsqlookupds are asked, and who has answered so far. Pure.

A round asks all of them at once and is over when each has answered or its time is up. Must not import
anything that knows a socket, a thread or a clock: ``now`` and chance are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from nsq.consumer.directory import Answer

K = TypeVar("K", bound=Hashable)

#: Rounds that were requested begin at least this many seconds after the one before.
SPACING = 1.0


@dataclass(frozen=True)
class Pace:
    """``jitter`` is the share of the interval that chance decides; ``timeout`` is for a whole round."""

    interval: float
    jitter: float
    timeout: float
    chance: Callable[[], float]

    def until_next(self) -> float:
        return self.interval * (1.0 + self.jitter * (self.chance() - 0.5))

    def until_retry(self, failures: int) -> float:
        """When nobody has answered: sooner than by the interval, but less and less so."""
        ceiling = min(self.interval, SPACING * 2.0 ** min(failures, 62))
        return ceiling * (1.0 + self.chance()) / 2.0


class Rounds(Generic[K]):
    """K is what stands for an nsqlookupd."""

    def __init__(self, pace: Pace, now: float) -> None:
        self._pace = pace
        self._next = now
        self._begun = -math.inf
        self._deadline = math.inf
        self._requested = False
        self._failed = 0  # rounds in a row that nobody answered
        self._busy: set[K] = set()  # asked, and neither answered nor failed yet: their threads exist
        self._waiting: set[K] = set()  # whom the round under way waits for
        self._answers: dict[K, Answer] = {}
        self._under_way = False

    # When.

    def request(self, now: float) -> None:
        """A round is wanted before it is time; requests before it begins are one request."""
        self._requested = True
        self._next = min(self._next, max(now, self._begun + SPACING))

    def due(self, now: float) -> bool:
        """Whether a round is to begin. A requested one does not wait for the stragglers of the one under
        way.
        """
        return now >= self._next and (self._requested or not self._under_way)

    def over(self, now: float) -> bool:
        """Whether the round under way is to end."""
        return self._under_way and (not self._waiting or now >= self._deadline)

    def next_due(self) -> float:
        """When ``due`` or ``over`` are to be asked again unless something happens before."""
        if not self._under_way:
            return self._next
        return min(self._deadline, self._next) if self._requested else self._deadline

    @property
    def under_way(self) -> bool:
        return self._under_way

    # A round.

    def begin(self, lookupds: Iterable[K], now: float) -> list[K]:
        """Whom to ask. Who is busy with an earlier question is not asked again; that answer will do."""
        self._waiting = set(lookupds)
        self._answers = {}
        self._under_way = True
        self._requested = False
        self._begun = now
        self._next = now + self._pace.until_next()
        self._deadline = now + self._pace.timeout
        asked = [lookupd for lookupd in self._waiting if lookupd not in self._busy]
        self._busy.update(asked)
        return asked

    def answered(self, lookupd: K, answer: Answer) -> bool:
        """Whether anybody still waits for it."""
        self._busy.discard(lookupd)
        if lookupd not in self._waiting:
            return False
        self._waiting.discard(lookupd)
        self._answers[lookupd] = answer
        return True

    def withdraw(self, lookupd: K) -> None:
        """It does not belong to the nsqlookupds any more: its answer counts for nothing."""
        self._waiting.discard(lookupd)
        self._answers.pop(lookupd, None)

    @property
    def missing(self) -> frozenset[K]:
        """Who has not answered yet."""
        return frozenset(self._waiting)

    def end(self, now: float) -> dict[K, Answer]:
        """All answers of the round, None for those that are missing."""
        answers = self._answers | dict.fromkeys(self._waiting)
        self._waiting = set()
        self._under_way = False
        if any(answer is not None for answer in answers.values()):
            self._failed = 0
        elif answers:
            self._failed += 1
            self._next = min(self._next, now + self._pace.until_retry(self._failed))
        return answers
