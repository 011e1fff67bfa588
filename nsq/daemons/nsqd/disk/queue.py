"""A queue of records on disk: append batches, read ahead, commit what is done with, sync now and then."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from nsq.errors import Closed, UsageError

from .framing import bounds
from .layout import BAD, Layout, Meta
from .log import Log
from .open_files import OpenFiles, share_of_limit
from .reader import Reader
from .recovery import recover
from .segments import Position, Segment
from .syncing import FlushJob, SyncJob
from .writer import Writer


class DiskQueue:
    """One queue's files in ``directory``, which nobody else may write to (see ``DataDirectory.lock``).

    Three places move through the files: writing goes on at the end, reading at the cursor, and what lies
    before the committed place is forgotten. A restart goes on reading at the place that was committed when
    the last sync began. Files are removed by the sync after nothing in them is wanted any more, or kept under
    their name with ``.bad`` if they could not be read.

    Any method may raise OSError; the queue is then as it was before the call, and the call can be repeated.
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
        """``files`` are the names in the directory, as far as they may be of this queue: with thousands of
        queues nobody wants to list them for each. Such share their ``open_files``.
        """
        open_files = OpenFiles(share_of_limit()) if open_files is None else open_files
        self.name = name
        self._directory = directory
        self._layout = Layout(name)
        self._log = log
        self._closed = False
        self._job: SyncJob | None = None
        self._named = -1  # the last file whose name is known to be on disk
        sizes = bounds(min_record, max_record)
        self._segments, self._committed, self._synced_meta = recover(
            directory, os.listdir(directory) if files is None else files, self._layout, sizes, log
        )
        self._writer = Writer(
            directory, self._layout, self._segments, sizes, max_bytes_per_file, log, open_files
        )
        self._reader = Reader(
            directory, self._layout, self._segments, self._committed, sizes, log, open_files
        )
        self._leave_finished_files()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def depth(self) -> int:
        """How many records are not committed; damage reading has not met yet can make it 1 instead of 0."""
        return self._records_behind(self._committed)

    @property
    def unread(self) -> int:
        """How many records ``read`` will still give; with unmet damage as for ``depth``."""
        return self._records_behind(self._reader.cursor)

    @property
    def size(self) -> int:
        """How much the records that are not committed take in the files."""
        return self._segments.size_behind(self._committed)

    @property
    def committed(self) -> Position:
        return self._committed

    @property
    def written(self) -> Position:
        """Behind the last record."""
        return self._segments.written

    def append(self, records: Iterable[bytes]) -> list[Position]:
        """Write a batch and return the place of each record. When this raises, none of them is in the queue.

        The records are with the operating system: they survive this process, but a power cut only once a job
        made afterwards has run. Raises InvalidMessage for a size outside the limits.
        """
        self._insist_on_open()
        positions = self._writer.append(records)
        self._leave_finished_files()
        return positions

    def read(self, limit: int) -> list[tuple[Position, bytes]]:
        """The next records, at most ``limit``; fewer only at the end of the queue.

        What is damaged is logged and skipped up to the next file. Nothing is given twice before a restart.
        """
        self._insist_on_open()
        found = self._reader.read(limit)
        if self._segments.last.flaw is not None:
            self._writer.roll()
        self._leave_finished_files()
        return found

    def skip(self, position: Position) -> None:
        """Do not read what lies before ``position``: the caller has those records already."""
        self._insist_on_own(position)
        if position.place > self._reader.cursor.place:
            self._reader.move(position)

    def commit(self, position: Position) -> None:
        """Everything before ``position`` may be forgotten, read or not. Going backwards does nothing."""
        self._insist_on_own(position)
        if position.place > self._committed.place:
            self._committed = position
            self.skip(position)
            self._leave_finished_files()

    def sync(self) -> None:
        """Make everything so far last, in this thread."""
        job = self.sync_job()
        if job is not None:
            job()
            self.synced(job)

    def sync_job(self) -> SyncJob | None:
        """What makes everything so far last, to be called in any thread; None if nothing has changed.

        The queue can be used meanwhile. Tell it by ``synced`` when the job is done. There is one job at a
        time: asking for the next one cancels the one before.
        """
        self._insist_on_open()
        self._cancel_job()
        content = self._meta().text()
        if content == self._synced_meta and not self._writer.unsynced:
            return None
        try:
            self._job = self._make_job(content)
        except OSError:
            # The disk may be full; what nobody wants any more is the first to go.
            self._forget_files(self._committed.file)
            self._job = self._make_job(content)
        return self._job

    def flush_job(self) -> FlushJob | None:
        """What makes the records so far last, in any thread; tell it by ``flushed``. None if they do."""
        self._insist_on_open()
        numbers = self._worth_syncing()
        if not numbers:
            return None
        return FlushJob(
            self._directory,
            [self._layout.data(number) for number in sorted(numbers)],
            named=self._segments.last.number <= self._named,
            numbers=numbers,
            written=self._segments.written,
            check=self._writer.doubt.check(),
        )

    def flushed(self, job: FlushJob) -> None:
        """``job`` was called and did not raise. Raises OSError if records were lost all the same."""
        job.check()
        self._named = max(self._named, job.written.file)
        self._writer.synced(job.numbers, job.written)

    def begin_new_file(self) -> None:
        """Append to another file from now on: an fsync of this one has failed."""
        self._insist_on_open()
        if self._segments.last.end:
            self._writer.roll()

    def synced(self, job: SyncJob) -> None:
        """``job`` was called and did not raise. One that was cancelled meanwhile changes nothing.

        Raises OSError if records were lost all the same.
        """
        if job is not self._job:
            return
        self._job = None
        job.check()
        self._synced_meta = job.content
        self._writer.synced(job.numbers, job.written)
        self._forget_files(job.committed.file)

    def empty(self) -> None:
        """Forget all records and remove their files. Positions given before are behind the committed one."""
        self._insist_on_open()
        self._log.info("DISKQUEUE(%s): emptying", self.name)
        self._cancel_job()
        if self._segments.last.end:
            self._writer.roll()
        self._committed = self._segments.written
        self._reader.move(self._committed)
        self._forget_files(self._committed.file)
        self._unlink(self._layout.meta)
        self._synced_meta = None

    def close(self) -> None:
        """Sync and close the files; they stay. If the sync raises, the files are closed all the same."""
        if not self._closed:
            try:
                self.sync()
            finally:
                self._release()

    def delete(self) -> None:
        """Close, and leave nothing of the queue on disk but files kept as .bad."""
        if not self._closed:
            self._log.info("DISKQUEUE(%s): deleting", self.name)
            self._cancel_job()
            self._release()
            self._forget_files(self._segments.last.number + 1)
            self._unlink(self._layout.meta)

    def _release(self) -> None:
        self._closed = True
        self._reader.close()
        self._writer.close()

    def _records_behind(self, position: Position) -> int:
        # The place decides: a count can be wrong where a meta file was.
        if not self._segments.size_behind(position):
            return 0
        return max(1, self._segments.count - position.ordinal)

    def _meta(self) -> Meta:
        written = self._segments.written
        return Meta(self.depth, *self._committed.place, *written.place)

    def _make_job(self, content: str) -> SyncJob:
        numbers = self._worth_syncing()
        return SyncJob(
            self._directory,
            [self._layout.data(number) for number in sorted(numbers)],
            self._layout.meta,
            content,
            numbers=numbers,
            written=self._segments.written,
            committed=self._committed,
            check=self._writer.doubt.check(),
        )

    def _worth_syncing(self) -> frozenset[int]:
        # A file that is about to go needs no sync.
        return frozenset(number for number in self._writer.unsynced if number >= self._committed.file)

    def _cancel_job(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def _leave_finished_files(self) -> None:
        """The committed place never stays at the end of a file that will not grow."""
        while True:
            file, end, ordinal = self._committed
            following = self._segments.after(file)
            if following is None or end < self._segments[file].end:
                return
            first = ordinal if following.first is None else following.first
            self._committed = Position(following.number, 0, first)
            self.skip(self._committed)

    def _forget_files(self, number: int) -> None:
        """Remove the files before this one."""
        for segment in self._segments.before(number):
            self._segments.remove(segment.number)
            self._writer.forget(segment.number)
            self._forget(segment)

    def _forget(self, segment: Segment) -> None:
        file = self._layout.data(segment.number)
        if segment.flaw is None or not segment.flaw.keep:
            self._unlink(file)
            return
        self._log.warning("DISKQUEUE(%s): keeping %s as %s%s", self.name, file, file, BAD)
        try:
            (self._directory / file).replace(self._directory / f"{file}{BAD}")
        except OSError as error:
            self._log.error("DISKQUEUE(%s): cannot rename %s: %s", self.name, file, error)

    def _unlink(self, file: str) -> None:
        """What cannot be removed now is removed at the next start-up."""
        try:
            (self._directory / file).unlink(missing_ok=True)
        except OSError as error:
            self._log.error("DISKQUEUE(%s): cannot remove %s: %s", self.name, file, error)

    def _insist_on_open(self) -> None:
        if self._closed:
            raise Closed(f"disk queue {self.name} is closed")

    def _insist_on_own(self, position: Position) -> None:
        self._insist_on_open()
        if position.place > self._segments.written.place:
            raise UsageError(
                f"{position} lies behind the end of disk queue {self.name}, {self._segments.written}: "
                "it is from another queue"
            )
