"""When to try again: pauses that grow with each failure. Pure: time and chance are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from nsq.errors import NsqError
from nsq.pauses import doubled

_URGENT_PAUSE = 1.0  # the longest pause, in seconds, when a publish waits and no nsqd is connected


@dataclass(frozen=True)
class Pauses:
    """Random pauses below a ceiling that doubles from ``initial`` to ``longest``."""

    initial: float
    longest: float
    chance: Callable[[], float]

    def ceiling(self, failures: int) -> float:
        return doubled(self.initial, self.longest, failures)

    def draw(self, failures: int) -> float:
        """Return a pause with full jitter: from 0 to the ceiling."""
        return self.chance() * self.ceiling(failures)

    def draw_late(self, failures: int) -> float:
        """Return a pause from half the ceiling to the ceiling, never zero."""
        return self.ceiling(failures) - self.draw(failures) / 2.0


class DialBackoff:
    """The pause before an nsqd is dialed again, and the reason for it. ``draw`` maps failures to a pause."""

    def __init__(self, draw: Callable[[int], float]) -> None:
        self._draw = draw
        self.failures = 0  # in a row, since a connection last proved itself
        self.failed_at = -math.inf
        self.pause = 0.0
        self.reason: NsqError | None = None
        self.final = False  # waiting does not help: a wrong secret, no TLS, another protocol

    def failed(self, reason: NsqError | None, now: float, *, final: bool = False) -> None:
        """Note that a dial failed, or that a connection ended before it proved itself."""
        self.failed_at = now
        self.reason = reason
        self.final = final
        self.pause = self._draw(self.failures)
        self.failures += 1

    def lost(self, reason: NsqError | None, now: float) -> None:
        """Note that a working connection is gone. Dial at once: nsqds restart, idle connections are cut."""
        self.failed_at = now
        self.reason = reason
        self.pause = 0.0
        self.final = False

    def succeeded(self) -> None:
        self.failures = 0
        self.pause = 0.0
        self.reason = None
        self.final = False

    def due_at(self, *, urgent: bool) -> float:
        """Return when to dial next. ``urgent``: a publish waits, and no other nsqd is connected."""
        return self.failed_at + (min(self.pause, _URGENT_PAUSE) if urgent else self.pause)
