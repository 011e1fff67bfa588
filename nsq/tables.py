"""Tables of text, as the command-line programs show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: Also with a unit, or none at all.
_NUMBER = re.compile(r"-|[0-9.,]+( .*|[a-z])?")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they must be: names to the left, numbers to the right."""
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
    """Replace control characters, which a terminal would obey: an nsqd may say anything."""
    return "".join(each if each.isprintable() else "?" for each in text)
