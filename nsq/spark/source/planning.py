"""A batch cut into tasks. Pure: no file, clock or process, nothing of Spark's."""

from __future__ import annotations

from collections.abc import Sequence

from nsq.spark.source.offsets import Slice

#: A cut this close to an end of a segment, as a share of it, moves there: whoever reads a crumb of a segment
#: has to find it first.
_CRUMB = 0.1


def tasks(slices: Sequence[Slice], target_bytes: int, least: int) -> list[list[Slice]]:
    """Tasks of about ``target_bytes`` each, at least ``least`` of them where there are enough rows."""
    total = sum(map(_weight, slices))
    count = max(1, least, round(sum(piece.bytes for piece in slices) / target_bytes))
    crumb = _CRUMB if count > least else 0.0
    cuts = [total * number / count for number in range(1, count)]
    done: list[list[Slice]] = []
    task: list[Slice] = []
    before = 0
    for piece in slices:
        first, weight = piece.first, _weight(piece)
        while cuts and cuts[0] <= before + weight:
            end = _row(piece, (cuts.pop(0) - before) / weight, crumb)
            if end > first:
                task.append(piece._replace(first=first, end=end))
                first = end
            done.append(task)
            task = []
        if first < piece.end:
            task.append(piece._replace(first=first))
        before += weight
    return [task for task in [*done, task] if task]


def _row(piece: Slice, share: float, crumb: float) -> int:
    if share < crumb:
        return piece.first
    return piece.end if share > 1 - crumb else piece.first + round(piece.rows * share)


def _weight(piece: Slice) -> int:
    """Rows of empty bodies are work too."""
    return piece.bytes + piece.rows
