"""Backing off: one counter for a whole consumer, moved by at most one outcome per period. Pure.

A failure stops delivery for a while; then a single message tests the waters. Its success takes the counter
down by one, its failure up by one, and either way the next period begins, until the counter is back at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

#: Seconds to wait at a level from 1 up; ``chance`` gives a float in [0, 1).
Strategy = Callable[[int], float]


def exponential(multiplier: float) -> Strategy:
    """multiplier, doubled at every level: 2, 4, 8 … seconds for a multiplier of 1."""
    return lambda level: multiplier * _power(level)


def full_jitter(multiplier: float, chance: Callable[[], float]) -> Strategy:
    """Anything from 0 to what ``exponential`` gives, so that many consumers do not return at once."""
    return lambda level: chance() * multiplier * _power(level)


def _power(level: int) -> float:
    return float(2 ** min(level, 62))


class Outcome(Enum):
    """What a handled message says about the service behind the handler."""

    SUCCESS = 1
    FAILURE = 2
    NEUTRAL = 3


class Backoff:
    """``waiting`` while nothing may be delivered, ``testing`` while one message may; neither in
    normal times.
    """

    def __init__(self, strategy: Strategy, longest: float) -> None:
        self._strategy = strategy
        self._longest = longest
        self.level = 0
        self.until: float | None = None

    @property
    def active(self) -> bool:
        return self.level > 0

    @property
    def waiting(self) -> bool:
        return self.until is not None

    @property
    def testing(self) -> bool:
        return self.level > 0 and self.until is None

    def outcome(self, outcome: Outcome, now: float) -> bool:
        """Take note of a message's outcome; whether anything changed by it."""
        if self.waiting or self._longest <= 0:
            return False
        if outcome is Outcome.FAILURE:
            self._rise()
        elif self.level == 0:
            return False
        elif outcome is Outcome.SUCCESS:
            self.level -= 1
        self.until = now + min(self._strategy(self.level), self._longest) if self.level else None
        return True

    def _rise(self) -> None:
        # The first failure counts whatever the strategy says; later ones only up to the longest wait.
        if self.level == 0 or self._strategy(self.level + 1) <= self._longest:
            self.level += 1

    def expire(self, now: float) -> bool:
        """Whether the wait is over by now; from here on one message may test the waters."""
        if self.until is None or now < self.until:
            return False
        self.until = None
        return True
