"""The pause before another try, which doubles with each failure."""

from __future__ import annotations


def doubled(first: float, longest: float, failures: int) -> float:
    """Return ``first``, doubled once for each failure, but not more than ``longest``."""
    # Doubling beyond 2**62 would only overflow.
    return min(longest, first * 2.0 ** min(max(failures, 0), 62))
