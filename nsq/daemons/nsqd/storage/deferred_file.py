"""A file of deferred messages: ``NAME.deferred.NNNNNN.dat`` has records as in a queue's file.

Its index, ``NAME.deferred.NNNNNN.dues.dat``, has each message's id and due time on the wall clock; -1 if the
message has left. A later entry for an id replaces an earlier one. Other entries say that the file was read
into memory, that its records were renamed to be a file of the channel's queue, or that no message is due
later than at some time: any that is has a damaged due time.
"""

from __future__ import annotations

import bisect
import itertools
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import (
    BAD,
    HEAD_SIZE,
    Bounds,
    cut,
    message_id,
    pack_size,
    wholeness,
)
from nsq.daemons.nsqd.disk.syncing import SyncJob, open_regular, read_regular, rename_to_temporary

_ENTRY = struct.Struct(">16sq")
#: Instead of a due time: the message is not in this file any more. Not 0, which a power cut can leave.
HAS_LEFT = -1
#: Instead of an id: the records were joined to the queue as the file of this number, which has so many bytes.
_JOINED, _BYTES = b"joined the queue", b"bytes of records"
#: Instead of an id: the file was read into memory, so that its messages may have other records as well.
_READ = b"read into memory"
#: Instead of an id: no message is due later.
LATEST = b"latest due times"
_SPECIAL = (_JOINED, _BYTES, _READ, LATEST)
#: The noted time is so many nanoseconds after the latest due time, so that few messages need a new note.
LATEST_AHEAD = 3600 * 10**9

#: The most messages and bytes of one file: reading one must not keep clients waiting.
FILE_RECORDS, FILE_BYTES = 2000, 1 << 20
#: So many messages of one file that are due within so many nanoseconds can be late by that much.
_BURST_RECORDS, _BURST_TIME = 100, 20 * 10**6
#: Messages due within so many nanoseconds are in memory, if there is room.
SOON = 2 * 10**9

#: A due time on the wall clock, in nanoseconds since 1970, and a record.
Entry = tuple[int, bytes]
Bucket = tuple[int, int] | None  # None: due soon

#: The widths of buckets, as powers of two of nanoseconds (208 days, 78 hours, 73 minutes, 69 s, 1.07 s), and
#: how long before its beginning each is opened: the wider, the earlier, as many messages may have to be
#: written to narrower buckets in time.
_WIDTHS = [(shift, (1 << shift - 4) + SOON) for shift in (54, 48, 42, 36, 30)]

_FILE_NAME = re.compile(r"(.+)\.deferred\.([0-9]{6,18})(?:\.dues)?\.dat").fullmatch


def file_numbers(filenames: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers of files with deferred messages, by the queue's name."""
    found: dict[str, set[int]] = {}
    for match in filter(None, map(_FILE_NAME, filenames)):
        found.setdefault(match[1], set()).add(int(match[2]))
    return found


def bucket(due: int, wall: int) -> Bucket:
    """Return the widest bucket that is not opened yet."""
    for shift, before in _WIDTHS:
        if (due >> shift << shift) - before > wall:
            return shift, due >> shift
    return None


def by_bucket(entries: list[Entry], wall: int) -> dict[Bucket, list[Entry]]:
    """Return the entries, which are in the order of their due times, by bucket."""
    found: dict[Bucket, list[Entry]] = {}
    start = 0
    while start < len(entries):
        due = entries[start][0]
        place = bucket(due, wall)
        shift = _WIDTHS[-1][0] if place is None else place[0]
        behind = (due >> shift) + 1 << shift
        stop = bisect.bisect_left(entries, (behind, b""), start)
        found.setdefault(place, []).extend(entries[start:stop])
        start = stop
    return found


def late_due_times(dues: Mapping[bytes, int], latest: int) -> str:
    """Describe the due times after the latest that was noted, if it was and there are any."""
    late = [due for due in dues.values() if latest and due > latest]
    if not late:
        return ""
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(late) / 1e9))
    count = "a due time" if len(late) == 1 else f"{len(late)} due times"
    return f"has {count} later than all that nsqd wrote there: deferring until then (at last {until} UTC)"


class DeferredFile:
    """A file of records and its index. An append that fails changes nothing."""

    def __init__(self, directory: Path, name: str, number: int) -> None:
        self.number = number
        self.data = directory / f"{name}.deferred.{number:06d}.dat"
        self.index = directory / f"{name}.deferred.{number:06d}.dues.dat"
        self.bucket: Bucket = None
        self.journal = False  # whether its messages are in memory too, from the beginning
        self.first = self.last = 0  # of the bucket: all due times are between them
        self.first_due = self.last_due = 0  # not of a journal, whose messages come in any order
        self.latest = 0  # all due times are before it, as the index says; 0 if it does not say
        self.count = self.left = 0  # messages in it, and those that have not left it
        self.sizes = (0, 0)  # of the index and of the records
        # Messages that have left, though the index does not say so yet; whether each is finished, not moved.
        self.leaving: dict[bytes, bool] = {}
        # Messages whose whole record, or due time, only the topic has. The index must not say that they have
        # left: after another kill the topic's records would be ignored.
        self.ignored: set[bytes] = set()
        self.intact = False  # whether it has exactly the messages that it says, so that it can be joined
        self.was_read = False  # into memory, in this run or an earlier one
        self.damaged = False  # whether some messages were lost, or their due times
        self.unwritten = 0  # messages at its end that nsqd had not written when it ended
        self.removed = False
        self.named = False  # whether the directory was synced since the file was created
        self._open: list[int] = []

    def __lt__(self, other: DeferredFile) -> bool:
        return self.number < other.number

    @property
    def opens(self) -> int:
        """The time on the wall clock to read it."""
        return self.first - (self.last - self.first >> 4) - SOON

    @property
    def full(self) -> bool:
        return self.count >= FILE_RECORDS or self.sizes[1] >= FILE_BYTES

    @property
    def is_burst(self) -> bool:
        """Whether many messages are due at nearly the same time."""
        return self.count >= _BURST_RECORDS and self.last_due <= self.first_due + _BURST_TIME

    def append(self, entries: list[Entry]) -> None:
        index = [_ENTRY.pack(record[10:HEAD_SIZE], due) for due, record in entries]
        if self.journal and not self.sizes[0]:
            index.insert(0, _ENTRY.pack(_READ, HAS_LEFT))
        latest = max(entries)[0]
        if latest > self.latest:
            latest += LATEST_AHEAD
            index.insert(0, _ENTRY.pack(LATEST, latest))
        # The index first: a kill in between must not leave a record without a due time.
        self._write(b"".join(index), b"".join([pack_size(len(each)) + each for _, each in entries]))
        self.latest = max(self.latest, latest)
        self.count += len(entries)
        self.left += len(entries)
        self.first_due = min(self.first_due or entries[0][0], entries[0][0])
        self.last_due = max(self.last_due, entries[-1][0])
        self.intact = self.count == self.left
        if self.leaving:
            for _, record in entries:  # it has come back before the index said that it had left
                self.leaving.pop(message_id(record), None)

    def undo(self, count: int, sizes: tuple[int, int], latest: int) -> None:
        """Remove the messages behind the first ``count``."""
        self.left -= self.count - count
        self.count, self.sizes, self.latest = count, sizes, latest
        self._truncate()

    def note_taken_back(self, size: int) -> None:
        """Note that the records are back from the queue, and intact.

        The index still says that they were joined: a power cut can undo the renaming, even after more was
        written to the index.
        """
        self.sizes = (self.index.stat().st_size // _ENTRY.size * _ENTRY.size, size)
        self.intact = True

    def measure(self) -> None:
        """Set the sizes of a file that an earlier run left."""
        index = self.index.stat().st_size if self.index.is_file() else 0
        self.sizes = (index // _ENTRY.size * _ENTRY.size, self.data.stat().st_size)

    def leave(self, ids: Iterable[bytes], *, finished: bool = False) -> None:
        """Note in memory that these messages are elsewhere, or finished; see ``write_left``."""
        before = len(self.leaving)
        self.leaving.update(dict.fromkeys(ids, finished))
        self.left -= len(self.leaving) - before
        self.intact = False

    def ignore(self, ids: Iterable[bytes]) -> None:
        """Leave these messages to the topic, which will hand them over again."""
        before = len(self.ignored)
        self.ignored.update(ids)
        self.left -= len(self.ignored) - before
        self.intact = False

    def write_left(self, ids: Iterable[bytes]) -> None:
        """Note in the index that these messages have left."""
        gone = [each for each in ids if each in self.leaving]
        self._write(b"".join([_ENTRY.pack(each, HAS_LEFT) for each in gone]), b"")
        self.intact = False
        for each in gone:
            del self.leaving[each]

    def write_read(self) -> None:
        """Note in the index that the messages are in memory too."""
        self.was_read = True
        self.intact = False
        self._write(_ENTRY.pack(_READ, HAS_LEFT), b"")

    def write_joined(self, number: int) -> None:
        """Note in the index that the records are going to be the queue's file of this number."""
        self._write(_ENTRY.pack(_JOINED, number) + _ENTRY.pack(_BYTES, self.sizes[1]), b"")

    def read(self, sizes: Bounds) -> tuple[list[Entry], str]:
        """Return the messages that have not left, and what is wrong with the file. Raises OSError."""
        dues, problem = self.read_index(), ""
        self.unwritten = 0
        records: dict[bytes, bytes] = {}
        content = read_regular(self.data)[: self.sizes[1]]
        spans, bad = cut(content, 0, len(content), sizes)
        end = spans[-1][1] if spans else 0
        for start, stop in spans:
            each, record = content[start + 10 : start + HEAD_SIZE], content[start:stop]
            # A message that came again has two; a power cut can have torn the second.
            if each not in records or wholeness(record) >= wholeness(records[each]):
                records[each] = record
        if bad or end < self.sizes[1]:
            problem = problem or f"cannot be read after byte {end} of {self.sizes[1]}"
        lost = [each for each, due in dues.items() if due != HAS_LEFT and each not in records]
        if lost and not problem and lost == list(dues)[-len(lost) :]:
            self.unwritten = len(lost)
        elif lost:
            problem = problem or f"lacks {len(lost)} messages"
        gone = self.leaving.keys() | self.ignored
        without = sum(each not in dues and each not in gone for each in records)
        if without:
            problem = problem or f"lacks {without} due times: these messages are delivered at once"
        problem = problem or late_due_times(dues, self.latest)
        entries = [(dues.get(each, 1), record) for each, record in records.items() if each not in gone]
        return [entry for entry in entries if entry[0] != HAS_LEFT], problem

    def read_index(self) -> dict[bytes, int]:
        """Return the due times; those that cannot be read are missing."""
        try:
            entries = self._index_entries()
        except OSError:
            return {}
        self.was_read |= any(each == _READ for each, _ in entries)
        dues = {each: due for each, due in entries if due}  # a power cut leaves zeros
        self.latest = max(self.latest, dues.get(LATEST, 0))
        for special in _SPECIAL:
            dues.pop(special, None)
        return dues

    def ids_without_due_time(self, dues: dict[bytes, int], sizes: Bounds) -> set[bytes]:
        """Return the ids of messages with a record and no entry in the index, whose due times are ``dues``.
        Only a power cut, or damage, can leave such messages.
        """
        try:
            content = read_regular(self.data)[: self.sizes[1]]
        except OSError:  # reading it later logs the problem
            return set()
        spans, _ = cut(content, 0, len(content), sizes)
        found = {content[start + 10 : start + HEAD_SIZE] for start, _ in spans}.difference(dues)
        if found:
            self.left = len(found) + sum(due != HAS_LEFT for due in dues.values())
            self.count = max(self.count, self.left)
            self.intact = False
        return found

    def count_joined(self) -> int:
        """Return the number of records that were joined; a message can have two of them."""
        entries = self._index_entries()
        last = max(place for place, (mark, _) in enumerate(entries) if mark == _JOINED)
        return sum(each not in _SPECIAL for each, _ in entries[:last])

    def read_joined(self) -> list[tuple[int, int]]:
        """Return the numbers and sizes of the queue's files that stops have made of the records.

        A power cut can undo the renaming of later ones. But after the first note that a message has left, the
        records are here for good: if they are gone, the file was about to be removed.
        """
        try:
            entries = self._index_entries()
        except OSError:
            return []
        if any(due == HAS_LEFT and each != _READ for each, due in entries):
            return []
        return [
            (number, size)
            for (mark, number), (other, size) in itertools.pairwise(entries)
            if mark == _JOINED and other == _BYTES
        ]

    def _index_entries(self) -> list[tuple[bytes, int]]:
        content = read_regular(self.index)
        return list(_ENTRY.iter_unpack(content[: len(content) // _ENTRY.size * _ENTRY.size]))

    def remove(self) -> None:
        """Remove it; a damaged one is renamed."""
        if self.damaged:
            self._take_away(lambda path: path.replace(path.with_name(path.name + BAD)))
        else:
            self._take_away(Path.unlink)

    def rename_to_temporary(self) -> list[Path]:
        """Remove it under its name, and return the paths that ``remove_in_thread`` must remove."""
        if self.damaged:
            self.remove()
            return []
        renamed: list[Path] = []
        self._take_away(lambda path: renamed.append(rename_to_temporary(path)))
        return renamed

    def _take_away(self, take: Callable[[Path], object]) -> None:
        """Take away the records, then the index, which stays if they do: without it they would be due at
        once.
        """
        self.removed = True
        self.close()
        with suppress(OSError):
            with suppress(FileNotFoundError):  # the queue has the records
                take(self.data)
            take(self.index)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _write(self, index: bytes, records: bytes) -> None:
        # Open until the next sync: the system reports a failed write-back only to those that had it open.
        try:
            while len(self._open) < 2:
                path = (self.index, self.data)[len(self._open)]
                self._open.append(open_regular(path, os.O_WRONLY | os.O_CREAT))
            for descriptor, content, offset in zip(self._open, (index, records), self.sizes, strict=True):
                while content:
                    written = os.pwrite(descriptor, content, offset)
                    content, offset = content[written:], offset + written
        except OSError:
            self._truncate()
            raise
        self.sizes = (self.sizes[0] + len(index), self.sizes[1] + len(records))

    def _truncate(self) -> None:
        for descriptor, size in zip(self._open, self.sizes, strict=False):
            with suppress(OSError):
                os.ftruncate(descriptor, size)


class DeferredSync(SyncJob):
    """Syncs files as they are now; pass it to ``DeferredOnDisk.synced`` afterwards."""

    def __init__(
        self,
        directory: Path,
        dirty: Iterable[DeferredFile],
        leaving: Iterable[DeferredFile],
        failed: set[Path],
    ) -> None:
        self.dirty = {file: file.sizes for file in sorted(dirty)}
        self.leaving = {file: list(file.leaving) for file in sorted(leaving)}
        super().__init__(
            directory,
            {
                path: size
                for file, sizes in self.dirty.items()
                for path, size in zip((file.index, file.data), sizes, strict=True)
            },
            new_names=not all(file.named for file in self.dirty),
            failed=failed,
        )
