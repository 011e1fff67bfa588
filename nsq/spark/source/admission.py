"""What a batch takes of what is there, and when there is enough to begin one. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nsq.spark.source.offsets import Offset, Position, Slice, unread
from nsq.spark.wal.store import Segment


class Limits(NamedTuple):
    """None is no limit. Rows are kept to exactly; bytes up to what single rows differ from their average."""

    rows: int | None = None
    bytes: int | None = None

    def tightened(self, rows: int | None = None, size: int | None = None) -> Limits:
        return Limits(_least(self.rows, rows), _least(self.bytes, size))

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


@dataclass(frozen=True)
class Pace:
    """When a batch begins."""

    linger: float
    least_rows: int
    longest_delay: float

    def ripe_in(self, pending: Amount, age: float, limits: Limits) -> float | None:
        """Seconds until a batch begins if nothing more comes, 0 for now; None while there is nothing.

        ``age`` is how long something has been pending.
        """
        if not pending.rows:
            return None
        if limits.reached(pending):
            return 0.0
        wait = self.linger if pending.rows >= self.least_rows else self.longest_delay
        return max(0.0, wait - age)


def admitted(
    start: Offset, segments: Sequence[Segment], present: Collection[str], limits: Limits
) -> tuple[Offset, Amount]:
    """Where a batch from ``start`` ends, and how much that is: a row at least, if there is one.

    Receivers share the limits evenly, so that none is starved; those with less than their share leave the
    rest to the others. A receiver that is not ``present`` in the log any more, whose segments have all been
    deleted then, is forgotten on this occasion: an offset may only change together with new data.
    """
    pieces: dict[str, list[Slice]] = {}
    for piece in unread(start, segments):
        pieces.setdefault(piece.segment.receiver, []).append(piece)
    if not pieces:
        return start, Amount()
    by_rows = _shares(pieces, limits.rows, lambda piece: piece.rows)
    by_bytes = _shares(pieces, limits.bytes, lambda piece: piece.bytes)
    known = set(present) | {segment.receiver for segment in segments}
    at = {receiver: position for receiver, position in start.at.items() if receiver in known}
    origins = {}
    taken: list[Slice] = []
    for receiver, own in pieces.items():
        part = _taken(own, by_rows[receiver], by_bytes[receiver])
        if part:
            taken += part
            at[receiver] = _position(part[-1])
            if receiver not in start.at:
                origins[receiver] = part[0].segment.number
    if not taken:  # a limit below the weight of any single row
        piece = next(iter(pieces.values()))[0]
        taken = [piece._replace(end=piece.first + 1)]
        at[piece.segment.receiver] = _position(taken[0])
        if piece.segment.receiver not in start.at:
            origins[piece.segment.receiver] = piece.segment.number
    return Offset(start.wal, at, origins), amount(taken)


def _shares(
    pieces: dict[str, list[Slice]], limit: int | None, weight: Callable[[Slice], int]
) -> dict[str, int | None]:
    """How much each receiver may contribute; the lightest come first, and what they leave is shared anew."""
    if limit is None:
        return dict.fromkeys(pieces)
    held = {receiver: sum(map(weight, own)) for receiver, own in pieces.items()}
    shares: dict[str, int | None] = {}
    left = limit
    for count, receiver in zip(
        range(len(held), 0, -1), sorted(held, key=lambda name: held[name]), strict=True
    ):
        share = min(held[receiver], left // count)
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


def _position(last: Slice) -> Position:
    segment = last.segment
    return Position(segment.number) if last.end == segment.rows else Position(segment.number - 1, last.end)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
