"""A queue of records on disk: append batches, read ahead, commit finished records, sync now and then."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import (
    BAD,
    Flaw,
    Layout,
    Log,
    Meta,
    Place,
    Position,
    Segment,
    bounds,
)
from nsq.daemons.nsqd.disk.meta import MetaFile
from nsq.daemons.nsqd.disk.reading import (
    FileRange,
    PeekedRecord,
    Reader,
    UnreadRecord,
    peek_records,
    unread_records,
)
from nsq.daemons.nsqd.disk.recovery import recover
from nsq.daemons.nsqd.disk.syncing import (
    OpenFiles,
    Replacement,
    SyncJob,
    remove_in_thread,
    rename_to_temporary,
    replace_link,
    share_of_limit,
)
from nsq.daemons.nsqd.disk.writing import Writer
from nsq.errors import Closed, UsageError

#: An empty queue begins a new file, so that the old one can be removed, when the old one is this large.
_WORTH_REMOVING = 1024 * 1024

#: A file this large is removed in a thread: the file system can take 40 ms to free 100 MB.
_LARGE = 4 * 1024 * 1024


class QueueSync(SyncJob):
    """Syncs a queue's records up to ``written``; with ``meta``, writes the meta file as well."""

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        sizes: dict[int, int],
        *,
        written: Position,
        committed: Position,
        meta: Meta | None = None,
        padded: bool = True,
        new_names: bool = False,
        failed: set[Path],
    ) -> None:
        replacement = None
        if meta is not None:
            content = meta.padded() if padded else meta.text()
            replacement = Replacement(directory / layout.meta, content.encode())
        super().__init__(
            directory,
            {directory / layout.data(number): size for number, size in sizes.items()},
            replacement=replacement,
            new_names=new_names,
            failed=failed,
        )
        self.sizes = sizes  # by the files' numbers
        self.written = written
        self.committed = committed
        self.meta = meta


class DiskQueue:
    """One queue's files in ``directory``, which no other program may write to (see ``DataDirectory.lock``).

    Three positions move through the files: the end, where records are appended; the cursor, where the next
    read begins; and the commit point, before which records are not needed any more. A restart reads from the
    commit point that the last sync wrote. A sync removes the files before its commit point, or renames them
    to ``.bad`` if they could not be read to the end.

    Any method may raise OSError; the queue is then unchanged, and the call can be repeated.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        max_bytes_per_file: int,
        min_record: int,
        max_record: int,
        log: Log,
        files: Iterable[str] | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        """``files`` are the names in the directory that may belong to this queue. With thousands of queues
        the caller lists the directory once, and all queues share ``open_files``.
        """
        open_files = OpenFiles(share_of_limit()) if open_files is None else open_files
        self.name = name
        self._directory = directory
        self._layout = Layout(name)
        self._log = log
        self._closed = False
        self._job: QueueSync | None = None
        #: Whether another program has removed files with uncommitted records.
        self.lost_files = False
        self._named = -1  # the last file that existed when the directory was synced
        sizes = self.sizes = bounds(min_record, max_record)
        found = recover(
            directory, os.listdir(directory) if files is None else files, self._layout, sizes, log
        )
        self._segments, self._committed = found.segments, found.committed
        self._meta_file = MetaFile(
            directory / self._layout.meta, found.has_meta, found.meta, found.committed, open_files
        )
        self._writer = Writer(
            directory,
            self._layout,
            self._segments,
            sizes,
            max_bytes_per_file,
            log,
            open_files,
            self._meta_file.name,
        )
        self._writer.unsynced |= found.unsynced
        self._reader = Reader(
            directory, self._layout, self._segments, self._committed, sizes, log, open_files
        )
        self._skip_full_files()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def depth(self) -> int:
        """The number of uncommitted records; undetected damage can make it 1 instead of 0."""
        return self._records_behind(self._committed)

    @property
    def unread(self) -> int:
        """The number of records that ``read`` will return; undetected damage can make it 1 instead of 0."""
        return self._records_behind(self._reader.cursor)

    @property
    def size(self) -> int:
        """The bytes of uncommitted records in the files."""
        return self._segments.size_behind(self._committed)

    @property
    def committed(self) -> Position:
        return self._committed

    @property
    def written(self) -> Position:
        """The position after the last record."""
        return self._segments.written

    def append(self, records: Iterable[bytes]) -> list[Position]:
        """Write a batch and return the position after each record. If this raises, none is in the queue.

        The records survive a crash of this process at once, and a power cut when a job made afterwards has
        run. Raises InvalidMessage for a size outside the limits.
        """
        self._check_open()
        positions = self._writer.append(records)
        self._skip_full_files()
        return positions

    def read(self, limit: int) -> list[tuple[Position, bytes]]:
        """Return the next records, at most ``limit`` and little more than a MiB; an empty list at the end.

        Damage is logged and skipped up to the next file. No record is returned twice before a restart.
        """
        self._check_open()
        found = self._reader.read(limit)
        if self._segments.last.flaw is not None:
            self._writer.roll()
        self._skip_full_files()
        return found

    def peek_job(self, n: int, max_bytes: int, but: Container[Place]) -> Callable[[], list[PeekedRecord]]:
        """Return a function that reads the next ``n`` messages without changing anything.

        Any thread may call it. It skips the records at the places ``but`` and reads at most ``max_bytes`` of
        bodies.
        """
        return functools.partial(peek_records, self._unread_ranges(), self.sizes, n, max_bytes, but)

    def unread_records(self, n: int) -> list[UnreadRecord]:
        """Describe the last ``n`` unread records, without moving the cursor."""
        return unread_records(self._unread_ranges(), self.sizes, n)

    def _unread_ranges(self) -> list[FileRange]:
        file, end, _ = self._reader.cursor
        return [
            FileRange(
                self._directory / self._layout.data(segment.number),
                segment.number,
                end if segment.number == file else 0,
                segment.end,
            )
            for segment in self._segments.since(file)
        ]

    def skip(self, position: Position) -> None:
        """Move the cursor to ``position``: the caller has the records before it already."""
        self._check_position(position)
        if position.place > self._reader.cursor.place:
            self._reader.move(position)

    def commit(self, position: Position) -> None:
        """Move the commit point to ``position``, whether records before it were read or not; never back."""
        self._check_position(position)
        if position.place > self._committed.place:
            self._committed = position
            self.skip(position)
            self._skip_full_files()

    def sync(self, *, last: bool = False) -> None:
        """Sync everything so far, in this thread."""
        job = self.sync_job(last=last)
        if job is not None:
            job()
            self.synced(job)

    def sync_job(self, *, last: bool = False) -> QueueSync | None:
        """Return a job that syncs everything so far, in any thread; None if nothing has changed. After the
        ``last`` one nothing is written.

        The queue can be used meanwhile. Call ``synced`` with the job when it has succeeded. There is one job
        at a time: making the next one cancels the previous one. Raises OSError if another program has removed
        a file that is needed.
        """
        self._check_open()
        self.check_files()
        self._cancel_job()
        if self._segments.last.end >= _WORTH_REMOVING:
            self._roll_if_consumed()
        meta = self._meta()
        if self._meta_file.synced_meta == meta and not self._writer.unsynced:
            return None
        if not self._meta_file.exists and self._segments.written.place == (0, 0):
            return None  # a new queue without records needs no files
        self._job = job = self._make_job(meta, padded=not last)
        if job.replacement is not None:
            self._meta_file.replaced_by(job.replacement, meta, job.committed)
        return job

    def flush_job(self) -> QueueSync | None:
        """Return a job that syncs the records so far, in any thread; None if they are synced. Call
        ``flushed`` afterwards. Several times as fast as a sync, because it does not write the commit point.
        """
        self._check_open()
        return self._make_job(None) if self._worth_syncing() else None

    def flushed(self, job: QueueSync) -> None:
        """Note that ``job`` has succeeded. Raises OSError if records were lost all the same."""
        job.check()
        self._check_files(self._segments[number] for number in job.sizes if number in self._segments)
        self._named = max(self._named, _last_file(job.written))
        self._writer.synced(job.sizes)

    def check_files(self) -> None:
        """Raise OSError, once, if another program has removed files of uncommitted records."""
        self._check_files(self._segments.since(self._committed.file))

    def _check_files(self, segments: Iterable[Segment]) -> None:
        """Check these files, see ``check_files``.

        The thread that calls this is the only one that removes the queue's files. So it cannot take a file
        for lost that the queue itself has removed.
        """
        lost = [
            segment
            for segment in segments
            if segment.end
            and segment.flaw is None
            and (segment.number, segment.end) > self._committed.place
            and not (self._directory / self._layout.data(segment.number)).exists()
        ]
        if not lost:
            return
        self.lost_files = True
        for segment in lost:
            segment.flaw = Flaw("was removed by another program", keep=False)
            self._writer.forget(segment.number)
        if self._segments.last.flaw is not None:
            self._writer.roll()
        names = ", ".join(self._layout.data(segment.number) for segment in lost)
        raise OSError(errno.ENOENT, "another program has removed files of messages", names)

    def begin_new_file(self) -> None:
        """Append to a new file from now on, because an fsync of this one has failed."""
        self._check_open()
        if self._segments.last.end:
            self._writer.roll()
            self._skip_full_files()

    def join_file(
        self, path: Path, records: int, size: int, *, synced: bool = False, failed: bool = False
    ) -> None:
        """Rename a file of records, whose last fsync may have ``failed``, to be the queue's next file."""
        self.begin_new_file()
        last = self._segments.last
        self._writer.forget(last.number)
        target = self._directory / self._layout.data(last.number)
        self._meta_file.name(self._segments.written)
        os.rename(path, target)
        if failed:
            self._writer.failed.add(target)
        last.end = size
        self._segments.count += records
        if not synced:
            self._writer.unsynced.add(last.number)
        self._writer.roll()
        self._skip_full_files()

    def last_full_file(self, number: int) -> Path | None:
        """Return the path of this file if it has the queue's last records and none of them was read."""
        if number not in self._segments or self._segments.last.end:
            return None
        following = self._segments.after(number)
        if following is not self._segments.last or (number, 0) < self._reader.cursor.place:
            return None
        path = self._directory / self._layout.data(number)
        return path if path.is_file() else None

    def take_out_last_file(self, number: int, target: Path, records: int) -> None:
        """Rename the ``last_full_file``, with so many records, to ``target``."""
        first = max(0, self._segments.count - records)
        # First: after a kill in between, the records are behind the end in the meta file, not missing.
        self._meta_file.name(Position(number, 0, first))
        path = self._directory / self._layout.data(number)
        replace_link(path)
        os.rename(path, target)
        empty = Segment(number, 0, first)
        self._writer.forget(self._segments.last.number)
        self._segments.remove(self._segments.last.number)
        self._segments.remove(number)
        self._segments.add(empty)
        self._segments.count = first

    def make_room(self) -> bool:
        """Remove all files without uncommitted records at once. Returns whether there were any.

        For a full disk. Until the next sync the meta file names files that are removed; a restart then uses
        the data instead.
        """
        self._check_open()
        self._roll_if_consumed()
        before = self._segments.before(self._committed.file)
        self._forget_files(self._committed.file, at_once=True)
        return bool(before)

    def _roll_if_consumed(self) -> None:
        """Begin a new file if this one holds no uncommitted records."""
        if self._segments.last.end and not self._segments.size_behind(self._committed):
            self._writer.roll()
            self._skip_full_files()

    def synced(self, job: QueueSync) -> None:
        """Note that ``job`` has succeeded. A job that was cancelled meanwhile changes nothing.

        Raises OSError if records were lost all the same.
        """
        if job is not self._job:
            return
        self._job = None
        job.check()
        self._meta_file.synced()
        self._named = max(self._named, _last_file(job.written))
        self._writer.synced(job.sizes)
        self._forget_files(job.committed.file)

    def empty(self) -> None:
        """Discard all records and remove their files. Earlier positions then precede the commit point."""
        self._check_open()
        self._log.info("DISKQUEUE(%s): emptying", self.name)
        self._cancel_job()
        if self._segments.last.end:
            self._writer.roll()
        self._committed = self._segments.written
        self._reader.move(self._committed)
        self._forget_files(self._committed.file)
        self._unlink(self._layout.meta)
        self._meta_file.removed(self._committed)

    def close(self) -> None:
        """Sync and close the files. If the sync raises, the files are closed all the same."""
        if not self._closed:
            try:
                self.sync(last=True)
            finally:
                self.release()

    def delete(self) -> None:
        """Close, and remove all files of the queue except .bad ones."""
        if not self._closed:
            self._log.info("DISKQUEUE(%s): deleting", self.name)
            self._cancel_job()
            self.release()
            self._forget_files(self._segments.last.number + 1)
            self._unlink(self._layout.meta)

    def release(self) -> None:
        """Close the files without a sync."""
        self._closed = True
        self._reader.close()
        self._writer.close()

    def _records_behind(self, position: Position) -> int:
        # Decide by file and offset first: the count can be wrong if a meta file was.
        if not self._segments.size_behind(position):
            return 0
        return max(1, self._segments.count - position.ordinal)

    def _meta(self) -> Meta:
        written = self._segments.written
        return Meta(self.depth, *self._committed.place, *written.place)

    def _make_job(self, meta: Meta | None, *, padded: bool = True) -> QueueSync:
        return QueueSync(
            self._directory,
            self._layout,
            {number: self._segments[number].end for number in sorted(self._worth_syncing())},
            written=self._segments.written,
            committed=self._committed,
            meta=meta,
            padded=padded,
            new_names=_last_file(self._segments.written) > self._named,
            failed=self._writer.failed,
        )

    @property
    def unsynced(self) -> bool:
        """Whether there may be uncommitted records that are not fsynced."""
        return bool(self._worth_syncing())

    def _worth_syncing(self) -> frozenset[int]:
        # Files before the commit point are removed soon and need no sync.
        return frozenset(number for number in self._writer.unsynced if number >= self._committed.file)

    def _cancel_job(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None
            self._meta_file.synced_meta = None  # perhaps it has replaced the file already

    def _skip_full_files(self) -> None:
        """Move the commit point from the end of a full file to the start of the next one."""
        while True:
            file, end, ordinal = self._committed
            following = self._segments.after(file)
            if following is None or end < self._segments[file].end:
                return
            first = ordinal if following.first is None else following.first
            self._committed = Position(following.number, 0, first)
            self.skip(self._committed)

    def _forget_files(self, number: int, *, at_once: bool = False) -> None:
        """Remove the files with a lower number, large ones in a thread unless all must go ``at_once``."""
        renamed: list[Path] = []
        for segment in self._segments.before(number):
            self._segments.remove(segment.number)
            self._writer.forget(segment.number)
            file = self._layout.data(segment.number)
            if segment.flaw is not None and segment.flaw.keep:
                self._keep_as_bad(file)
            elif at_once or segment.end < _LARGE:
                self._unlink(file)
            else:
                # Under another name, so that a new queue of this name can use the old one at once.
                try:
                    renamed.append(rename_to_temporary(self._directory / file))
                except OSError:
                    self._unlink(file)
        if renamed:
            remove_in_thread(renamed)

    def _keep_as_bad(self, file: str) -> None:
        self._log.warning("DISKQUEUE(%s): keeping %s as %s%s", self.name, file, file, BAD)
        try:
            (self._directory / file).replace(self._directory / f"{file}{BAD}")
        except OSError as error:
            self._log.error("DISKQUEUE(%s): cannot rename %s: %s", self.name, file, error)

    def _unlink(self, file: str) -> None:
        """Remove a file. If that fails, the next start removes it."""
        try:
            (self._directory / file).unlink(missing_ok=True)
        except OSError as error:
            self._log.error("DISKQUEUE(%s): cannot remove %s: %s", self.name, file, error)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"disk queue {self.name} is closed")

    def _check_position(self, position: Position) -> None:
        self._check_open()
        if position.place > self._segments.written.place:
            raise UsageError(
                f"{position} is after the end of disk queue {self.name}, {self._segments.written}: "
                "it is from another queue"
            )


def _last_file(written: Position) -> int:
    """Return the number of the last file that exists: one is created by its first record."""
    return written.file if written.end else written.file - 1
