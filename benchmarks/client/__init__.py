"""Our client, other clients, and minimal Python programs, under the same loads."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.client import consuming, delivery, publishing, weight
from benchmarks.comparison import Comparison

__all__ = ["comparisons"]


def comparisons() -> Sequence[Comparison]:
    return [
        *consuming.comparisons(),
        *publishing.comparisons(),
        *delivery.comparisons(),
        *weight.comparisons(),
    ]
