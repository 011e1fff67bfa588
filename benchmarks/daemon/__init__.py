"""nsqd under the loads that decide what it is good for."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import Comparison
from benchmarks.daemon import endurance, responsiveness, throughput

__all__ = ["comparisons"]


def comparisons() -> Sequence[Comparison]:
    return [*throughput.comparisons(), *responsiveness.comparisons(), *endurance.comparisons()]
