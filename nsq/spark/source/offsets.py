"""Offsets: how far a query has read, which rows a batch takes, and how the batch is cut into tasks.

An offset is a position for every receiver, as Spark writes it into its checkpoint:

    {"wal": "8c1f…", "at": {"host-1a2b": 7, "host-3c4d": [2, 1500]}, "from": {"host-3c4d": 3}}

The query has read the first receiver through segment 7, and the second one through segment 2 plus 1,500 rows
of segment 3. The first offset with a receiver says in ``from`` where it began: a segment, or ``[3, 20]``, a
segment and the number of rows skipped in it. So two offsets suffice to plan a batch again, and to detect a
lost segment. ``turn`` counts batches without rows: such a batch lets Spark commit, or is the first one of a
checkpoint. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nsq.errors import WalForeign
from nsq.spark.wal import manifest
from nsq.spark.wal.names import Position, Segment

_SHOWN = 200
#: The most names of lost segments in an error.
_MOST_NAMES = 10


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


@dataclass(frozen=True)
class Offset:
    wal: str
    at: Mapping[str, Position] = field(default_factory=dict)
    origins: Mapping[str, Position] = field(default_factory=dict)
    turn: int = 0
    foreign: bool = field(default=False, compare=False)  # replaces an offset of another log

    def to_json(self) -> dict[str, Any]:
        """The offset as JSON; equal offsets give equal JSON."""
        at = {name: _packed(position) for name, position in sorted(self.at.items())}
        fields: dict[str, Any] = {"wal": self.wal, "at": at}
        if self.origins:
            # In JSON: the first segment that is read, and the number of rows skipped in it.
            origins = sorted(self.origins.items())
            fields["from"] = {name: _packed(Position(last + 1, rows)) for name, (last, rows) in origins}
        if self.turn:
            fields["turn"] = self.turn
        return fields

    @classmethod
    def of_json(cls, given: Any) -> Offset:
        """Parse an offset; raises WalForeign for one that this source has not written."""
        match given:
            case {"wal": str(wal), "at": dict(at)} if isinstance(given.get("from", {}), dict):
                positions = {str(name): _unpacked(value) for name, value in at.items()}
                origins = {str(name): _unpacked(value) for name, value in given.get("from", {}).items()}
                origins = {name: Position(one.segment - 1, one.rows) for name, one in origins.items()}
                return cls(wal, positions, origins, int(given.get("turn", 0)))
        raise WalForeign(f"the checkpoint holds no offset of this source: {str(given)[:_SHOWN]}")

    @property
    def begun(self) -> bool:
        """Whether this offset is the end of a batch, not the start of a new checkpoint."""
        return bool(self.at or self.turn)

    def position(self, receiver: str) -> Position:
        return self.at.get(receiver, Position())


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
    """The slices of ``segments`` beyond ``start``, in their order."""
    slices = []
    for segment in segments:
        read = start.position(segment.receiver)
        first = read.rows if segment.number == read.segment + 1 else 0
        if segment.number > read.segment and first < segment.rows:
            slices.append(Slice(segment, first, segment.rows))
    return slices


def between(
    start: Offset, end: Offset, segments: Iterable[Segment]
) -> tuple[list[Slice], list[tuple[str, int]]]:
    """The slices of the batch between two offsets, always the same ones, and the receivers and numbers of
    segments that are missing.
    """
    listed = {(segment.receiver, segment.number): segment for segment in segments}
    slices: list[Slice] = []
    lost: list[tuple[str, int]] = []
    for receiver, high in sorted(end.at.items()):
        low = start.at.get(receiver, end.origins.get(receiver, Position()))
        for number in range(low.segment + 1, high.segment + 1 + bool(high.rows)):
            segment = listed.get((receiver, number))
            first = low.rows if number == low.segment + 1 else 0
            if number > high.segment and high.rows <= first:
                continue  # the batch begins and ends at the same row
            if segment is None:
                lost.append((receiver, number))
            else:
                slices.append(Slice(segment, first, high.rows if number > high.segment else segment.rows))
    return slices, lost


class TimeRange(NamedTuple):
    """Messages from ``since`` on and before ``until``, in nanoseconds since 1970."""

    since: int = -(1 << 63)
    until: int = (1 << 63) - 1

    def narrowed(self, since: int | None, until: int | None) -> TimeRange:
        """The part of it between two other times; None is no bound."""
        later = self.since if since is None else min(max(self.since, since), ALWAYS.until)
        sooner = self.until if until is None else max(min(self.until, until), ALWAYS.since)
        return TimeRange(later, sooner)

    def overlaps(self, oldest: int, newest: int) -> bool:
        return self.since <= newest and oldest < self.until


ALWAYS = TimeRange()


def names_of(lost: Sequence[tuple[str, int]]) -> list[str]:
    """The names of lost segments for a message; of many, the first ones."""
    names = [manifest.segment_name(receiver, number) for receiver, number in lost[:_MOST_NAMES]]
    return [*names, f"and {len(lost) - _MOST_NAMES} more"] if len(lost) > _MOST_NAMES else names


# What a batch takes


class Limits(NamedTuple):
    """Limits of a batch; None means no limit. Rows are exact; bytes are estimated by a segment's average."""

    rows: int | None = None
    bytes: int | None = None

    def tightened(self, rows: int | None) -> Limits:
        known = [limit for limit in (self.rows, rows) if limit is not None]
        return Limits(min(known, default=None), self.bytes)

    def reached(self, amount: Amount) -> bool:
        return (self.rows is not None and amount.rows >= self.rows) or (
            self.bytes is not None and amount.bytes >= self.bytes
        )


class Amount(NamedTuple):
    rows: int = 0
    bytes: int = 0


def amount(slices: Iterable[Slice]) -> Amount:
    listed = list(slices)
    return Amount(sum(piece.rows for piece in listed), sum(piece.bytes for piece in listed))


def admitted(
    start: Offset, segments: Sequence[Segment], present: Collection[str], limits: Limits
) -> tuple[Offset, Amount]:
    """Where a batch from ``start`` ends, and its size: at least one row, if there is one.

    Receivers share the limits evenly, so that none is starved; those with less than their share leave the
    rest to the others. The new offset keeps only receivers that are ``present``: the others have ended, and
    their segments are deleted. That happens here because an offset may change only with new data.
    """
    pieces: dict[str, list[Slice]] = {}
    for piece in unread(start, segments):
        pieces.setdefault(piece.segment.receiver, []).append(piece)
    if not pieces:
        return start, Amount()
    by_rows = _shares(pieces, limits.rows, lambda piece: piece.rows)
    by_bytes = _shares(pieces, limits.bytes, lambda piece: piece.bytes)
    taken: list[Slice] = []
    for receiver, own in pieces.items():
        taken += _taken(own, by_rows[receiver], by_bytes[receiver])
    if not taken:  # the limit is smaller than a single row
        piece = next(iter(pieces.values()))[0]
        taken = [piece._replace(end=piece.first + 1)]
    known = set(present) | {segment.receiver for segment in segments}
    at = {receiver: position for receiver, position in start.at.items() if receiver in known}
    origins: dict[str, Position] = {}
    for piece in taken:
        receiver, number, rows, _ = piece.segment
        at[receiver] = Position(number) if piece.end == rows else Position(number - 1, piece.end)
        if receiver not in start.at:
            origins.setdefault(receiver, Position(number - 1))
    return Offset(start.wal, at, origins), amount(taken)


def _shares(
    pieces: dict[str, list[Slice]], limit: int | None, weight: Callable[[Slice], int]
) -> dict[str, int | None]:
    """Each receiver's share of a limit. Small receivers come first; the others divide what they leave."""
    if limit is None:
        return dict.fromkeys(pieces)
    held = {receiver: sum(map(weight, own)) for receiver, own in pieces.items()}
    shares: dict[str, int | None] = {}
    left = limit
    for done, receiver in enumerate(sorted(held, key=lambda name: held[name])):
        share = min(held[receiver], left // (len(held) - done))
        shares[receiver] = share
        left -= share
    return shares


def _taken(pieces: Iterable[Slice], rows: int | None, size: int | None) -> list[Slice]:
    taken = []
    for piece in pieces:
        fitting = piece.rows
        if rows is not None:
            fitting = min(fitting, rows)
            rows -= fitting
        if size is not None:
            per_row = piece.segment.bytes / piece.segment.rows
            fitting = min(fitting, int(size / per_row)) if per_row else fitting
            size -= int(fitting * per_row)
        if fitting:
            taken.append(piece._replace(end=piece.first + fitting))
        if fitting < piece.rows:
            break
    return taken


# The tasks of a batch


#: A cut this close to the start or end of a segment (a fraction of it) moves there: a tiny slice costs more
#: than it is worth, because a task must skip all rows before its slice.
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
    """The work of a slice; rows count too, because bodies may be empty."""
    return piece.bytes + piece.rows
