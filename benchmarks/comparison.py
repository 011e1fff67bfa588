"""What is compared, what came out, and whether it is enough: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

#: How far below its bar a ratio may fall before the run fails: machines are noisy.
TOLERANCE = 0.1


class Spread(NamedTuple):
    """The middle of several measurements, and how far they went."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values))


@dataclass(frozen=True)
class Figure:
    """One number that a measurement gives. An ``aim`` is printed beside it and fails nothing."""

    name: str
    unit: str
    aim: float | None = None


@dataclass(frozen=True)
class Bar:
    """``column`` reaches at least ``ratio`` times what ``reference`` reaches, in the first figure;
    ``at_most`` that where less is better.
    """

    column: str
    reference: str
    ratio: float
    at_most: bool = False

    def reached(self, ratio: float) -> float:
        """How much of the bar that is: 1 and more is enough."""
        return self.ratio / ratio if self.at_most else ratio / self.ratio


#: One measurement of one contender: from the scale (1 for all of the load, less for a quick look) to a number
#: for each figure.
Measure = Callable[[float], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One load and everything that is put under it, by the name of its column."""

    name: str
    figures: Sequence[Figure]
    contenders: Mapping[str, Measure]
    bars: Sequence[Bar] = ()
    rounds: int | None = None  # at most; None for as many as the run asks for
    turns: int = 1  # times as many rounds, of what is short and depends on the moment
    not_run: str = ""  # the reason, when it cannot be run here
    absent: Mapping[str, str] = field(default_factory=dict)  # contenders that should be here, and why not
    pictured: str = ""  # its title in the picture, when it is worth one


@dataclass
class Outcome:
    """What a comparison measured: for each column one list of numbers a round."""

    comparison: Comparison
    measured: dict[str, list[Sequence[float]]] = field(default_factory=dict)

    def values(self, column: str, place: int = 0) -> list[float]:
        return [numbers[place] for numbers in self.measured.get(column, ())]

    def spread(self, column: str, place: int = 0) -> Spread | None:
        values = self.values(column, place)
        return Spread.of(values) if values else None

    def judge(self) -> list[Verdict]:
        """Of the bars whose both sides were measured."""
        measured = self.measured
        return [
            Verdict(bar, self._ratio(bar))
            for bar in self.comparison.bars
            if bar.column in measured and bar.reference in measured
        ]

    def _ratio(self, bar: Bar) -> Spread:
        """Round by round: what slows the machine down for a while slows both."""
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
        """Short by more than noise explains."""
        return self.bar.reached(self.ratio.median) < 1 - TOLERANCE
