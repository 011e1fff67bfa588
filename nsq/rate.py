"""A rate: at most so many a second. Pure: time is an argument."""

from __future__ import annotations

#: Less than this of a step is an error of rounding.
_ROUNDING = 1e-9


class Rate:
    """At most ``per_second`` on average; after a pause as many at once as fit into ``burst`` seconds, but at
    least one. 0 or less is no limit. ``per_second`` may be changed at any time.
    """

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self.per_second = per_second
        self._burst = burst
        self._balance = 1.0
        self._at = now

    def take(self, wanted: int, now: float) -> int:
        """Return how many of the wanted may go now."""
        if self.per_second <= 0:
            return wanted
        self._fill(now)
        allowed = max(0, min(wanted, int(self._balance + _ROUNDING)))
        self._balance -= allowed
        return allowed

    def take_all(self, wanted: int, now: float) -> bool:
        """Return whether all of them may go now. They may be more than fit into the burst: then those that
        come after them wait longer.
        """
        if self.per_second <= 0:
            return True
        self._fill(now)
        if self._balance < 1.0 - _ROUNDING:
            return False
        self._balance -= wanted
        return True

    def pause(self) -> float:
        """Return the seconds until the next one may go."""
        per_second = self.per_second
        return max(0.0, (1.0 - self._balance) / per_second) if per_second > 0 else 0.0

    def _fill(self, now: float) -> None:
        most = max(1.0, self.per_second * self._burst)
        self._balance = min(self._balance + max(0.0, now - self._at) * self.per_second, most)
        self._at = now
