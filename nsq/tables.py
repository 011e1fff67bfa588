"""Text tables for the command-line programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: A number, perhaps with a unit, or "-" for a missing one.
_NUMBER = re.compile(r"-|[0-9.,]+( .*|[a-z])?")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table with columns as narrow as possible: text aligned left, numbers right."""
    lines = [[*heads], *([_cell(value) for value in row] for row in rows)]
    columns = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        right = all(map(_NUMBER.fullmatch, column[1:]))
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def printable(text: str) -> str:
    """Replace control characters, which a terminal would obey: text from an nsqd may hold any."""
    return "".join(each if each.isprintable() else "?" for each in text)
