"""nsqd and nsqlookupd under typical loads."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import Comparison
from benchmarks.daemon import endurance, registering, responsiveness, throughput

__all__ = ["comparisons"]


def comparisons() -> Sequence[Comparison]:
    return [
        *throughput.comparisons(),
        *responsiveness.comparisons(),
        *registering.comparisons(),
        *endurance.comparisons(),
    ]
