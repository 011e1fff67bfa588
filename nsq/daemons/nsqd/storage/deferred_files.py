"""The files of a channel's deferred messages: which are written to, unread, in memory as well, unsynced.

A start finds them, and takes back those that the last stop has made files of the queue. Then a file is

    current    for its bucket, until it is full: appended to
    unread     until its messages are due soon; then it is read, or joins the queue
    in memory  with --durable: a journal, or a file that was read; removed when its messages are elsewhere

A stop makes all of them files of the queue.
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.disk.layout import BAD, HEAD_SIZE, SIZE_BYTES, Log, Place, message_id
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.reading import survey
from nsq.daemons.nsqd.disk.syncing import SyncJob, remove_in_thread, truncate_regular
from nsq.daemons.nsqd.storage.choosing import COMPARED, choose_records
from nsq.daemons.nsqd.storage.deferred_file import (
    FILE_BYTES,
    FILE_RECORDS,
    HAS_LEFT,
    Bucket,
    DeferredFile,
    DeferredSync,
    Entry,
)

#: How soon a file is tried again that could not be written or read.
RETRY_SECONDS = 1.0
#: With more files than this, a thread removes them: each takes a millisecond or two.
_REMOVED_AT_ONCE = 20
#: The most files that one peek reads.
_PEEKED_FILES = 4


class FilesLost(OSError):
    """Another program has removed files."""

    def __init__(self, files: set[DeferredFile]) -> None:
        names = ", ".join(file.data.name for file in sorted(files))
        super().__init__(errno.ENOENT, "another program has removed files of messages", names)
        self.files = files


class DeferredFiles:
    """The files beside the queue ``disk``. ``written`` is called after every write with --durable."""

    def __init__(
        self,
        directory: Path,
        disk: DiskQueue,
        time_ns: Callable[[], int],
        *,
        durable: bool,
        log: Log,
        failed: Callable[[Exception, int], None],
        written: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._time_ns = time_ns
        self._durable = durable
        self._log = log
        self._failed = failed
        self._written = written
        self._number = 0  # of the last file
        # Files that are not in memory, by the time to read them; a bucket's current file is among them.
        self._unread: list[tuple[int, int, DeferredFile]] = []
        self.messages = 0  # in unread files
        self._current: dict[Bucket, DeferredFile] = {}
        self._in_memory: set[DeferredFile] = set()  # with --durable
        self._dirty: set[DeferredFile] = set()
        self._failed_files: set[Path] = set()  # files whose last fsync failed; see ``SyncJob``
        self._rewritten: list[DeferredFile] = []
        self._joining: list[DeferredFile] = []  # at a stop: files that are going to be files of the queue

    # Starting.

    def recover(
        self, numbers: list[int], waiting_in_topic: Callable[[], Mapping[bytes, int]]
    ) -> tuple[dict[Place, bytes], set[bytes]]:
        """Take in the files of earlier runs. After a kill, return what ``choose_records`` returns."""
        self._number = numbers[-1] if numbers else 0
        files = [DeferredFile(self._directory, self._disk.name, number) for number in numbers]
        joined = [
            (place, size, file)
            for file in files
            if not file.data.exists()
            for place, size in file.read_joined()
        ]
        # From the queue's end to its beginning, as the last file can be taken out.
        for place, size, file in sorted(joined, reverse=True):
            if not file.intact:
                self._take_back(file, place, size)
        for file in files:
            if not file.data.exists():
                file.remove()
        left = [file for file in files if not file.removed and not file.intact]
        for file in left:  # by a kill
            dues = file.read_index()
            file.measure()
            self._take_in(file, dues)
        if not self._durable or not (left or self._disk.unsynced):
            return {}, set()
        self._dirty.update(file for file in files if not file.removed)
        queued = self._disk.unread_records(COMPARED)
        chosen = choose_records(queued, self.unread, self._disk.sizes, waiting_in_topic())
        self.messages = sum(file.left for file in self.unread)
        return chosen

    def _take_back(self, file: DeferredFile, place: int, size: int) -> None:
        """Take a file's records back from the queue, if no message of it has been read and it is the same."""
        path = self._disk.last_full_file(place)
        dues = file.read_index()
        if path is None or not dues or path.stat().st_size != size:
            return
        with open(path, "rb") as records:
            if message_id(records.read(SIZE_BYTES + HEAD_SIZE)[SIZE_BYTES:]) != next(iter(dues)):
                return
        count = file.count_joined()
        self._disk.take_out_last_file(place, file.data, count)
        self._take_in(file, dues)
        file.count = count
        file.note_taken_back(size)

    def _take_in(self, file: DeferredFile, dues: dict[bytes, int]) -> None:
        """Note a file of an earlier run."""
        later = [due for due in dues.values() if due != HAS_LEFT]
        file.count, file.left = len(dues), len(later)
        if not dues:
            file.count = file.left = survey(file.data, 0, file.sizes[1], self._disk.sizes).records
        if dues and not later:
            file.remove()
            return
        file.first, file.last = min(later, default=0), max(later, default=0)
        file.first_due, file.last_due = file.first, file.last
        self.messages += file.left
        self._add_unread(file)

    # Writing.

    def store(self, found: dict[Bucket, list[Entry]]) -> list[DeferredFile]:
        """Write messages to the files of their buckets; all or none. Raises OSError."""
        done: list[tuple[DeferredFile, int, tuple[int, int], int]] = []
        try:
            for place, entries in found.items():
                for start in range(0, len(entries), FILE_RECORDS):
                    file = self._current_file(place)
                    done.append((file, file.count, file.sizes, file.latest))
                    file.append(entries[start : start + FILE_RECORDS])
        except OSError:
            for file, count, sizes, latest in reversed(done):
                file.undo(count, sizes, latest)
            raise
        finally:
            if not self._durable:
                for file, *_ in done:
                    file.close()
        files = [file for file, *_ in done]
        self.messages += sum(len(entries) for place, entries in found.items() if place is not None)
        if self._durable and files:
            self._dirty.update(files)
            self._written()
        return files

    def _current_file(self, place: Bucket) -> DeferredFile:
        file = self._current.get(place)
        if file is None or file.full:
            file = self._current[place] = self._new_file()
            file.bucket = place
            if place is None:
                file.journal = True
                self._in_memory.add(file)
            else:
                shift, number = place
                file.first, file.last = number << shift, number + 1 << shift
                self._add_unread(file)
        return file

    def _new_file(self) -> DeferredFile:
        self._number += 1
        return DeferredFile(self._directory, self._disk.name, self._number)

    def _add_unread(self, file: DeferredFile) -> None:
        heapq.heappush(self._unread, (file.opens, file.number, file))

    # Reading.

    @property
    def unread(self) -> list[DeferredFile]:
        return [file for _, _, file in self._unread]

    @property
    def next(self) -> DeferredFile | None:
        """The file to read next, at ``next_opens`` on the wall clock."""
        return self._unread[0][2] if self._unread else None

    @property
    def next_opens(self) -> int:
        return self._unread[0][0]

    def is_whole(self, file: DeferredFile) -> bool:
        """Whether the file can join the queue as it is."""
        return file.intact and file not in self._dirty

    def join_queue(self) -> bool:
        """Make the next file, whose messages are all due, a file of the queue. Returns False on an error."""
        file = self._unread[0][2]
        try:
            file.close()
            truncate_regular(file.data, file.sizes[1])
            self._disk.join_file(file.data, file.count, file.sizes[1], synced=self._durable)
        except OSError:
            return False
        self._forget_next()
        file.remove()
        return True

    def read_next(self) -> tuple[DeferredFile, list[Entry]]:
        """Read the next file, which is not unread afterwards. If that raises OSError, try again later."""
        file, problem = self._unread[0][2], ""
        entries: list[Entry] = []
        try:
            entries, problem = file.read(self._disk.sizes)
        except FileNotFoundError:
            problem = "is gone" if file.left else ""
        except OSError as error:
            if error.errno != errno.EIO:
                self.postpone_next(self._time_ns() + int(RETRY_SECONDS * 1e9))
                raise
            problem = "cannot be read"
        self._forget_next()
        file.left = len(entries)
        self._report(file, problem)
        if self._durable:
            self._note_read(file)
        return file, entries

    def postpone_next(self, opens: int) -> None:
        """Read the next file later. New messages of its bucket get another file."""
        file = self._unread[0][2]
        self.forget_current(file)
        heapq.heapreplace(self._unread, (opens, file.number, file))

    def _forget_next(self) -> None:
        _, _, file = heapq.heappop(self._unread)
        self.forget_current(file)
        self.messages -= file.left

    def forget_current(self, file: DeferredFile) -> None:
        """Append to another file of the same bucket from now on."""
        if self._current.get(file.bucket) is file:
            del self._current[file.bucket]

    def _note_read(self, file: DeferredFile) -> None:
        self._in_memory.add(file)
        self._dirty.add(file)
        try:
            file.write_read()
        except OSError as error:
            self._failed(error, 0)
        self._written()

    def _report(self, file: DeferredFile, problem: str) -> None:
        name = file.data.name
        if file.unwritten:
            what = "%s lacks its last %d messages: nsqd ended before it had written them"
            if self._durable:
                what += ", and so before it confirmed them or removed other records of them"
            self._log.warning(what, name, file.unwritten)
        if problem:
            file.damaged = True
            what = "%s %s; keeping it as %s%s, with %d readable messages"
            self._log.error(what, name, problem, name, BAD, file.left)

    # Syncing, with --durable.

    def sync_job(self) -> DeferredSync | None:
        leaving = [file for file in self._in_memory if file.leaving or not file.left]
        if not self._dirty and not leaving:
            return None
        return DeferredSync(self._directory, self._dirty, leaving, self._failed_files)

    def forget_lost(self, job: DeferredSync) -> FilesLost | None:
        """Forget the job's files that another program has removed. Returns an error that names them."""
        lost = {file for file in job.dirty if not file.removed and not file.data.exists()}
        for file in sorted(lost):
            self._forget_file(file)
        if not lost:
            return None
        self._unread = [entry for entry in self._unread if entry[2] not in lost]
        heapq.heapify(self._unread)
        self.messages = sum(file.left for file in self.unread)
        return FilesLost(lost)

    def synced(self, job: DeferredSync) -> None:
        """Note that ``job`` has succeeded, and the queue has synced the messages that had left by then."""
        for file, sizes in job.dirty.items():
            file.named = True
            if file.sizes == sizes:
                self._dirty.discard(file)
                file.close()
        for file, ids in job.leaving.items():
            try:
                if not file.removed:
                    self._forget_left(file, ids)
            except OSError as error:
                self._failed(error, 0)

    def _forget_left(self, file: DeferredFile, ids: list[bytes]) -> None:
        if not file.left and not set(file.leaving).difference(ids):
            self._forget_file(file)
            return
        file.write_left(ids)
        if file not in self._dirty:
            file.close()

    def _forget_file(self, file: DeferredFile) -> None:
        self._in_memory.discard(file)
        self._dirty.discard(file)
        self._failed_files -= {file.data, file.index}
        self.forget_current(file)
        file.remove()

    @property
    def messages_in_memory(self) -> int:
        """The number of messages of files in memory, with those that have left."""
        return sum(file.count for file in self._in_memory)

    def half_empty(self) -> set[DeferredFile]:
        """Return the files in memory of which half of the messages have left."""
        few = {file for file in self._in_memory if 2 * file.left <= file.count}
        return few.difference(self._current.values())

    def make_room(self) -> bool:
        """Remove files whose last messages were finished. Returns whether there were any.

        For a full disk. Messages that have moved must be synced elsewhere first; see ``synced``.
        """
        files = [file for file in self._in_memory if not file.left and all(file.leaving.values())]
        for file in files:
            self._forget_file(file)
        return bool(files)

    def begin_new(self) -> None:
        """Append to new files from now on: a sync has failed, so bytes of these may be lost."""
        self._current.clear()

    # Stopping.

    def persist(self, in_memory: list[Entry]) -> list[SyncJob]:
        """Write these messages to files, and prepare all files to join the queue; see ``DeferredOnDisk``."""
        unread = sorted(self.unread, key=lambda file: file.first)
        files = [file for file in unread if file.left and file.intact]
        self._rewritten += [file for file in unread if not file.left]
        left = len(in_memory) + self.messages
        try:
            files += self._write_files(in_memory)
            self._rewritten += sorted(self._in_memory)
            for file in [file for file in unread if file.left and not file.intact]:
                entries, problem = file.read(self._disk.sizes)
                self._report(file, problem)
                file.write_read()
                self._dirty.add(file)
                files += self._write_files(sorted(entries))
                self._rewritten.append(file)
            if files:
                self._disk.begin_new_file()
            for number, file in enumerate(files, self._disk.written.file):
                file.write_joined(number)
        except OSError as error:
            raise self._not_in_queue(left, error) from error
        finally:
            for file in [*unread, *self._in_memory, *self._dirty, *files]:
                file.close()
        self._joining = files
        if not files:
            return []
        sizes = {file.index: file.sizes[0] for file in {*files, *self._dirty}}
        sizes |= {file.data: file.sizes[1] for file in files}
        return [SyncJob(self._directory, sizes, new_names=True, failed=self._failed_files)]

    def join(self, *, synced: bool) -> None:
        """Rename the files to be files of the queue. Their records and indexes should be ``synced`` before:
        else a power cut could leave records in the queue whose index does not say so. Raises StorageFailed.
        """
        files, self._joining = self._joining, []
        left = sum(file.left for file in files)
        try:
            for file in files:
                truncate_regular(file.data, file.sizes[1])
                failed = file.data in self._failed_files
                self._disk.join_file(file.data, file.count, file.sizes[1], synced=synced, failed=failed)
                left -= file.left
        except OSError as error:
            raise self._not_in_queue(left, error) from error

    def _not_in_queue(self, left: int, error: OSError) -> StorageFailed:
        return StorageFailed(
            f"{left} deferred messages of {self._disk.name} are lost or not in the queue: {error}"
        )

    def _write_files(self, entries: list[Entry]) -> list[DeferredFile]:
        """Write messages to new files."""
        files: list[DeferredFile] = []
        try:
            while entries:
                size = count = 0
                while count < min(FILE_RECORDS, len(entries)) and size < FILE_BYTES:
                    size += len(entries[count][1])
                    count += 1
                files.append(self._new_file())
                files[-1].append(entries[:count])
                files[-1].close()
                entries = entries[count:]
        except OSError:
            for file in files:
                file.close()
                if self._durable:  # the messages are in other files
                    file.remove()
            raise
        return files

    def remove_rewritten(self) -> None:
        """Remove files whose messages are elsewhere, after everything is synced."""
        for file in self._rewritten:
            file.remove()

    # Seeing and emptying.

    def peek_job(self, n: int) -> Callable[[], list[Entry]] | None:
        """Return a function for a thread that returns the ``n`` messages due next; None without files."""
        files = [file for _, _, file in heapq.nsmallest(_PEEKED_FILES, self._unread)]
        return (lambda: self._peek(files, n)) if files else None

    def _peek(self, files: list[DeferredFile], n: int) -> list[Entry]:
        found: list[Entry] = []
        for file in files:
            with suppress(OSError):  # it was removed meanwhile, or reading it later logs the problem
                found = heapq.nsmallest(n, found + file.read(self._disk.sizes)[0])
        return found

    def clear(self) -> None:
        files = {*self._in_memory, *self.unread}
        self.messages = 0
        self._unread.clear()
        self._current.clear()
        self._in_memory.clear()
        self._dirty.clear()
        self._failed_files.clear()
        if len(files) > _REMOVED_AT_ONCE:
            remove_in_thread([path for file in files for path in file.rename_to_temporary()])
        else:
            for file in files:
                file.remove()
