"""Runs comparisons: every contender once a round, in turns, so that each meets the same weather."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from benchmarks.comparison import Comparison, Outcome

Progress = Callable[[str], None]


def run(comparison: Comparison, rounds: int, scale: float, progress: Progress) -> Outcome:
    outcome = Outcome(comparison)
    if comparison.not_run:
        progress(f"{comparison.name}: not run, {comparison.not_run}")
        return outcome
    rounds = min(comparison.rounds or rounds, rounds) * comparison.turns
    with _one_core() if comparison.one_core else nullcontext():
        _run(outcome, rounds, scale, progress)
    return outcome


def _run(outcome: Outcome, rounds: int, scale: float, progress: Progress) -> None:
    comparison = outcome.comparison
    columns = list(comparison.contenders)
    for turn in range(rounds):
        # There and back again: nobody always comes first, or behind the same neighbour.
        for column in columns if turn % 2 == 0 else reversed(columns):
            numbers = comparison.contenders[column](scale)
            outcome.measured.setdefault(column, []).append(numbers)
            shown = ", ".join(
                f"{figure.name} {number:,.4g} {figure.unit}"
                for figure, number in zip(comparison.figures, numbers, strict=True)
            )
            progress(f"{comparison.name} {turn + 1}/{rounds} {column}: {shown}")


@contextmanager
def _one_core() -> Iterator[None]:
    """Also for the processes that are started meanwhile. Elsewhere than on Linux there is no such thing."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
