"""Reads a queue: one file front to back, the cursor that goes from file to file, and peeking.

Each byte is read once, in big chunks. Damaged and missing records are logged and skipped.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nsq.daemons.nsqd.disk.layout import (
    HEAD_SIZE,
    SIZE_BYTES,
    Bounds,
    Flaw,
    Layout,
    Log,
    Place,
    Position,
    Record,
    Segment,
    Segments,
    cut,
    decode_record,
    message_id,
    size_at,
    wholeness,
)
from nsq.daemons.nsqd.disk.syncing import OpenFiles
from nsq.errors import InvalidMessage

CHUNK = 256 * 1024


class FileReader:
    """Reads one file's records. The next one begins at ``offset``; ``flaw`` says why there is none.

    The spans are offsets in ``buffer``, which stays valid until the next call.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        sizes: Bounds,
        files: OpenFiles | None = None,
        close_early: Callable[[], None] | None = None,
    ) -> None:
        """``close_early`` is called when too many ``files`` are open; it must close this one."""
        self._files = OpenFiles(1) if files is None else files
        self._fd = self._files.open(path, os.O_RDONLY, close_early or self.close)
        self._sizes = sizes
        self._at = 0
        self.buffer = b""
        self.offset = offset
        self.flaw: Flaw | None = None

    def close(self) -> None:
        self._files.close(self._fd)

    def spans(self, limit: int, end: int) -> list[tuple[int, int]]:
        """Return the spans of records before ``end``, at most ``limit``; none at the end or at a flaw.

        ``end`` may grow between calls, while the file is written.
        """
        while self.flaw is None:
            found, bad = cut(self.buffer, self._at, limit, self._sizes)
            if found:
                at = found[-1][1]
                self.offset += at - self._at
                self._at = at
                return found
            if bad:
                self.flaw = self._describe_flaw(end)
            elif not self._fill(end):
                break
        return []

    def _fill(self, end: int) -> bool:
        """Read a chunk that includes at least the rest of a partial record. Returns False at the end."""
        rest = self.buffer[self._at :]
        behind = self.offset + len(rest)
        if behind >= end:
            if rest:
                self.flaw = self._cut_off(rest)
            return False
        missing = size_at(rest, 0) + SIZE_BYTES - len(rest) if len(rest) >= SIZE_BYTES else SIZE_BYTES
        chunk = self._read(behind, min(max(CHUNK, missing), end - behind))
        if not chunk:
            if self.flaw is None:
                self.flaw = Flaw(f"ends at byte {behind}, {end - behind} bytes too early", keep=bool(rest))
            return False
        self.buffer = rest + chunk
        self._at = 0
        return True

    def _read(self, offset: int, size: int) -> bytes:
        self._files.used(self._fd)
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            # EIO is a defect of the disk and permanent. Any other error may pass, so the caller tries again.
            if error.errno != errno.EIO:
                raise
            self.flaw = Flaw(f"cannot be read at byte {offset}: {error.strerror}", keep=True)
            return b""

    def _cut_off(self, rest: bytes) -> Flaw:
        if not any(rest):
            return self._zeros(len(rest))
        return Flaw(f"ends within the record at byte {self.offset}", keep=True)

    def _zeros(self, number: int) -> Flaw:
        return Flaw(f"holds nothing but {number} zeros from byte {self.offset} on", keep=False)

    def _describe_flaw(self, end: int) -> Flaw:
        size = size_at(self.buffer, self._at)
        if size == 0 and self._only_zeros(end):
            return self._zeros(end - self.offset)
        smallest, largest = self._sizes
        return Flaw(
            f"claims a record of {size} bytes at byte {self.offset}; it takes {smallest} to {largest}",
            keep=True,
        )

    def _only_zeros(self, end: int) -> bool:
        chunk = self.buffer[self._at :]
        behind = self.offset
        while chunk:
            if chunk.count(0) != len(chunk):
                return False
            behind += len(chunk)
            chunk = self._read(behind, min(CHUNK, end - behind)) if behind < end else b""
        return self.flaw is None


class Survey(NamedTuple):
    """The number of complete records in a file, the offset where they end, and the flaw there, if any."""

    records: int
    end: int
    flaw: Flaw | None


def survey(path: Path, offset: int, end: int, sizes: Bounds) -> Survey:
    """Count the records between two offsets of a file."""
    reader = FileReader(path, offset, sizes)
    try:
        count = 0
        while spans := reader.spans(CHUNK, end):
            count += len(spans)
        return Survey(count, reader.offset, reader.flaw)
    finally:
        reader.close()


#: Bytes of records after which one read ends, because the event loop waits for it.
_ENOUGH = 1 << 20


class Reader:
    """Reads ahead of the commit point; ``cursor`` is the position after the last record read."""

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        segments: Segments,
        cursor: Position,
        sizes: Bounds,
        log: Log,
        files: OpenFiles,
    ) -> None:
        self._directory = directory
        self._layout = layout
        self._segments = segments
        self._sizes = sizes
        self._log = log
        self._files = files
        self._open: FileReader | None = None  # on the cursor's file
        self.cursor = cursor

    def read(self, limit: int) -> list[tuple[Position, bytes]]:
        found: list[tuple[Position, bytes]] = []
        size = 0
        while len(found) < limit and size < _ENOUGH:
            try:
                batch = self._read_file(limit - len(found))
                if not batch and not self._go_to_next_file():
                    break
            except OSError:
                if found:
                    break  # return what was read; the next call meets the error again
                raise
            found += batch
            size += sum(len(record) for _, record in batch)
        return found

    def move(self, position: Position) -> None:
        self.close()
        self.cursor = position

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _read_file(self, limit: int) -> list[tuple[Position, bytes]]:
        """Read records of the cursor's file; none at its end or at its flaw."""
        file, end, ordinal = self.cursor
        segment = self._segments[file]
        reader = self._reader(segment) if end < segment.end else None
        if reader is None:
            return []
        spans = reader.spans(limit, segment.end)
        if reader.flaw is not None and not spans:
            self._mark_damaged(segment, reader.flaw)
        if not spans:
            return []
        buffer = reader.buffer
        shift = reader.offset - spans[-1][1]
        batch = [
            (Position(file, shift + stop, number), buffer[start:stop])
            for number, (start, stop) in enumerate(spans, ordinal + 1)
        ]
        self.cursor = batch[-1][0]
        return batch

    def _reader(self, segment: Segment) -> FileReader | None:
        if self._open is None:
            path = self._directory / self._layout.data(segment.number)
            try:
                self._open = FileReader(path, self.cursor.end, self._sizes, self._files, self.close)
            except FileNotFoundError:
                self._mark_damaged(segment, Flaw("is gone", keep=False))
        return self._open

    def _mark_damaged(self, segment: Segment, flaw: Flaw) -> None:
        file = self._layout.data(segment.number)
        lost = segment.end - self.cursor.end
        self._log.error("DISKQUEUE(%s): %s %s; skipping %d bytes", self._layout.name, file, flaw.text, lost)
        segment.mark_damaged(self.cursor.end, flaw)

    def _go_to_next_file(self) -> bool:
        here = self._segments[self.cursor.file]
        following = self._segments.after(here.number)
        if following is None:
            if here.flaw is None:
                self._correct_the_count()
            return False
        if following.first is None:
            following.first = self._count_before(following) if here.flaw else self.cursor.ordinal
        elif here.flaw is None:
            self._report_wrong_depth(following.first - self.cursor.ordinal)
        self.move(Position(following.number, 0, following.first))
        return True

    def _count_before(self, segment: Segment) -> int:
        """Return the ordinal before the segment, counting back from the next known one."""
        counted = 0
        for later in self._segments.since(segment.number):
            if later.first is not None:
                return later.first - counted
            path = self._directory / self._layout.data(later.number)
            try:
                counted += survey(path, 0, later.end, self._sizes).records
            except FileNotFoundError:
                continue  # logged when the cursor gets there
        return self._segments.count - counted

    def _correct_the_count(self) -> None:
        """At the end of the queue, correct the count: the meta file's depth may have been wrong."""
        self._report_wrong_depth(self._segments.count - self.cursor.ordinal)
        self._segments.count = self.cursor.ordinal

    def _report_wrong_depth(self, wrong: int) -> None:
        if wrong:
            self._log.warning("DISKQUEUE(%s): the depth was wrong by %d, corrected", self._layout.name, wrong)


#: The most records that a peek skips.
_MOST_PASSED_OVER = 10_000


class FileRange(NamedTuple):
    """The records of one file between two offsets."""

    path: Path
    number: int
    begin: int
    end: int


class PeekedRecord(NamedTuple):
    """A record whose body may be truncated; ``size`` is that of the whole body."""

    record: Record
    size: int


def peek_records(
    ranges: Iterable[FileRange], sizes: Bounds, n: int, max_bytes: int, but: Container[Place]
) -> list[PeekedRecord]:
    """Return the first ``n`` records but those at the places ``but``, with at most ``max_bytes`` of bodies.

    Files that cannot be read any more are skipped.
    """
    found: list[PeekedRecord] = []
    passed_over = 0
    for file_range in ranges:
        try:
            with open(file_range.path, "rb", buffering=0) as file:
                for offset, size in _records(file.fileno(), file_range, sizes):
                    if len(found) >= n or passed_over >= _MOST_PASSED_OVER:
                        return found
                    if (file_range.number, offset + size) in but:
                        passed_over += 1
                        continue
                    record = decode_record(os.pread(file.fileno(), HEAD_SIZE, offset))
                    body = os.pread(file.fileno(), min(size - HEAD_SIZE, max_bytes), offset + HEAD_SIZE)
                    max_bytes -= len(body)
                    found.append(PeekedRecord(record._replace(body=body), size - HEAD_SIZE))
        except (OSError, InvalidMessage):
            continue  # removed meanwhile, or damaged, which ``Reader`` will log
    return found


def _records(descriptor: int, file_range: FileRange, sizes: Bounds) -> Iterator[tuple[int, int]]:
    """Yield the offset and size of each record."""
    at = file_range.begin
    while at + SIZE_BYTES <= file_range.end:
        size = size_at(os.pread(descriptor, SIZE_BYTES, at), 0)
        if not sizes.smallest <= size <= sizes.largest or at + SIZE_BYTES + size > file_range.end:
            return
        yield at + SIZE_BYTES, size
        at += SIZE_BYTES + size


class UnreadRecord(NamedTuple):
    """A record that was not read yet: its message's id, its place, and how whole it is."""

    id: bytes
    place: Place
    wholeness: int


def unread_records(ranges: Sequence[FileRange], sizes: Bounds, n: int) -> list[UnreadRecord]:
    """Describe the last ``n`` records: a power cut tears the newest ones."""
    found: list[UnreadRecord] = []
    for file_range in reversed(ranges):
        if len(found) == n:
            break
        try:
            reader = FileReader(file_range.path, file_range.begin, sizes)
        except FileNotFoundError:
            continue
        last: deque[UnreadRecord] = deque(maxlen=n - len(found))
        try:
            while spans := reader.spans(n, file_range.end):
                shift = reader.offset - spans[-1][1]
                for start, stop in spans:
                    record = reader.buffer[start:stop]
                    place = file_range.number, shift + stop
                    last.append(UnreadRecord(message_id(record), place, wholeness(record)))
        finally:
            reader.close()
        found[:0] = last
    return found
