"""Comparisons, their results, and whether these are good enough. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

#: How far below its bar a ratio may fall before the run fails: machines are noisy.
TOLERANCE = 0.1


class Spread(NamedTuple):
    """The median, minimum and maximum of several measurements."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values))


@dataclass(frozen=True)
class Figure:
    """One number of a measurement. An ``aim`` is printed beside it, but missing it is no failure."""

    name: str
    unit: str
    aim: float | None = None


@dataclass(frozen=True)
class Bar:
    """``column`` must reach at least ``ratio`` times the first figure of ``reference``, or with ``at_most``
    at most that, if less is better.
    """

    column: str
    reference: str
    ratio: float
    at_most: bool = False

    def reached(self, ratio: float) -> float:
        """Return the share of the bar that is reached: 1 or more passes."""
        return self.ratio / ratio if self.at_most else ratio / self.ratio


#: One measurement of one contender: takes the scale (1 for the full load, less for a quick run), returns a
#: number for each figure.
Measure = Callable[[float], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One load, and its contenders by the name of their column."""

    name: str
    figures: Sequence[Figure]
    contenders: Mapping[str, Measure]
    bars: Sequence[Bar] = ()
    rounds: int | None = None  # the largest number; None for the run's number
    turns: int = 1  # factor for the rounds of short, noisy measurements
    not_run: str = ""  # the reason, if it cannot run here
    absent: Mapping[str, str] = field(default_factory=dict)  # contenders that should run, and why they cannot
    pictured: str = ""  # its title in the chart, if it is shown there


#: Columns that run no code of the package, or that of another client or daemon.
_OTHERS = {
    *("minimal", "raw", "bulk", "bare", "bare socket", "bare program", "bodies", "http.client, ssl"),
    *("gnsq", "pynsq", "NSQ_BIN_DIR"),
}
#: The least share of the older speed.
_OLD_SHARE = 0.95


def beside_old(comparison: Comparison, with_old: Callable[[Measure], Measure]) -> Comparison:
    """Compare our columns with themselves on older code; ``with_old`` makes a measurement use that."""
    contenders: dict[str, Measure] = {}
    bars: list[Bar] = []
    more_is_better = comparison.figures[0].unit.endswith("/s")
    for column, measure in comparison.contenders.items():
        if column not in _OTHERS:
            old = f"{column}, old"
            contenders |= {column: measure, old: with_old(measure)}
            share = _OLD_SHARE if more_is_better else round(1 / _OLD_SHARE, 2)
            bars.append(Bar(column, old, share, at_most=not more_is_better))
    return replace(comparison, contenders=contenders, bars=bars, absent={}, pictured="")


@dataclass
class Outcome:
    """The measurements of a comparison: for each column one list of numbers per round."""

    comparison: Comparison
    measured: dict[str, list[Sequence[float]]] = field(default_factory=dict)

    def values(self, column: str, place: int = 0) -> list[float]:
        return [numbers[place] for numbers in self.measured.get(column, ())]

    def spread(self, column: str, place: int = 0) -> Spread | None:
        values = self.values(column, place)
        return Spread.of(values) if values else None

    def judge(self) -> list[Verdict]:
        """Return the bars whose two sides were measured."""
        measured = self.measured
        return [
            Verdict(bar, self._ratio(bar))
            for bar in self.comparison.bars
            if bar.column in measured and bar.reference in measured
        ]

    def _ratio(self, bar: Bar) -> Spread:
        """Compare round by round, because a slow moment of the machine affects both sides."""
        pairs = zip(self.values(bar.column), self.values(bar.reference), strict=True)
        return Spread.of([own / other for own, other in pairs])


@dataclass(frozen=True)
class Verdict:
    bar: Bar
    ratio: Spread

    @property
    def ok(self) -> bool:
        return self.bar.reached(self.ratio.median) >= 1

    @property
    def failed(self) -> bool:
        """Whether a bar is missed by more than the tolerance."""
        return self.bar.reached(self.ratio.median) < 1 - TOLERANCE
