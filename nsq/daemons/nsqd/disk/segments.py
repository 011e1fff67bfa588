"""What is known of a queue's files: which there are, how far each is good, how many records lie before it.

Bookkeeping only; touches no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Position(NamedTuple):
    """The place right behind a record: a file's number and an offset in it.

    ``ordinal`` numbers the records in the order of the queue, so that a difference is a number of records.
    It is only as right as the depth the files told at start-up, hence no part of the place.
    """

    file: int
    end: int
    ordinal: int

    @property
    def place(self) -> tuple[int, int]:
        return self[:2]


class Flaw(NamedTuple):
    """Why a file cannot be read to its end; ``keep`` it as .bad when it has been read so far."""

    text: str
    keep: bool


class Segment:
    """One data file: the records from 0 to ``end`` can be read."""

    __slots__ = ("number", "end", "first", "flaw")

    def __init__(self, number: int, end: int, first: int | None = None, flaw: Flaw | None = None) -> None:
        self.number = number
        self.end = end
        self.first = first  # the count before its first record, where known
        self.flaw = flaw

    def spoil(self, end: int, flaw: Flaw) -> None:
        """Nothing behind ``end`` is to be read."""
        self.end = end
        self.flaw = flaw


class Segments:
    """The files in the order of their numbers; the last one is the one written to.

    ``count`` belongs to the last record written.
    """

    def __init__(self, last: Segment, count: int) -> None:
        self._by_number = {last.number: last}
        self._order = [last.number]
        self.last = last
        self.count = count

    def __getitem__(self, number: int) -> Segment:
        return self._by_number[number]

    def __iter__(self) -> Iterator[Segment]:
        return iter([self._by_number[number] for number in self._order])

    @property
    def written(self) -> Position:
        return Position(self.last.number, self.last.end, self.count)

    def add(self, segment: Segment) -> None:
        """A file to be written to from now on."""
        self._by_number[segment.number] = segment
        self._order.append(segment.number)
        self.last = segment

    def remove(self, number: int) -> None:
        del self._by_number[number]
        self._order.remove(number)

    def since(self, number: int) -> Iterator[Segment]:
        return (segment for segment in self if segment.number >= number)

    def before(self, number: int) -> list[Segment]:
        return [segment for segment in self if segment.number < number]

    def after(self, number: int) -> Segment | None:
        following = self._by_number.get(number + 1)
        return following or next(self.since(number + 1), None)

    def size_behind(self, position: Position) -> int:
        """How many bytes of records lie behind a position."""
        file, end, _ = position
        if file == self.last.number:
            return max(0, self.last.end - end)
        ends = sum(segment.end for segment in self.since(file + 1))
        return ends + max(0, self._by_number[file].end - end)
