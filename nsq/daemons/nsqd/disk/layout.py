"""The layout of a queue on disk: names of its files, records, meta file.

Pure: bytes and strings in and out, and ``Segments``, the state of a queue's files. Opens no file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from nsq.errors import InvalidMessage, UsageError


class Log(Protocol):
    def info(self, message: str, *args: object) -> None: ...

    def warning(self, message: str, *args: object) -> None: ...

    def error(self, message: str, *args: object) -> None: ...


_DEPTH, _PLACE = r"(-?[0-9]{1,18})", r"([0-9]{1,18}),([0-9]{1,18})"
_META = re.compile(rf"{_DEPTH}\n{_PLACE}\n{_PLACE}\n?\0*").fullmatch
_PADDED_META = re.compile(rf"[ 0-9-]+\n{_PLACE}\n[0-9,\n]+fsynced {_DEPTH} {_PLACE}\n*").fullmatch

#: Offsets in the meta file of a running queue: of what was fsynced, and of the end. A sector is larger.
_META_FSYNCED, _META_SIZE = 100, 180

_INFIX = ".diskqueue."

TEMPORARY = ".tmp"
BAD = ".bad"


class Layout:
    """The file names of the queue called ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stem = f"{name}{_INFIX}"
        self.meta = f"{self._stem}meta.dat"
        self._number = re.compile(re.escape(self._stem) + r"([0-9]{6,18})\.dat").fullmatch

    def data(self, number: int) -> str:
        return f"{self._stem}{number:06d}.dat"

    def number(self, filename: str) -> int | None:
        """Return the number of a data file of this queue, None for any other file."""
        match = self._number(filename)
        if match is None:
            return None
        number = int(match[1])
        return number if filename == self.data(number) else None

    def is_temporary(self, filename: str) -> bool:
        """Whether this is a temporary meta file that was never renamed."""
        return filename.startswith(f"{self.meta}.") and filename.endswith(TEMPORARY)


class Meta(NamedTuple):
    """The meta file: the commit point, the end, and ``depth``, the number of records between them."""

    depth: int
    read_file: int
    read_end: int
    write_file: int
    write_end: int

    def text(self) -> str:
        return f"{self.depth}\n{self.read_file},{self.read_end}\n{self.write_file},{self.write_end}\n"

    def with_end(self, depth: int, write_file: int, write_end: int) -> str:
        """Encode it with another depth and end for Go's nsqd, which skips the spaces and does not read on
        after the write position; ``parse_meta`` returns this one.

        Two such texts differ only in the depth and end. So one can overwrite the other in place: if that is
        torn, this one can still be read.
        """
        text = f"{depth:>18}\n{self.read_file},{self.read_end}\n{write_file},{write_end}\n"
        fsynced = f"fsynced {self.depth} {self.write_file},{self.write_end}\n"
        return (text.ljust(_META_FSYNCED, "\n") + fsynced).ljust(_META_SIZE, "\n")

    def padded(self) -> str:
        return self.with_end(self.depth, self.write_file, self.write_end)


def parse_meta(text: str) -> Meta | None:
    """Parse a meta file; None if it is invalid. Go's nsqd can write a negative depth."""
    if (padded := _PADDED_META(text)) is not None:
        read_file, read_end, depth, *end = map(int, padded.groups())
        meta = Meta(depth, read_file, read_end, *end)
    elif (plain := _META(text)) is not None:
        meta = Meta(*map(int, plain.groups()))
    else:
        return None
    backwards = (meta.read_file, meta.read_end) > (meta.write_file, meta.write_end)
    return None if backwards else meta


def files_by_queue(filenames: Iterable[str]) -> dict[str, list[str]]:
    """Return the file names that may belong to queues, by the queue's name."""
    found: dict[str, list[str]] = {}
    for filename in filenames:
        name, dot, _ = filename.rpartition(_INFIX)
        if dot:
            found.setdefault(name, []).append(filename)
    return found


def queue_name(topic: str, channel: str | None = None) -> str:
    return topic if channel is None else f"{topic}:{channel}"


_SIZE = struct.Struct(">i")

SIZE_BYTES = _SIZE.size

pack_size = _SIZE.pack


class Bounds(NamedTuple):
    """The sizes that a record can have. A file with any other size is corrupt from there on."""

    smallest: int
    largest: int


def bounds(smallest: int, largest: int) -> Bounds:
    """Check and return the bounds. ``smallest`` is at least 1, as a power cut can leave zeros in a file."""
    if not 1 <= smallest <= largest <= 0x7FFF_FFFF:
        raise UsageError(f"records of {smallest} to {largest} bytes: the sizes go from 1 to 2147483647")
    return Bounds(smallest, largest)


def size_at(buffer: bytes, at: int) -> int:
    size: int = _SIZE.unpack_from(buffer, at)[0]
    return size


def cut(buffer: bytes, at: int, limit: int, sizes: Bounds) -> tuple[list[tuple[int, int]], bool]:
    """Find the complete records after ``at``, at most ``limit``, and whether an invalid size follows.

    A record that is cut off at the buffer's end is neither complete nor invalid.
    """
    spans: list[tuple[int, int]] = []
    add, unpack = spans.append, _SIZE.unpack_from
    smallest, largest = sizes
    stop = len(buffer)
    for _ in range(limit):
        begin = at + SIZE_BYTES
        if begin > stop:
            break
        size = unpack(buffer, at)[0]
        if not smallest <= size <= largest:
            return spans, True
        at = begin + size
        if at > stop:
            break
        add((begin, at))
    return spans, False


_HEAD = struct.Struct(">qH16s")

HEAD_SIZE = _HEAD.size  # 26: the record of an empty body


class Record(NamedTuple):
    timestamp: int  # nanoseconds since 1970
    attempts: int
    id: bytes
    body: bytes


#: Packs the head of a record, which the body follows: timestamp, attempts and an id of 16 bytes.
pack_head = _HEAD.pack


def decode_record(record: bytes) -> Record:
    if len(record) < HEAD_SIZE:
        raise InvalidMessage(f"a record of {len(record)} bytes is no message: it takes at least {HEAD_SIZE}")
    timestamp, attempts, message_id = _HEAD.unpack_from(record)
    return Record(timestamp, attempts, message_id, record[HEAD_SIZE:])


def message_id(record: bytes) -> bytes:
    """Return the id in a record, without decoding the rest."""
    return record[HEAD_SIZE - 16 : HEAD_SIZE]


def wholeness(record: bytes) -> int:
    """Return the greatest number for the whole one of a message's records, whose bodies are equal.

    A power cut can tear one that was not fsynced: it has zeros instead of other bytes, or a smaller size.
    """
    return 2 * len(record) - record.count(0, HEAD_SIZE)


#: A file's number and the offset after a record in it.
Place = tuple[int, int]


class Position(NamedTuple):
    """The position right after a record: a file's number and an offset in it.

    ``ordinal`` numbers the records in the order of the queue, so that a difference is a number of records.
    It may be wrong if the depth in the meta file was wrong, so ``place`` does not include it.
    """

    file: int
    end: int
    ordinal: int

    @property
    def place(self) -> Place:
        return self[:2]


class Flaw(NamedTuple):
    """The reason why a file cannot be read to its end; with ``keep``, it is kept as .bad after reading."""

    text: str
    keep: bool


class Segment:
    """One data file, whose records are read up to the offset ``end``."""

    __slots__ = ("number", "end", "first", "flaw")

    def __init__(self, number: int, end: int, first: int | None = None, flaw: Flaw | None = None) -> None:
        self.number = number
        self.end = end
        self.first = first  # the ordinal before its first record, if known
        self.flaw = flaw

    def mark_damaged(self, end: int, flaw: Flaw) -> None:
        """Mark the file as damaged: it is not read after ``end``."""
        self.end = end
        self.flaw = flaw


class Segments:
    """The files in the order of their numbers; records are appended to the last one.

    ``count`` is the ordinal of the last record written.
    """

    def __init__(self, last: Segment, count: int) -> None:
        self._by_number = {last.number: last}
        self._order = [last.number]
        self.last = last
        self.count = count

    def __getitem__(self, number: int) -> Segment:
        return self._by_number[number]

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def __iter__(self) -> Iterator[Segment]:
        return iter([self._by_number[number] for number in self._order])

    @property
    def written(self) -> Position:
        return Position(self.last.number, self.last.end, self.count)

    def add(self, segment: Segment) -> None:
        """Add a file, to which records are appended from now on."""
        self._by_number[segment.number] = segment
        self._order.append(segment.number)
        self.last = segment

    def remove(self, number: int) -> None:
        del self._by_number[number]
        if self._order[-1] == number:
            self._order.pop()
        else:
            self._order.remove(number)

    def since(self, number: int) -> Iterator[Segment]:
        return (segment for segment in self if segment.number >= number)

    def before(self, number: int) -> list[Segment]:
        return [segment for segment in self if segment.number < number]

    def after(self, number: int) -> Segment | None:
        following = self._by_number.get(number + 1)
        return following or next(self.since(number + 1), None)

    def size_behind(self, position: Position) -> int:
        """Count the bytes of records after a position."""
        file, end, _ = position
        if file == self.last.number:
            return max(0, self.last.end - end)
        ends = sum(segment.end for segment in self.since(file + 1))
        return ends + max(0, self._by_number[file].end - end)
