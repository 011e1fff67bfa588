"""A channel's deferred messages: those due soon in memory, the others in files, roughly by their due times.

    add ──▶ memory, a heap ────────────── due ─────────────▶ the channel's queue
              │         ▲                                           ▲
     too many │         │ due soon, and there is room               │ all are due, or at the same time:
              ▼         │                                           │ the file is renamed
            a file of a bucket ─────────────────────────────────────┘
              │         ▲
              └─────────┘ due soon, and there is no room: written again, to narrower buckets

A bucket has the messages due within the same second, minute, hour or more, the further away the wider. So a
message is written two or three times, a million of them need no more memory than ten thousand, and those due
first are in memory in time.

With --durable, every message is written at once, to a journal: a file of messages that are in memory as well.
Now and then the rest of a journal is written to the next one.

At a stop the records of each file are renamed to be a file of the channel's queue, where Go's nsqd finds
them. A start takes the file back, if it is still there and unread.

What always holds:

1. A message is in one place at a time: in memory, in a file, or in the queue. Only a kill or a power cut can
   leave it in two; the next start chooses one (``choose_records``).
2. With --durable, each message in memory has a record in a file. That file goes, or its index says that the
   message has left, only when it is synced elsewhere: in another file, or in the channel's queue. If the
   queue's disk is full, a due message stays in its file until a consumer has finished it.
3. An index is written before its records, and removed after them: a record without a due time would be due
   at once. An index that lists messages which are gone delivers nothing.
4. Before records join the queue, their index notes as which file.
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed, Waiting, show
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.core.deferred import DeferredInMemory, DueRange
from nsq.daemons.nsqd.disk.layout import BAD, HEAD_SIZE, SIZE_BYTES, Log, Place, message_id
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.reading import survey
from nsq.daemons.nsqd.disk.syncing import SyncJob, remove_in_thread, truncate_regular
from nsq.daemons.nsqd.storage.deferred_file import (
    FILE_BYTES,
    FILE_RECORDS,
    HAS_LEFT,
    Bucket,
    DeferredFile,
    DeferredSync,
    Entry,
    by_bucket,
    choose_records,
)
from nsq.daemons.nsqd.storage.memory_first import decode, encode
from nsq.daemons.serve.worker_thread import in_thread

#: Look at the files at least so often, in seconds: the wall clock may have been set.
_LOOK_EVERY = 60.0
#: How soon a file is tried again that could not be written or read.
_RETRY_SECONDS = 1.0
#: The room that a full disk must have before it counts as working again.
_SPILL_BYTES = 1 << 20
#: How many of the last records of a queue, and of its topic's, are compared with the indexes after a kill.
COMPARED = 50_000
#: With more files than this, a thread removes them: each takes a millisecond or two.
_REMOVED_AT_ONCE = 20
#: The most files that one peek reads.
_PEEKED_FILES = 4


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
        waiting_in_topic: Callable[[], Mapping[bytes, int]],
    ) -> None:
        """``written`` is called after every write of a durable nsqd; ``waiting_in_topic`` returns the ids of
        the topic's first messages, and how whole they are; see the backlogs for the others.
        """
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
        # Due messages that the queue's disk has refused, and the files that keep them until they are
        # finished.
        self._memory_only: dict[bytes, tuple[Message, DeferredFile]] = {}
        self._dirty: set[DeferredFile] = set()
        self._failed_files: set[Path] = set()  # files whose last fsync failed; see ``SyncJob``
        self._rewritten: list[DeferredFile] = []
        self._joining: list[DeferredFile] = []  # at a stop: files that are going to be files of the queue
        self.on_disk = 0
        #: After a kill: records in the queue to skip, with the message's id; see ``choose_records``.
        self.obsolete: dict[Place, bytes] = {}
        self._recover(sorted(numbers), waiting_in_topic)

    def __len__(self) -> int:
        return len(self._heap) + self.on_disk

    # Messages in.

    def add(self, messages: list[Message]) -> None:
        if self._durable and (known := self._sync_error()) is not None:
            raise StorageFailed(str(known))
        if self._weight >= self._spill_at:
            self._make_room_in_memory()
        if not self._durable:
            self._push(messages, None)
            return
        entries = self._entries(messages)
        size, files = sum(len(record) for _, record in entries), list[DeferredFile]()
        self._or_refuse(lambda: files.extend(self._store({None: entries})), size)
        for number, file in enumerate(files):
            self._push(messages[number * FILE_RECORDS : (number + 1) * FILE_RECORDS], file)
        for message in messages if self._memory_only else ():
            if (kept := self._memory_only.pop(message.id, None)) is not None:
                kept[1].leave([message.id])

    def _entries(self, messages: list[Message]) -> list[Entry]:
        ahead = -int(self._clock.now() * 1e9) + self._clock.time_ns()  # in this order: late rather than early
        return [(ahead + int(message.due * 1e9), encode(message)) for message in messages]

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

    def _push(self, messages: list[Message], source: object) -> None:
        super()._push(messages, source)
        self._weight += sum([1 + (len(message.body) >> 10) for message in messages])

    def _make_room_in_memory(self) -> None:
        if self._clock.now() < self._full_until:
            raise StorageFailed("the disk is refusing deferred messages")
        try:
            self._or_refuse(self._spill, _SPILL_BYTES)
        except StorageFailed:
            self._full_until = self._clock.now() + _RETRY_SECONDS
            raise

    def _spill(self) -> None:
        """Write the messages due last to files, until three quarters of the room are free. Raises OSError."""
        self._heap.sort()
        kept = weight = 0
        for _, _, message, _ in self._heap:
            weight += 1 + (len(message.body) >> 10)
            if weight > self._limit // 4:
                break
            kept += 1
        rest = self._heap[kept:]
        held = [entry for entry in rest if entry[3] is None] if self._durable else []
        if held:  # the backlog has them
            rest = [entry for entry in rest if entry[3] is not None]
        found = by_bucket(self._entries([message for _, _, message, _ in rest]), self._clock.time_ns())
        soon = len(found.pop(None, ()))
        self._store(found)
        self._released(rest[soon:], stored=True)
        self._heap[kept:] = sorted(rest[:soon] + held)
        if self._durable:
            self._write_rest_again()
        # If most are due soon, do not look at all of them again for each message.
        self._spill_at = max(self._limit, self._weight * 3 // 2)

    def _store(self, found: dict[Bucket, list[Entry]]) -> list[DeferredFile]:
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
        self.on_disk += sum(len(entries) for place, entries in found.items() if place is not None)
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

    # Messages out.

    def next_check(self) -> float:
        check = super().next_check()
        if self._unread:
            opens, _, file = self._unread[0]
            at = opens if self._weight < self._limit else max(opens, file.first)
            seconds = (at - self._clock.time_ns()) / 1e9
            check = min(check, self._clock.now() + min(seconds, _LOOK_EVERY))
        return check

    def release(self, now: float, put: Callable[[list[Message]], bool]) -> None:
        if self._unread and self._unread[0][0] <= self._clock.time_ns():
            self._open_next_file(now, put)
        super().release(now, put)

    def _open_next_file(self, now: float, put: Callable[[list[Message]], bool]) -> None:
        """Read the next file if there is room in memory, or make it a file of the queue if all is due."""
        wall, file = self._clock.time_ns(), self._unread[0][2]
        whole = file.intact and file not in self._dirty
        room = self._weight < self._limit
        if whole and file.is_burst and file.last_due > wall:
            self._forget_current(file)
            heapq.heapreplace(self._unread, (file.last_due, file.number, file))
        elif self._heap and self._heap[0][0] <= now:
            if room and not (whole and file.last_due <= wall):
                self._read_next_file()
        elif whole and file.last_due <= wall and self._join_queue(file):
            put([])
        elif room or file.first <= wall:
            self._read_next_file()

    def _released(self, entries: list[tuple[float, int, Message, object]], stored: bool) -> None:
        self._weight -= sum([1 + (len(message.body) >> 10) for _, _, message, _ in entries])
        if self._weight < self._limit:
            self._spill_at = self._limit
        if stored:
            self._leave(entries)
        else:
            self._keep_until_finished(entries)

    def _keep_until_finished(self, entries: list[tuple[float, int, Message, object]]) -> None:
        for _, _, message, file in entries:
            if isinstance(file, DeferredFile):
                self._memory_only[message.id] = message, file
                self._forget_current(file)  # if the message is deferred again, another file gets it

    def finished(self, messages: list[Message]) -> None:
        for message in messages:
            # A message that was deferred again is not in that file any more.
            if (kept := self._memory_only.pop(message.id, None)) is not None:
                kept[1].leave([message.id], finished=True)

    def make_room(self) -> bool:
        """Remove files whose last messages were finished. Returns whether there were any.

        For a full disk. Messages that have moved must be synced elsewhere first; see ``synced``.
        """
        files = [file for file in self._in_memory if not file.left and all(file.leaving.values())]
        for file in files:
            self._forget_file(file)
        return bool(files)

    def _leave(self, entries: list[tuple[float, int, Message, object]]) -> None:
        """Note that these messages are not in their files any more."""
        if not self._durable:
            return
        by_file: dict[object, list[bytes]] = {}
        for _, _, message, file in entries:
            by_file.setdefault(file, []).append(message.id)
        for file, ids in by_file.items():
            if isinstance(file, DeferredFile):
                file.leave(ids)

    def _join_queue(self, file: DeferredFile) -> bool:
        """Make the next file, whose messages are all due, a file of the queue. Returns False on an error."""
        try:
            file.close()
            truncate_regular(file.data, file.sizes[1])
            self._disk.join_file(file.data, file.count, file.sizes[1], synced=self._durable)
        except OSError:
            return False
        self._forget_next(file)
        file.remove()
        return True

    def _forget_next(self, file: DeferredFile) -> None:
        heapq.heappop(self._unread)
        self._forget_current(file)
        self.on_disk -= file.left

    def _forget_current(self, file: DeferredFile) -> None:
        """Append to another file of the same bucket from now on."""
        if self._current.get(file.bucket) is file:
            del self._current[file.bucket]

    def _read_next_file(self) -> None:
        wall = self._clock.time_ns()
        now = self._clock.now()  # after ``wall``: time that passes in between must make no message early
        file = self._unread[0][2]
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
        self._forget_next(file)
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
            found = by_bucket(sorted(entries), wall)
            soon = found.pop(None, [])
            try:
                self._store(found)
                file.leave(message_id(record) for some in found.values() for _, record in some)
            except OSError as error:
                self._failed(error, _SPILL_BYTES)
                soon = entries
        messages = [decode(record) for _, record in soon]
        for message, (due, _) in zip(messages, soon, strict=True):
            message.due = now + (due - wall) / 1e9
        self._push(messages, file if self._durable else None)

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
        if sum(file.count for file in self._in_memory) > 3 * (len(self._heap) + FILE_RECORDS):
            self._write_rest_again()

    def _write_rest_again(self) -> None:
        """Empty the files of which half of the messages have left."""
        few = {file for file in self._in_memory if 2 * file.left <= file.count}
        self._write_again(few.difference(self._current.values()))

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
        self._forget_current(file)
        file.remove()

    def _replace_lost(self, file: DeferredFile) -> None:
        """Write a removed file's messages in memory to another file; the others are lost."""
        self._forget_file(file)
        self._unread = [entry for entry in self._unread if entry[2] is not file]
        heapq.heapify(self._unread)
        self.on_disk = sum(each.left for _, _, each in self._unread)
        self._write_again({file})

    def _write_again(self, files: set[DeferredFile]) -> None:
        """Write the messages in memory that are in these files to a journal."""
        places = [place for place, entry in enumerate(self._heap) if entry[3] in files]
        try:
            for start in range(0, len(places), FILE_RECORDS):
                portion = places[start : start + FILE_RECORDS]
                entries = [self._heap[place] for place in portion]
                [journal] = self._store({None: self._entries([message for _, _, message, _ in entries])})
                self._leave(entries)
                for place, entry in zip(portion, entries, strict=True):
                    self._heap[place] = (*entry[:3], journal)
        except OSError as error:
            self._failed(error, 0)

    def begin_new_files(self) -> None:
        """Append to new files from now on: a sync has failed, so bytes of these may be lost."""
        self._current.clear()

    # Starting.

    def _recover(self, numbers: list[int], waiting_in_topic: Callable[[], Mapping[bytes, int]]) -> None:
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
        if self._durable and (left or self._disk.unsynced):
            self._dirty.update(file for file in files if not file.removed)
            queued = self._disk.unread_records(COMPARED)
            files = [file for _, _, file in self._unread]
            self.obsolete, self.repeated = choose_records(queued, files, self._sizes, waiting_in_topic())
            self.on_disk = sum(file.left for file in files)

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
            file.count = file.left = survey(file.data, 0, file.sizes[1], self._sizes).records
        if dues and not later:
            file.remove()
            return
        file.first, file.last = min(later, default=0), max(later, default=0)
        file.first_due, file.last_due = file.first, file.last
        self.on_disk += file.left
        self._add_unread(file)

    # Stopping.

    def take_held(self) -> list[Message]:
        if not self._durable:
            return []
        held = [entry for entry in self._heap if entry[3] is None]
        self._heap = sorted(entry for entry in self._heap if entry[3] is not None)
        return [message for _, _, message, _ in held]

    def persist(self) -> list[SyncJob]:
        """Write the messages in memory to files, and note in all indexes which files of the queue they are
        going to be. Returns the jobs that sync this; call ``join`` afterwards.

        Raises StorageFailed if some messages are lost, or will not be in the queue.
        """
        self.make_room()
        unread = sorted((file for _, _, file in self._unread), key=lambda file: file.first)
        files = [file for file in unread if file.left and file.intact]
        self._rewritten += [file for file in unread if not file.left]
        in_memory = [message for _, _, message, _ in self._heap]
        in_memory += [message for message, _ in self._memory_only.values()]
        left = len(in_memory) + self.on_disk
        try:
            files += self._write_files(sorted(self._entries(in_memory)))
            self._rewritten += sorted(self._in_memory)
            for file in [file for file in unread if file.left and not file.intact]:
                entries, problem = file.read(self._sizes)
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
            for file in [*self._in_memory, *self._dirty, *files]:
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

    # Seeing, emptying and deleting.

    def next_due(self) -> float:
        now, wall = self._clock.now(), self._clock.time_ns()
        on_disk = min((file.first_due for _, _, file in self._unread), default=float("inf"))
        return min(super().next_due(), now + (on_disk - wall) / 1e9)

    def due_ranges(self) -> list[DueRange]:
        now, wall = self._clock.now(), self._clock.time_ns()
        return super().due_ranges() + [
            DueRange(now + (file.first_due - wall) / 1e9, now + (file.last_due - wall) / 1e9, file.left)
            for _, _, file in self._unread
        ]

    async def peek(self, n: int, max_bytes: int) -> list[tuple[float, Waiting]]:
        files = [file for _, _, file in heapq.nsmallest(_PEEKED_FILES, self._unread)]
        on_disk = await in_thread(lambda: self._peek_files(files, n), "nsqd-peek") if files else []
        now, wall = self._clock.now(), self._clock.time_ns()
        found = {message_id(record): (now + (due - wall) / 1e9, decode(record)) for due, record in on_disk}
        found |= {message.id: (due, message) for due, _, message, _ in heapq.nsmallest(n, self._heap)}
        first = sorted(found.values(), key=lambda one: one[0])[:n]
        shown = show([message for _, message in first], n, max_bytes)
        return [(due, each) for (due, _), each in zip(first, shown, strict=True)]

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
        self._spill_at = self._limit
        self._unread.clear()
        self._current.clear()
        self._in_memory.clear()
        self._memory_only.clear()
        self._dirty.clear()
        self._failed_files.clear()
        if len(files) > _REMOVED_AT_ONCE:
            remove_in_thread([path for file in files for path in file.rename_to_temporary()])
        else:
            for file in files:
                file.remove()
