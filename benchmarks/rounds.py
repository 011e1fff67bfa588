"""Runs comparisons: every contender once per round, so that all have the same conditions."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.comparison import Comparison, Outcome

Progress = Callable[[str], None]


def run(comparison: Comparison, rounds: int, scale: float, progress: Progress) -> Outcome:
    outcome = Outcome(comparison)
    if comparison.not_run:
        progress(f"{comparison.name}: not run, {comparison.not_run}")
        return outcome
    rounds = min(comparison.rounds or rounds, rounds) * comparison.turns
    columns = list(comparison.contenders)
    for turn in range(rounds):
        # Reverse every second round, so that no contender is always first or always after the same one.
        for column in columns if turn % 2 == 0 else reversed(columns):
            numbers = comparison.contenders[column](scale)
            outcome.measured.setdefault(column, []).append(numbers)
            shown = ", ".join(
                f"{figure.name} {number:,.4g} {figure.unit}"
                for figure, number in zip(comparison.figures, numbers, strict=True)
            )
            progress(f"{comparison.name} {turn + 1}/{rounds} {column}: {shown}")
    return outcome
