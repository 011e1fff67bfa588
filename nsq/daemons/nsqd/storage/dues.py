"""When the deferred messages of a topic's queue are due; records in the format of Go's nsqd do not hold that.

A file beside the queue, which Go's nsqd ignores. A durable queue also notes in it, at a stop, which of its
unread records are not needed. Channels keep their deferred messages apart, see ``deferred``.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import Message
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.disk.layout import Log, Place
from nsq.daemons.nsqd.disk.syncing import (
    OpenFiles,
    Replacement,
    SyncJob,
    read_regular,
    replace_content,
)
from nsq.daemons.nsqd.storage.deferred_file import LATEST, LATEST_AHEAD, late_due_times

_ENTRY = struct.Struct(">16sq")
#: The bits of an offset in ``_finished``; the rest of 63 bits is for the file's number.
_OFFSET_BITS = 40
#: The file is rewritten when it holds more obsolete entries than this plus the number of needed ones.
_SPARE = 4096


class DueSync(SyncJob):
    """Syncs the first ``written`` entries; pass it to ``DueTimes.synced`` afterwards."""

    def __init__(self, path: Path, size: int, written: int, *, named: bool, failed: set[Path]) -> None:
        super().__init__(path.parent, {path: size}, new_names=not named, failed=failed)
        self.written = written


class DueTimes:
    """An append-only file of message ids and due times. An entry of a finished or due message is obsolete.
    Entries with ``LATEST`` instead of an id say that no message is due later.

    Methods that write may raise OSError, and then change nothing.
    """

    def __init__(
        self,
        directory: Path,
        queue_name: str,
        clock: Clock,
        open_files: OpenFiles | None = None,
        log: Log | None = None,
    ) -> None:
        self._files = OpenFiles(1) if open_files is None else open_files
        self._failed: set[Path] = set()  # this file, if its last fsync failed
        self._path = directory / f"{queue_name}.dues.dat"
        self._clock = clock
        self._dues, self._finished, self._size, self._latest = _load(self._path, clock.time_ns())
        problem = late_due_times(self._dues, self._latest)
        if problem and log is not None:
            log.error("%s %s", self._path.name, problem)
        self._latest = max([self._latest, *self._dues.values()])
        self._file = -1  # opened by the first write
        self._written = self._synced = 0  # entries in this run
        self._released = False
        self._named = False  # whether the directory was synced since the file was created

    def __bool__(self) -> bool:
        return bool(self._dues)

    def get(self, message_id: bytes) -> float:
        """Return a message's due time on the monotonic clock; 0 if it has none."""
        due = self._dues.get(message_id)
        # The wall clock first: time that passes in between must make no message early.
        return 0.0 if due is None else (due - self._clock.time_ns()) / 1e9 + self._clock.now()

    def add(self, messages: Iterable[Message]) -> None:
        """Write the due times of those messages that are due later."""
        now, now_ns = self._clock.now(), self._clock.time_ns()
        later = {each.id: now_ns + round((each.due - now) * 1e9) for each in messages if each.due > now}
        if not later:
            return
        self._tidy()
        entries = list(later.items())
        latest = max(later.values())
        if latest > self._latest:
            latest += LATEST_AHEAD
            entries.insert(0, (LATEST, latest))
        self._write(b"".join([_ENTRY.pack(*entry) for entry in entries]))
        self._latest = max(self._latest, latest)
        self._written += len(later)
        self._dues |= later

    def remove(self, message_id: bytes) -> None:
        self._dues.pop(message_id, None)

    def was_finished(self, message_id: bytes, place: Place) -> bool:
        """Whether this record was not needed any more when nsqd stopped."""
        if not self._finished:
            return False
        entry = message_id, _finished(place)
        found = entry in self._finished
        self._finished.discard(entry)
        return found

    def all_read(self) -> None:
        """Forget which records are not needed: all records of the last run have been read."""
        self._finished.clear()

    def _write(self, entries: bytes) -> None:
        if self._file < 0:
            self._file = self._files.open(self._path, os.O_WRONLY | os.O_CREAT, self._close_early)
        self._files.wrote(self._file)
        # At a known offset, to overwrite what a failed write may have left there.
        end = self._size
        while entries:
            written = os.pwrite(self._file, entries, end)
            if not written:
                raise OSError(errno.EIO, "nothing was written", str(self._path))
            end += written
            entries = entries[written:]
        self._size = end

    def _tidy(self) -> None:
        if self._size > _ENTRY.size * (2 * (len(self._dues) + len(self._finished)) + _SPARE):
            self._rewrite()

    def _rewrite(self) -> None:
        """Rewrite the file with only the needed entries, and sync it."""
        content = self._content()
        self._close_file()
        replace_content(self._path, content)
        self._size = len(content)

    def _content(self) -> bytes:
        latest = [(LATEST, self._latest)] if self._dues else []
        return b"".join([_ENTRY.pack(*entry) for entry in [*latest, *self._dues.items(), *self._finished]])

    def sync_job(self) -> DueSync | None:
        if self._synced == self._written:
            return None
        return DueSync(self._path, self._size, self._written, named=self._named, failed=self._failed)

    def synced(self, job: DueSync) -> None:
        """Note that ``job`` has succeeded. Raises OSError if entries were lost all the same."""
        job.check()
        if job.missing and not self._released:
            self._rewrite()  # another program has removed the file
        self._synced = max(self._synced, job.written)
        if self._file >= 0 and self._synced == self._written:
            self._files.synced(self._file)
        self._named = True

    def clear(self) -> None:
        self._dues.clear()
        self._finished.clear()

    def last_job(self, finished: Mapping[Place, bytes]) -> SyncJob | None:
        """Return a job that writes all that a restart needs; nothing may be written afterwards.

        ``finished`` are the unread records that are not needed, with their messages' ids.
        """
        self._finished.update((message_id, _finished(place)) for place, message_id in finished.items())
        if not self._dues and not self._finished:
            self.delete()
            return None
        return SyncJob(self._path.parent, {}, replacement=Replacement(self._path, self._content()))

    def release(self) -> None:
        self._released = True
        self._close_file()

    def delete(self) -> None:
        self.release()
        self._path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            self._files.close(file)

    def _close_early(self) -> None:
        """Close, as too many files are open. Sync first: after a close, a failed write goes unnoticed."""
        try:
            if self._files.is_dirty(self._file):
                os.fsync(self._file)
        except OSError:
            self._failed.add(self._path)
        finally:
            self._close_file()


def _finished(place: Place) -> int:
    """Return the negative number that stands for a record's place instead of a due time.

    A note by id alone would also hide a later record of the message: it may have been deferred meanwhile.
    """
    file, end = place
    return -(file << _OFFSET_BITS & (1 << 63) - 1 | end)


def _load(path: Path, now: int) -> tuple[dict[bytes, int], set[tuple[bytes, int]], int, int]:
    """Return due times in the future, records that are not needed, the size without a torn entry, and the
    latest due time that was noted, or 0.
    """
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return {}, set(), 0, 0
    size = len(content) // _ENTRY.size * _ENTRY.size
    entries = list(_ENTRY.iter_unpack(content[:size]))
    dues = {message_id: due for message_id, due in entries if due > now and message_id != LATEST}
    latest = max((due for message_id, due in entries if message_id == LATEST), default=0)
    return dues, {entry for entry in entries if entry[1] < 0}, size, latest
