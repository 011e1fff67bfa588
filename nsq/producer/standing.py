"""How one nsqd has treated us, and when it is dialled again. Pure: time and chance are arguments."""

from __future__ import annotations

import math

from nsq.errors import NsqError

#: The longest pause that anybody is kept waiting for when there is no other nsqd to go to.
URGENT_PAUSE = 1.0

_MAX_DOUBLINGS = 32


class Standing:
    """Pauses double from ``initial`` to ``longest``, each between half of that and all of it, by chance."""

    def __init__(self, initial: float, longest: float) -> None:
        self._initial = initial
        self._longest = longest
        self.failures = 0  # since it last answered a publish
        self.failed_at = -math.inf
        self.pause = 0.0
        self.reason: NsqError | None = None
        self._final = False

    def failed(self, reason: NsqError, now: float, chance: float, *, final: bool = False) -> None:
        """It could not be dialled, or hung up before it had answered anything, or cannot store.

        ``final``: waiting will not change that.
        """
        self._final = final
        self.failures += 1
        self.failed_at = now
        self.reason = reason
        steps = min(self.failures - 1, _MAX_DOUBLINGS)
        self.pause = min(self._initial * 2.0**steps, self._longest) * (0.5 + chance / 2)

    def lost(self, reason: NsqError, now: float) -> None:
        """A connection that worked is gone. It may be back at once: nsqds restart, idle connections are
        cut.
        """
        self.failed_at = now
        self.reason = reason
        self.pause = 0.0
        self._final = False

    def proven(self) -> None:
        """It has stored something."""
        self.failures = 0
        self.pause = 0.0
        self.reason = None
        self._final = False

    def due_at(self, *, urgent: bool) -> float:
        """When it may be dialled. ``urgent``: somebody waits, and nobody else is there."""
        return self.failed_at + (min(self.pause, URGENT_PAUSE) if urgent else self.pause)

    def hopeless_since(self, since: float) -> bool:
        """Whether it said after ``since`` what waiting does not change: wrong secret, no TLS, no nsqd at
        all.
        """
        return self._final and self.failed_at >= since
