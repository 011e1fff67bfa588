"""Invented results of measurements."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import Bar, Comparison, Figure, Outcome


def outcome(
    measured: dict[str, list[float]],
    bars: Sequence[Bar] = (),
    *,
    name: str = "load",
    pictured: str = "",
    absent: dict[str, str] | None = None,
) -> Outcome:
    comparison = Comparison(
        name=name,
        figures=[Figure("", "msg/s")],
        contenders={column: lambda scale: [scale] for column in measured},
        bars=bars,
        pictured=pictured,
        absent=absent or {},
    )
    return Outcome(comparison, {column: [[value] for value in values] for column, values in measured.items()})
