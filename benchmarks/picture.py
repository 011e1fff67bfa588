"""The results as an SVG for light and dark pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.comparison import Outcome

_WIDTH = 760
_LABELS, _NUMBERS = 110, 130  # the least space left of the bars, and the space right of them
_LETTER = 7  # the width of a letter
_TITLE, _BAR, _GAP, _SPACE = 26, 18, 6, 16
_FOOT = 26
_OURS = ("nsq", "nsqd", "nsqd --durable")

#: Colours for the reader's colour scheme; the first ones are the default.
_STYLE = """
  text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
  .title { font-weight: 600 }
  .foot { font-size: 11px; fill: #57606a }
  .ours { fill: #1a7f5a }
  .other { fill: #9aa4af }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .foot { fill: #9198a1 }
    .ours { fill: #3fb984 }
    .other { fill: #6e7781 }
  }
"""


def draw(outcomes: Sequence[Outcome]) -> str:
    """Draw a group of bars for each outcome, with its own scale; each bar shows its median."""
    parts: list[str] = []
    top = 8
    longest = max(len(column) for outcome in outcomes for column in outcome.comparison.contenders)
    labels = max(_LABELS, longest * _LETTER + 16)
    for outcome in outcomes:
        group, height = _group(outcome, top, labels)
        parts += group
        top += height + _SPACE
    foot = "messages a second, medians; each group has its own scale"
    parts.append(_text("foot", 0, top + 10, foot))
    height = top + _FOOT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" role="img">',
            f"<style>{_STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def _group(outcome: Outcome, top: int, labels: int) -> tuple[list[str], int]:
    columns = {
        column: spread.median
        for column in outcome.comparison.contenders
        if (spread := outcome.spread(column)) is not None
    }
    unit = outcome.comparison.figures[0].unit
    longest = max(columns.values(), default=1.0)
    parts = [_text("title", 0, top + 14, outcome.comparison.pictured)]
    place = top + _TITLE
    for column, value in columns.items():
        length = max(2.0, value / longest * (_WIDTH - labels - _NUMBERS))
        kind = "ours" if column in _OURS else "other"
        parts.append(_text("label", labels - 8, place + 13, column, anchor="end"))
        parts.append(
            f'<rect class="{kind}" x="{labels}" y="{place}" width="{length:.1f}" height="{_BAR}" rx="2"/>'
        )
        parts.append(_text("number", labels + length + 8, place + 13, f"{_rounded(value)} {unit}"))
        place += _BAR + _GAP
    return parts, place - top


def _rounded(value: float) -> str:
    """Format with three digits: the fourth is noise."""
    whole = round(value)
    return f"{round(whole, min(0, 3 - len(str(whole)))):,}"


def _text(kind: str, x: float, y: float, words: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
