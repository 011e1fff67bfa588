"""The manifest of a receiver: which of its segments exist. Pure: no I/O, no clock.

    m/<receiver>.json               the head, rewritten with each segment
    p/<receiver>/000000001.json     a page: 1,000 segments, beginning with that number; never changed

A segment exists when the head or a page of the head names it, and not before. The head names the newest
segments itself, up to 1,200 of them, and the pages of the older ones: so it stays small, however long
segments are kept. ``first`` is the lowest number that is not deleted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nsq.spark.wal import names
from nsq.spark.wal.names import Segment, SegmentFile
from nsq.spark.wal.status import Status

HEADS, PAGES, SEGMENTS = "m/", "p/", "s/"
#: Segments of a page, and the newest ones that the head keeps, so that a reader which is close needs no page.
PAGE, KEPT = 1000, 200


class Row(NamedTuple):
    """A segment in a manifest. ``size`` is that of its object; ``named`` is when the manifest first named it,
    in seconds since 1970, by the receiver's clock. ``oldest`` and ``newest`` are the times of its messages,
    in nanoseconds since 1970, by nsqd's clock.
    """

    rows: int
    bytes: int
    size: int
    named: float
    oldest: int
    newest: int


class Page(NamedTuple):
    """What the head says of a page: the number of its first segment, and the sums over all of them."""

    first: int
    segments: int
    rows: int
    bytes: int
    size: int

    @property
    def last(self) -> int:
        return self.first + self.segments - 1


@dataclass(frozen=True)
class Head:
    """``writer`` identifies the process that writes it; ``beat`` changes with every write. After ``closed``
    there are no more segments. ``deleted`` is the time of the newest message that is deleted, as ``newest``.
    """

    receiver: str
    writer: str
    beat: int = 0
    closed: bool = False
    first: int = 1
    pages: tuple[Page, ...] = ()
    tail_first: int = 1
    tail: tuple[Row, ...] = ()
    deleted: int = 0
    status: Status = dataclasses.field(default_factory=Status)

    @property
    def last(self) -> int:
        """The highest number that is named."""
        return self.tail_first + len(self.tail) - 1

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def size(self) -> int:
        """The size of its objects; of a page that is deleted in part, an estimate."""
        whole = sum(row.size for row in self.tail)
        for page in self.pages:
            whole += page.size * (page.last - max(self.first, page.first) + 1) // page.segments
        return whole

    def named(self, rows: Iterable[Row]) -> Head:
        """The head with more segments."""
        return dataclasses.replace(self, tail=(*self.tail, *rows))

    def full_page(self) -> tuple[Page, Sequence[Row]] | None:
        """The next page to write, and its rows; None while the tail is short."""
        if len(self.tail) < PAGE + KEPT:
            return None
        rows = self.tail[:PAGE]
        sums = [sum(values) for values in zip(*(row[:3] for row in rows), strict=True)]
        return Page(self.tail_first, PAGE, *sums), rows

    def with_page(self, page: Page) -> Head:
        """The head that names the page instead of its segments."""
        assert page.first == self.tail_first
        return dataclasses.replace(
            self,
            pages=(*self.pages, page),
            tail_first=page.last + 1,
            tail=self.tail[page.segments :],
        )

    def trimmed(self, first: int, deleted: int) -> Head:
        """The head without the segments below ``first``, whose newest message has the time ``deleted``."""
        first = min(max(first, self.first), self.last + 1)
        pages = tuple(page for page in self.pages if page.last >= first)
        gone = max(0, first - self.tail_first)
        return dataclasses.replace(
            self,
            first=first,
            pages=pages,
            tail_first=self.tail_first + gone,
            tail=self.tail[gone:],
            deleted=max(self.deleted, deleted),
        )

    def pages_after(self, number: int) -> list[Page]:
        """The pages that hold segments above ``number``."""
        return [page for page in self.pages if page.last > number]

    def files_of_tail(self, after: int) -> list[SegmentFile]:
        return files(self.receiver, self.tail_first, self.tail, max(after, self.first - 1))


def files(receiver: str, first: int, rows: Iterable[Row], after: int) -> list[SegmentFile]:
    """The segments with numbers above ``after``; ``rows`` begin with number ``first``."""
    return [
        SegmentFile(Segment(receiver, number, row.rows, row.bytes), *row[2:])
        for number, row in enumerate(rows, first)
        if number > after
    ]


# Names and content of the objects


def head_name(receiver: str) -> str:
    return f"{HEADS}{receiver}.json"


def receiver_of(name: str) -> str | None:
    """The receiver whose head has this name; None for other objects."""
    receiver = name.removeprefix(HEADS).removesuffix(".json")
    return receiver if names.is_receiver(receiver) and head_name(receiver) == name else None


def page_name(receiver: str, first: int) -> str:
    return f"{PAGES}{receiver}/{first:09d}.json"


def segment_name(receiver: str, number: int) -> str:
    return f"{SEGMENTS}{receiver}/{number:09d}.arrow"


def segment_of(name: str) -> tuple[str, int] | None:
    """The receiver and number of a segment's object; None for other objects."""
    receiver, _, last = name.removeprefix(SEGMENTS).partition("/")
    number = last.removesuffix(".arrow")
    if number.isdecimal() and segment_name(receiver, int(number)) == name:
        return receiver, int(number)
    return None


def encode_head(head: Head) -> bytes:
    fields = {**vars(head), "status": vars(head.status)}
    return names.encode(fields)


def decode_head(data: bytes, path: str) -> Head:
    def read(found: dict[str, Any]) -> Head:
        return Head(
            receiver=str(found["receiver"]),
            writer=str(found["writer"]),
            beat=int(found["beat"]),
            closed=bool(found["closed"]),
            first=int(found["first"]),
            pages=tuple(Page(*map(int, page)) for page in found["pages"]),
            tail_first=int(found["tail_first"]),
            tail=tuple(Row(*row) for row in found["tail"]),
            deleted=int(found["deleted"]),
            status=Status(**found["status"]),
        )

    return names.decode(data, path, "is not the manifest of a receiver", read)


def encode_page(rows: Sequence[Row]) -> bytes:
    return names.encode({"rows": rows})


def decode_page(data: bytes, path: str) -> list[Row]:
    return names.decode(
        data, path, "is not a page of a manifest", lambda found: [Row(*row) for row in found["rows"]]
    )
