"""How far a query has read: a position for every receiver, as Spark writes it into its checkpoint.

    {"wal": "8c1f…", "at": {"host-1a2b": 7, "host-3c4d": [2, 1500]}, "from": {"host-3c4d": 3}}

The first receiver has been read through segment 7, the second through 2 and 1,500 rows of the one after it.
``from`` is there in the offset that reads a receiver for the first time: where its segments began, so that
a run from the checkpoint misses one that has vanished. Pure: no file, clock or process, nothing of Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nsq.errors import WalForeign
from nsq.spark.wal.store import Segment

_SHOWN = 200


class Position(NamedTuple):
    """All segments through ``segment``, and the first ``rows`` of the one after it."""

    segment: int = 0
    rows: int = 0


BEGINNING = Position()


class Slice(NamedTuple):
    """The rows of a segment from ``first`` up to, but not including, ``end``; ``bytes`` is an estimate."""

    segment: Segment
    first: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def bytes(self) -> int:
        return self.segment.bytes * self.rows // max(1, self.segment.rows)


class Lost(NamedTuple):
    """A segment that is needed and not there."""

    receiver: str
    number: int


@dataclass(frozen=True)
class Offset:
    wal: str
    at: Mapping[str, Position] = field(default_factory=dict)
    origins: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The same text for the same offset, whatever order it was made in."""
        at = {name: _packed(self.at[name]) for name in sorted(self.at)}
        origins = {name: self.origins[name] for name in sorted(self.origins)}
        return {"wal": self.wal, "at": at} | ({"from": origins} if origins else {})

    @classmethod
    def of_json(cls, told: Any) -> Offset:
        """Raises WalForeign for what no query of this source has written."""
        match told:
            case {"wal": str(wal), "at": dict(at)} if isinstance(told.get("from", {}), dict):
                positions = {str(name): _unpacked(value) for name, value in at.items()}
                return cls(wal, positions, {str(name): int(n) for name, n in told.get("from", {}).items()})
        raise WalForeign(f"the checkpoint holds no offset of this source: {str(told)[:_SHOWN]}")

    def position(self, receiver: str) -> Position:
        return self.at.get(receiver, BEGINNING)

    def has_read(self, segment: Segment) -> bool:
        """All of it."""
        return segment.number <= self.position(segment.receiver).segment


def _packed(position: Position) -> int | list[int]:
    return list(position) if position.rows else position.segment


def _unpacked(value: Any) -> Position:
    match value:
        case int(segment):
            return Position(segment)
        case [int(segment), int(rows)]:
            return Position(segment, rows)
    raise WalForeign(f"the checkpoint holds no position of this source: {str(value)[:_SHOWN]}")


def unread(start: Offset, segments: Iterable[Segment]) -> list[Slice]:
    """What the log holds beyond ``start``, in the order of ``segments``."""
    slices = []
    for segment in segments:
        read = start.position(segment.receiver)
        first = read.rows if segment.number == read.segment + 1 else 0
        if segment.number > read.segment and first < segment.rows:
            slices.append(Slice(segment, first, segment.rows))
    return slices


def between(start: Offset, end: Offset, segments: Iterable[Segment]) -> tuple[list[Slice], list[Lost]]:
    """What a batch consists of, always the same for the same two offsets, and what is missing of it."""
    listed = {(segment.receiver, segment.number): segment for segment in segments}
    slices: list[Slice] = []
    lost: list[Lost] = []
    for receiver in sorted(end.at):
        for number, first, rows in _wanted(receiver, start, end):
            segment = listed.get((receiver, number))
            if segment is None:
                lost.append(Lost(receiver, number))
            else:
                slices.append(Slice(segment, first, segment.rows if rows is None else rows))
    return slices, lost


def _wanted(receiver: str, start: Offset, end: Offset) -> Iterable[tuple[int, int, int | None]]:
    """Number, first row and end of each piece of one receiver; None is the end of the segment."""
    low, high = start.at.get(receiver), end.at[receiver]
    if low is None:
        low = Position(end.origins.get(receiver, 1) - 1)
    for number in range(low.segment + 1, high.segment + 1):
        yield number, low.rows if number == low.segment + 1 else 0, None
    first = low.rows if high.segment == low.segment else 0
    if high.rows > first:
        yield high.segment + 1, first, high.rows
