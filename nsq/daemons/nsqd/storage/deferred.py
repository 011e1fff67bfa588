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

This module decides what is in memory, what is on disk, and when a message leaves. ``deferred_files`` keeps
the files: which of them are written to, unread, in memory as well, unsynced.

What always holds:

1. A message is in one place at a time: in memory, in a file, or in the queue. Only a kill or a power cut can
   leave it in two; the next start chooses one (``choosing.py``).
2. With --durable, each message in memory has a record in a file. That file goes, or its index says that the
   message has left, only when it is synced elsewhere: in another file, or in the channel's queue. If the
   queue's disk is full, a due message stays in its file until a consumer has finished it.
3. An index is written before its records, and removed after them: a record without a due time would be due
   at once. An index that lists messages which are gone delivers nothing.
4. Before records join the queue, their index notes as which file.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed, Waiting, show
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.core.deferred import DeferredInMemory, DueRange
from nsq.daemons.nsqd.disk.layout import Log, message_id
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import SyncJob
from nsq.daemons.nsqd.storage.deferred_file import FILE_RECORDS, DeferredFile, DeferredSync, Entry, by_bucket
from nsq.daemons.nsqd.storage.deferred_files import RETRY_SECONDS, DeferredFiles
from nsq.daemons.nsqd.storage.memory_first import decode, encode
from nsq.daemons.serve.worker_thread import in_thread

#: Look at the files at least so often, in seconds: the wall clock may have been set.
_LOOK_EVERY = 60.0
#: The room that a full disk must have before it counts as working again.
_SPILL_BYTES = 1 << 20


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
        self._clock = clock
        self._durable = durable
        self._limit = memory_limit
        self._failed = failed
        self._sync_error = sync_error
        self._make_room = make_room
        self._weight = 0  # of the messages in memory
        self._spill_at = memory_limit
        self._full_until = 0.0  # refuse new messages without another try to write
        # Due messages that the queue's disk has refused, and the files that keep them until they are
        # finished.
        self._memory_only: dict[bytes, tuple[Message, DeferredFile]] = {}
        self.files = DeferredFiles(
            directory, disk, clock.time_ns, durable=durable, log=log, failed=failed, written=written
        )
        #: After a kill: records in the queue to skip, with the message's id; see ``choose_records``.
        self.obsolete, self.repeated = self.files.recover(sorted(numbers), waiting_in_topic)

    def __len__(self) -> int:
        return len(self._heap) + self.files.messages

    @property
    def on_disk(self) -> int:
        return self.files.messages

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
        self._or_refuse(lambda: files.extend(self.files.store({None: entries})), size)
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
            self._full_until = self._clock.now() + RETRY_SECONDS
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
        self.files.store(found)
        self._released(rest[soon:], stored=True)
        self._heap[kept:] = sorted(rest[:soon] + held)
        if self._durable:
            self._write_rest_again()
        # If most are due soon, do not look at all of them again for each message.
        self._spill_at = max(self._limit, self._weight * 3 // 2)

    # Messages out.

    def next_check(self) -> float:
        check = super().next_check()
        if (file := self.files.next) is not None:
            opens = self.files.next_opens
            at = opens if self._weight < self._limit else max(opens, file.first)
            seconds = (at - self._clock.time_ns()) / 1e9
            check = min(check, self._clock.now() + min(seconds, _LOOK_EVERY))
        return check

    def release(self, now: float, put: Callable[[list[Message]], bool]) -> None:
        if (file := self.files.next) is not None and self.files.next_opens <= self._clock.time_ns():
            self._open_next_file(file, now, put)
        super().release(now, put)

    def _open_next_file(self, file: DeferredFile, now: float, put: Callable[[list[Message]], bool]) -> None:
        """Read the next file if there is room in memory, or make it a file of the queue if all is due."""
        wall = self._clock.time_ns()
        whole, all_due = self.files.is_whole(file), file.last_due <= wall
        room = self._weight < self._limit
        if whole and file.is_burst and not all_due:
            self.files.postpone_next(file.last_due)
        elif self._heap and self._heap[0][0] <= now:  # these come before it
            if room and not (whole and all_due):
                self._read_next_file()
        elif whole and all_due and self.files.join_queue():
            put([])
        elif room or file.first <= wall:
            self._read_next_file()

    def _read_next_file(self) -> None:
        wall = self._clock.time_ns()
        now = self._clock.now()  # after ``wall``: time that passes in between must make no message early
        try:
            file, entries = self.files.read_next()
        except OSError as error:
            self._failed(error, 0)
            return
        self._put_in_place(file, entries, now, wall)
        if not self._durable:
            file.remove()

    def _put_in_place(self, file: DeferredFile, entries: list[Entry], now: float, wall: int) -> None:
        """Take a file's messages into memory; without room, only those due soon, and write the others to
        narrower buckets.
        """
        soon = entries
        if self._weight + len(entries) > self._limit:
            found = by_bucket(sorted(entries), wall)
            soon = found.pop(None, [])
            try:
                self.files.store(found)
                file.leave(message_id(record) for some in found.values() for _, record in some)
            except OSError as error:
                self._failed(error, _SPILL_BYTES)
                soon = entries
        messages = [decode(record) for _, record in soon]
        for message, (due, _) in zip(messages, soon, strict=True):
            message.due = now + (due - wall) / 1e9
        self._push(messages, file if self._durable else None)

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
                self.files.forget_current(file)  # if the message is deferred again, another file gets it

    def finished(self, messages: list[Message]) -> None:
        for message in messages:
            # A message that was deferred again is not in that file any more.
            if (kept := self._memory_only.pop(message.id, None)) is not None:
                kept[1].leave([message.id], finished=True)

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

    # Syncing, with --durable.

    def synced(self, job: DeferredSync) -> None:
        """Note that ``job`` has succeeded, and the queue has synced the messages that had left by then.

        Raises OSError if another program has removed files. Their messages in memory are written again; the
        others are lost.
        """
        if error := self.files.forget_lost(job):
            self._write_again(error.files)
            raise error
        self.files.synced(job)
        if self.files.messages_in_memory > 3 * (len(self._heap) + FILE_RECORDS):
            self._write_rest_again()

    def _write_rest_again(self) -> None:
        """Empty the files of which half of the messages have left."""
        self._write_again(self.files.half_empty())

    def _write_again(self, files: set[DeferredFile]) -> None:
        """Write the messages in memory that are in these files to a journal."""
        places = [place for place, entry in enumerate(self._heap) if entry[3] in files]
        try:
            for start in range(0, len(places), FILE_RECORDS):
                portion = places[start : start + FILE_RECORDS]
                entries = [self._heap[place] for place in portion]
                messages = [message for _, _, message, _ in entries]
                [journal] = self.files.store({None: self._entries(messages)})
                self._leave(entries)
                for place, entry in zip(portion, entries, strict=True):
                    self._heap[place] = (*entry[:3], journal)
        except OSError as error:
            self._failed(error, 0)

    # Stopping.

    def take_held(self) -> list[Message]:
        if not self._durable:
            return []
        held = [entry for entry in self._heap if entry[3] is None]
        self._heap = sorted(entry for entry in self._heap if entry[3] is not None)
        return [message for _, _, message, _ in held]

    def persist(self) -> list[SyncJob]:
        """Write the messages in memory to files, and note in all indexes which files of the queue they are
        going to be. Returns the jobs that sync this; call ``files.join`` afterwards.

        Raises StorageFailed if some messages are lost, or will not be in the queue.
        """
        self.files.make_room()
        in_memory = [message for _, _, message, _ in self._heap]
        in_memory += [message for message, _ in self._memory_only.values()]
        return self.files.persist(sorted(self._entries(in_memory)))

    # Seeing, emptying and deleting.

    def next_due(self) -> float:
        now, wall = self._clock.now(), self._clock.time_ns()
        on_disk = min((file.first_due for file in self.files.unread), default=float("inf"))
        return min(super().next_due(), now + (on_disk - wall) / 1e9)

    def due_ranges(self) -> list[DueRange]:
        now, wall = self._clock.now(), self._clock.time_ns()
        return super().due_ranges() + [
            DueRange(now + (file.first_due - wall) / 1e9, now + (file.last_due - wall) / 1e9, file.left)
            for file in self.files.unread
        ]

    async def peek(self, n: int, max_bytes: int) -> list[tuple[float, Waiting]]:
        peek = self.files.peek_job(n)
        on_disk = await in_thread(peek, "nsqd-peek") if peek is not None else []
        now, wall = self._clock.now(), self._clock.time_ns()
        found = {message_id(record): (now + (due - wall) / 1e9, decode(record)) for due, record in on_disk}
        found |= {message.id: (due, message) for due, _, message, _ in heapq.nsmallest(n, self._heap)}
        first = sorted(found.values(), key=lambda one: one[0])[:n]
        shown = show([message for _, message in first], n, max_bytes)
        return [(due, each) for (due, _), each in zip(first, shown, strict=True)]

    def clear(self) -> None:
        super().clear()
        self._weight = 0
        self._spill_at = self._limit
        self._memory_only.clear()
        self.files.clear()
