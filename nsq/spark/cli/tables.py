"""Text for people: tables, counts, bytes and times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they must be; numbers to the right."""
    lines = [[*heads], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    right = [column for column in range(len(heads)) if _numeric(line[column] for line in lines[1:])]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def size(count: float) -> str:
    """Bytes in a unit one can read: ``1.5 MiB``."""
    step = 0
    while count >= 1024 and step < len(_STEPS) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.0f} {_STEPS[step]}" if step == 0 or count >= 100 else f"{count:.1f} {_STEPS[step]}"


def span(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _numeric(cells: Iterable[str]) -> bool:
    return all(
        cell == "-" or cell.replace(",", "").split(" ")[0].replace(".", "").isdigit() for cell in cells
    )
