"""The results, as a table and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.comparison import Comparison, Figure, Outcome, Spread, Verdict


def table(outcomes: Sequence[Outcome]) -> str:
    """Return one line per contender, with its ratios and the mark of each."""
    lines = [("load", "", "median", "min … max", "unit", "ratio (min … max)", "bar", "")]
    for outcome in outcomes:
        lines += _lines(outcome)
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    shown = []
    for number, line in enumerate(lines):
        cells = [
            cell.rjust(width) if place in (2, 3) else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        shown.append("  ".join(cells).rstrip())
        if number == 0:
            shown.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(shown)


_Line = tuple[str, str, str, str, str, str, str, str]


def _lines(outcome: Outcome) -> Iterable[_Line]:
    comparison = outcome.comparison
    if comparison.not_run:
        yield (comparison.name, "", "", "", "", f"not run: {comparison.not_run}", "", "")
        return
    for column, reason in comparison.absent.items():
        yield (comparison.name, column, "", "", "", f"NOT RUN: {reason}", "", "")
    for place, figure in enumerate(comparison.figures):
        for column in comparison.contenders:
            yield from _column(outcome, column, place, figure)


def _column(outcome: Outcome, column: str, place: int, figure: Figure) -> Iterable[_Line]:
    """Return a line for the figure with its first bar, and one for each further bar."""
    spread = outcome.spread(column, place)
    if spread is None:
        return
    judged = [_judged(v) for v in outcome.judge() if v.bar.column == column] if place == 0 else []
    first, *others = judged or [_aimed(figure, spread)]
    yield (
        f"{outcome.comparison.name} {figure.name}".strip(),
        column,
        _number(spread.median),
        f"{_number(spread.low)} … {_number(spread.high)}",
        figure.unit,
        *first,
    )
    for other in others:
        yield ("", "", "", "", "", *other)


def _judged(verdict: Verdict) -> tuple[str, str, str]:
    ratio, bar = verdict.ratio, verdict.bar
    shown = f"{ratio.median:.2f} of {bar.reference} ({ratio.low:.2f} … {ratio.high:.2f})"
    return shown, f"{'≤' if bar.at_most else '≥'} {bar.ratio:g}", mark(verdict)


def mark(verdict: Verdict) -> str:
    if verdict.ok:
        return "ok"
    return "short" if verdict.failed else "short, within tolerance"


def _aimed(figure: Figure, spread: Spread) -> tuple[str, str, str]:
    if figure.aim is None:
        return "", "", ""
    return "", f"aim ≤ {figure.aim:g}", "ok" if spread.median <= figure.aim else "above the aim"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def as_json(suites: Mapping[str, Sequence[Outcome]], circumstances: dict[str, Any]) -> dict[str, Any]:
    """Return the results by suite, each with the conditions of its run, because suites may come from
    different runs.
    """
    return {
        name: {**circumstances, "comparisons": [_comparison(outcome) for outcome in outcomes]}
        for name, outcomes in suites.items()
    }


def _comparison(outcome: Outcome) -> dict[str, Any]:
    comparison = outcome.comparison
    return {
        "name": comparison.name,
        "not_run": comparison.not_run or None,
        "absent": dict(comparison.absent),
        "figures": [_figure(comparison, outcome, place) for place in range(len(comparison.figures))],
        "ratios": [
            {
                "column": verdict.bar.column,
                "of": verdict.bar.reference,
                **verdict.ratio._asdict(),
                "bar": verdict.bar.ratio,
                "at_most": verdict.bar.at_most,
                "mark": mark(verdict),
            }
            for verdict in outcome.judge()
        ],
    }


def _figure(comparison: Comparison, outcome: Outcome, place: int) -> dict[str, Any]:
    figure = comparison.figures[place]
    columns = {}
    for column in comparison.contenders:
        if (spread := outcome.spread(column, place)) is not None:
            columns[column] = spread._asdict()
    return {"name": figure.name, "unit": figure.unit, "aim": figure.aim, "columns": columns}
