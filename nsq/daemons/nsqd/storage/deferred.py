"""A channel's deferred messages: those due soon in memory, the others in files, roughly by their due times.

A file belongs to a bucket: messages due within the same second, minute, hour or more, the further away the
wider. Shortly before the bucket's time, the file is read into memory if there is room; otherwise only what
is due soon, and the rest is written to narrower buckets. So a message is written two or three times, a
million of them need no more memory than ten thousand, and those due first are in memory in time.

Without --durable, new messages stay in memory until there are too many; then those due last are written.
With --durable, every message is written at once, and those due soon are in memory as well. When they are due
and the channel's queue has synced them, the index of the file notes that they have left it.

At a stop the records of each file are renamed to be a file of the channel's queue, where Go's nsqd finds
them, and the index notes which one. A start takes the file back, if it is still there and unread. A message
is in one place at a time, so an index that is out of date delivers nothing. Only a kill can leave a message
in two places; the next start chooses one.
"""

from __future__ import annotations

import errno
import heapq
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed, Waiting
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.core.deferred import DeferredInMemory, DueRange
from nsq.daemons.nsqd.disk.layout import (
    BAD,
    HEAD_SIZE,
    SIZE_BYTES,
    Log,
    Place,
    decode_record,
    message_id,
)
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.reading import survey
from nsq.daemons.nsqd.disk.syncing import SyncJob
from nsq.daemons.nsqd.storage.deferred_file import (
    FILE_BYTES,
    FILE_RECORDS,
    HAS_LEFT,
    SOON,
    Bucket,
    DeferredFile,
    DeferredSync,
    Entry,
)
from nsq.daemons.nsqd.storage.memory_first import decode, encode
from nsq.daemons.worker_thread import in_thread

#: The widths of buckets, as powers of two of nanoseconds (208 days, 78 hours, 73 minutes, 69 s, 1.07 s), and
#: how long before its beginning each is opened: the wider, the earlier, as many messages may have to be
#: written to narrower buckets in time.
_WIDTHS = [(shift, (1 << shift - 4) + SOON) for shift in (54, 48, 42, 36, 30)]
#: Look at the files at least so often, in seconds: the wall clock may have been set.
_LOOK_EVERY = 60.0
#: How soon a file is tried again that could not be written or read.
_RETRY_SECONDS = 1.0
#: The room that a full disk must have before it counts as working again.
_SPILL_BYTES = 1 << 20
#: The most records of a queue that are compared with the indexes after a kill.
_COMPARED = 50_000
#: The most files that one peek reads.
_PEEKED_FILES = 4


def bucket(due: int, wall: int) -> Bucket:
    """Return the widest bucket that is not opened yet."""
    for shift, before in _WIDTHS:
        if (due >> shift << shift) - before > wall:
            return shift, due >> shift
    return None


class DeferredOnDisk(DeferredInMemory):
    """The deferred messages of the channel whose queue is ``disk``; see the module."""

    def __init__(
        self,
        directory: Path,
        disk: DiskQueue,
        clock: Clock,
        *,
        numbers: Iterable[int],
        durable: bool,
        memory_limit: int,
        log: Log,
        failed: Callable[[Exception, int], None],
        written: Callable[[], None],
        sync_error: Callable[[], Exception | None],
        make_room: Callable[[OSError], bool],
    ) -> None:
        """``written`` is called after every write of a durable nsqd; see the backlogs for the others."""
        super().__init__()
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._sizes = disk.sizes
        self._durable = durable
        self._limit = memory_limit
        self._log = log
        self._failed = failed
        self._written = written
        self._sync_error = sync_error
        self._make_room = make_room
        self._weight = 0  # of the messages in memory
        self._spill_at = memory_limit
        self._full_until = 0.0  # refuse new messages without another try to write
        self._number = 0  # of the last file
        # Files that are not in memory, by the time to read them; a bucket's current file is among them.
        self._unread: list[tuple[int, int, DeferredFile]] = []
        self._current: dict[Bucket, DeferredFile] = {}
        self._in_memory: set[DeferredFile] = set()  # with --durable
        self._dirty: set[DeferredFile] = set()
        self._rewritten: list[DeferredFile] = []
        self.on_disk = 0
        #: After a kill: records in the queue to skip, with the message's id; see ``_choose_records``.
        self.obsolete: dict[Place, bytes] = {}
        self._recover(sorted(numbers))

    def __len__(self) -> int:
        return len(self._heap) + self.on_disk

    # Messages in.

    def add(self, message: Message) -> None:
        if not self._durable:
            if self._weight >= self._spill_at:
                self._make_room_in_memory()
            self._push(message, None)
            return
        if (known := self._sync_error()) is not None:
            raise StorageFailed(str(known))
        wall = self._clock.time_ns()
        due = wall + round((message.due - self._clock.now()) * 1e9)
        self._or_refuse(lambda: self._add_to_file(message, bucket(due, wall), due), len(message.body))

    def _add_to_file(self, message: Message, place: Bucket, due: int) -> None:
        [file] = self._store({place: [(due, encode(message))]})
        if place is None:
            self._push(message, file)

    def _or_refuse(self, write: Callable[[], None], size: int) -> None:
        try:
            try:
                write()
            except OSError as error:
                if not self._make_room(error):
                    raise
                write()
        except OSError as error:
            self._failed(error, size)
            raise StorageFailed(str(error)) from error

    def _push(self, message: Message, source: object) -> None:
        super()._push(message, source)
        self._weight += _weight(message)

    def _make_room_in_memory(self) -> None:
        if self._clock.now() < self._full_until:
            raise StorageFailed("the disk is refusing deferred messages")
        try:
            self._or_refuse(self._spill, _SPILL_BYTES)
        except StorageFailed:
            self._full_until = self._clock.now() + _RETRY_SECONDS
            raise

    def _spill(self) -> None:
        """Write the messages due last to files, until a quarter of the room is free. Raises OSError."""
        now, wall = self._clock.now(), self._clock.time_ns()
        self._heap.sort()
        kept = weight = 0
        by_bucket: dict[Bucket, list[Entry]] = {}
        for due, _, message, _ in self._heap:
            each = _weight(message)
            if weight + each <= self._limit * 3 // 4:
                kept, weight = kept + 1, weight + each
                continue
            at = wall + round((due - now) * 1e9)
            place = bucket(at, wall)
            if place is None:
                kept, weight = kept + 1, weight + each
            else:
                by_bucket.setdefault(place, []).append((at, encode(message)))
        self._store(by_bucket)
        del self._heap[kept:]
        self._weight = weight
        # If most are due soon, do not look at all of them again for each message.
        self._spill_at = max(self._limit, weight * 3 // 2)

    def _store(self, by_bucket: dict[Bucket, list[Entry]]) -> list[DeferredFile]:
        """Write messages to the files of their buckets; all or none. Raises OSError."""
        done: list[tuple[DeferredFile, int, tuple[int, int]]] = []
        try:
            for place, entries in by_bucket.items():
                for start in range(0, len(entries), FILE_RECORDS):
                    file = self._current_file(place)
                    done.append((file, file.count, file.sizes))
                    file.append(entries[start : start + FILE_RECORDS])
        except OSError:
            for file, count, sizes in reversed(done):
                file.undo(count, sizes)
                self._close(file)
            raise
        files = [file for file, _, _ in done]
        for file in files:
            self._dirty.add(file)
            self._close(file)
        self.on_disk += sum(len(entries) for place, entries in by_bucket.items() if place is not None)
        if self._durable and files:
            self._written()
        return files

    def _close(self, file: DeferredFile) -> None:
        if not self._durable:
            file.close()
            self._dirty.discard(file)

    def _current_file(self, place: Bucket) -> DeferredFile:
        file = self._current.get(place)
        if file is None or file.full:
            file = self._current[place] = self._new_file()
            file.bucket = place
            if place is None:
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

    # Messages out.

    def next_check(self) -> float:
        check = super().next_check()
        if self._unread:
            opens, _, file = self._unread[0]
            at = opens if self._weight < self._limit else max(opens, file.first)
            seconds = (at - self._clock.time_ns()) / 1e9
            check = min(check, self._clock.now() + min(seconds, _LOOK_EVERY))
        return check

    def release(self, now: float, put: Callable[[list[Message]], None]) -> None:
        self._read_next_file(now)
        super().release(now, put)

    def _released(self, entries: list[tuple[float, int, Message, object]]) -> None:
        for _, _, message, file in entries:
            self._weight -= _weight(message)
            if isinstance(file, DeferredFile):
                file.leave([message.id])

    def _read_next_file(self, now: float) -> None:
        """Read one file, if it is time and there is room in memory."""
        wall = self._clock.time_ns()
        if not self._unread or self._unread[0][0] > wall:
            return
        file = self._unread[0][2]
        nothing_due = not self._heap or self._heap[0][0] > now
        if self._weight >= self._limit and not (file.first <= wall and nothing_due):
            return
        try:
            entries, problem = file.read(self._sizes)
        except FileNotFoundError:
            entries, problem = [], "is gone" if file.left else ""
        except OSError as error:
            if error.errno != errno.EIO:
                self._failed(error, 0)
                heapq.heapreplace(self._unread, (wall + int(_RETRY_SECONDS * 1e9), file.number, file))
                return
            entries, problem = [], "cannot be read"
        heapq.heappop(self._unread)
        if self._current.get(file.bucket) is file:
            del self._current[file.bucket]
        self.on_disk -= file.left
        file.left = len(entries)
        self._report(file, problem)
        if self._durable:
            self._note_read(file)
        self._put_in_place(file, entries, now, wall)
        if not self._durable:
            file.remove()

    def _note_read(self, file: DeferredFile) -> None:
        self._in_memory.add(file)
        self._dirty.add(file)
        try:
            file.write_read()
        except OSError as error:
            self._failed(error, 0)
        self._written()

    def _put_in_place(self, file: DeferredFile, entries: list[Entry], now: float, wall: int) -> None:
        """Take a file's messages into memory; without room, only those due soon, and write the others to
        narrower buckets.
        """
        soon = entries
        if self._weight + len(entries) > self._limit:
            by_bucket: dict[Bucket, list[Entry]] = {}
            for entry in entries:
                by_bucket.setdefault(bucket(entry[0], wall), []).append(entry)
            soon = by_bucket.pop(None, [])
            try:
                self._store(by_bucket)
                file.leave(message_id(record) for some in by_bucket.values() for _, record in some)
            except OSError as error:
                self._failed(error, _SPILL_BYTES)
                soon = entries
        for due, record in soon:
            message = decode(record)
            message.due = now + (due - wall) / 1e9
            self._push(message, file if self._durable else None)

    def _report(self, file: DeferredFile, problem: str) -> None:
        if problem:
            file.damaged = True
            name, left = file.data.name, file.left
            self._log.error(
                "%s %s; keeping it as %s%s, with %d readable messages", name, problem, name, BAD, left
            )

    # Syncing, with --durable.

    def sync_job(self) -> DeferredSync | None:
        leaving = [file for file in self._in_memory if file.leaving or not file.left]
        if not self._dirty and not leaving:
            return None
        return DeferredSync(self._directory, self._dirty, leaving)

    def synced(self, job: DeferredSync) -> None:
        """Note that ``job`` has succeeded, and the queue has synced the messages that had left by then.

        Raises OSError if another program has removed files.
        """
        lost = [file for file in job.dirty if not file.removed and not file.data.exists()]
        if lost:
            for file in lost:
                self._replace_lost(file)
            names = ", ".join(file.data.name for file in lost)
            raise OSError(errno.ENOENT, "another program has removed files of messages", names)
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
        if file.left or set(file.leaving).difference(ids):
            file.write_left(ids)
            if file not in self._dirty:
                file.close()
            return
        self._in_memory.discard(file)
        self._dirty.discard(file)
        if self._current.get(file.bucket) is file:
            del self._current[file.bucket]
        file.remove()

    def _replace_lost(self, file: DeferredFile) -> None:
        """Write a removed file's messages in memory to another file; the others are lost."""
        file.remove()
        self._in_memory.discard(file)
        self._dirty.discard(file)
        if any(file is each for _, _, each in self._unread):
            self._unread = [entry for entry in self._unread if entry[2] is not file]
            heapq.heapify(self._unread)
            self.on_disk -= file.left
        if self._current.get(file.bucket) is file:
            del self._current[file.bucket]
        now, wall = self._clock.now(), self._clock.time_ns()
        places = [place for place, entry in enumerate(self._heap) if entry[3] is file]
        try:
            for start in range(0, len(places), FILE_RECORDS):
                portion = places[start : start + FILE_RECORDS]
                entries = [self._heap[place] for place in portion]
                due = [(wall + round((each[0] - now) * 1e9), encode(each[2])) for each in entries]
                [other] = self._store({None: due})
                for place, entry in zip(portion, entries, strict=True):
                    self._heap[place] = (*entry[:3], other)
        except OSError as error:
            self._failed(error, 0)

    def begin_new_files(self) -> None:
        """Append to new files from now on: a sync has failed, so bytes of these may be lost."""
        self._current.clear()

    # Starting.

    def _recover(self, numbers: list[int]) -> None:
        self._number = numbers[-1] if numbers else 0
        files = [DeferredFile(self._directory, self._disk.name, number) for number in numbers]
        # From the queue's end to its beginning, as the last file can be taken out.
        for file in sorted(files, key=lambda file: file.read_joined(), reverse=True):
            if not file.data.exists() and not self._take_back(file):
                file.remove()
        left = [file for file in files if not file.removed and not file.intact]
        for file in left:  # by a kill
            dues = file.read_index()
            file.measure()
            self._take_in(file, dues)
        if self._durable and (left or self._disk.unsynced):
            self._dirty.update(file for file in files if not file.removed)
            self._choose_records()

    def _choose_records(self) -> None:
        """Of each message that a kill left with several records, choose one.

        A message gets its next record before the last one is given up. So the files can have it twice: the
        one due last counts. And the queue can have it too: it was deferred after that, or is due already.
        """
        queued = self._disk.unread_ids(_COMPARED)
        suspects = {each for each, _ in queued}
        files = [file for _, _, file in self._unread]
        now = self._clock.time_ns()
        for file in files:
            if file.was_read or file.opens <= now + SOON:  # or it was in memory from the beginning
                suspects.update(file.read_index())
        chosen: dict[bytes, tuple[int, DeferredFile]] = {}
        for file in files:
            if suspects.isdisjoint(file.read_index()):
                continue
            with suppress(OSError):  # reading it later logs the problem
                for due, record in file.read(self._sizes)[0]:
                    self._choose(chosen, message_id(record), due, file)
        last = dict(queued)
        self.obsolete = {place: each for each, place in queued if each in chosen or last[each] != place}

    def _choose(
        self, chosen: dict[bytes, tuple[int, DeferredFile]], each: bytes, due: int, file: DeferredFile
    ) -> None:
        other_due, other = chosen.get(each, (due, file))
        if due >= other_due:
            chosen[each] = due, file
        if other is not file:
            worse = other if due >= other_due else file
            before = worse.left
            worse.leave([each])
            self.on_disk += worse.left - before

    def _take_back(self, file: DeferredFile) -> bool:
        """Take a file's records back from the queue, if no message of it has been read and it is the same."""
        place, size = file.read_joined()
        path = self._disk.last_full_file(place)
        dues = file.read_index()
        if path is None or not dues or path.stat().st_size != size:
            return False
        with open(path, "rb") as records:
            if message_id(records.read(SIZE_BYTES + HEAD_SIZE)[SIZE_BYTES:]) != next(iter(dues)):
                return False
        self._disk.take_out_last_file(place, file.data, len(dues))
        file.note_taken_back(len(dues), size)
        self._take_in(file, dues)
        return True

    def _take_in(self, file: DeferredFile, dues: dict[bytes, int]) -> None:
        """Note a file of an earlier run."""
        later = [due for due in dues.values() if due != HAS_LEFT]
        file.count, file.left = len(dues), len(later)
        if not dues:
            file.count = file.left = survey(file.data, 0, file.sizes[1], self._sizes).records
        if dues and not later:
            file.remove()
            return
        file.first, file.last = min(later, default=0), max(later, default=0)
        self.on_disk += file.left
        self._add_unread(file)

    # Stopping.

    def take_held(self) -> list[Message]:
        if not self._durable:
            return []
        held = [entry[2] for entry in self._heap if entry[3] is None]
        self._heap = [entry for entry in self._heap if entry[3] is not None]
        heapq.heapify(self._heap)
        return held

    def persist(self) -> list[SyncJob]:
        """Write the messages in memory, and join all files to the queue. Returns the jobs that sync them.

        Raises StorageFailed if some of them are lost, or not in the queue.
        """
        now, wall = self._clock.now(), self._clock.time_ns()
        unread = sorted((file for _, _, file in self._unread), key=lambda file: file.first)
        files = [file for file in unread if file.left and file.intact]
        self._rewritten += [file for file in unread if not file.left]
        left = len(self)
        try:
            in_memory = [(wall + round((due - now) * 1e9), encode(each)) for due, _, each, _ in self._heap]
            files += self._write_files(sorted(in_memory))
            self._rewritten += sorted(self._in_memory)
            for file in [file for file in unread if file.left and not file.intact]:
                entries, problem = file.read(self._sizes)
                self._report(file, problem)
                files += self._write_files(sorted(entries))
                self._rewritten.append(file)
            for file in files:
                self._join(file)
                left -= file.left
        except OSError as error:
            text = f"{left} deferred messages of {self._disk.name} are lost or not in the queue: {error}"
            raise StorageFailed(text) from error
        finally:
            for file in [*self._in_memory, *self._dirty, *files]:
                file.close()
        return [SyncJob(self._directory, [file.index for file in files], new_names=True)] if files else []

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

    def _join(self, file: DeferredFile) -> None:
        file.close()
        os.truncate(file.data, file.sizes[1])
        self._disk.begin_new_file()
        file.write_joined(self._disk.written.file)
        file.close()
        self._disk.join_file(file.data, file.count, file.sizes[1])

    def remove_rewritten(self) -> None:
        """Remove files whose messages are elsewhere, after everything is synced."""
        for file in self._rewritten:
            file.remove()

    # Seeing, emptying and deleting.

    def next_due(self) -> float:
        now, wall = self._clock.now(), self._clock.time_ns()
        on_disk = min((file.first for _, _, file in self._unread), default=float("inf"))
        return min(super().next_due(), now + (on_disk - wall) / 1e9)

    def due_ranges(self) -> list[DueRange]:
        now, wall = self._clock.now(), self._clock.time_ns()
        return super().due_ranges() + [
            DueRange(now + (file.first - wall) / 1e9, now + (file.last - wall) / 1e9, file.left)
            for _, _, file in self._unread
        ]

    async def peek(self, n: int, max_bytes: int) -> list[tuple[float, Waiting]]:
        found = await super().peek(n, max_bytes)
        files = [file for _, _, file in heapq.nsmallest(_PEEKED_FILES, self._unread)]
        now, wall = self._clock.now(), self._clock.time_ns()
        for due, record in await in_thread(lambda: self._peek_files(files, n), "nsqd-peek") if files else ():
            whole = decode_record(record)
            shown = Waiting(whole.id, whole.timestamp, whole.attempts, len(whole.body), whole.body)
            found.append((now + (due - wall) / 1e9, shown))
        found.sort(key=lambda one: one[0])
        cut: list[tuple[float, Waiting]] = []
        for due_at, shown in found[:n]:
            body = shown.body[:max_bytes]
            max_bytes -= len(body)
            cut.append((due_at, shown._replace(body=body)))
        return cut

    def _peek_files(self, files: list[DeferredFile], n: int) -> list[Entry]:
        found: list[Entry] = []
        for file in files:
            with suppress(OSError):  # it was removed meanwhile, or reading it later logs the problem
                found = heapq.nsmallest(n, found + file.read(self._sizes)[0])
        return found

    def clear(self) -> None:
        files = {*self._in_memory, *(file for _, _, file in self._unread)}
        super().clear()
        self._weight = self.on_disk = 0
        self._unread.clear()
        self._current.clear()
        self._in_memory.clear()
        self._dirty.clear()
        for file in files:
            file.remove()


def _weight(message: Message) -> int:
    return 1 + (len(message.body) >> 10)
