"""The backlog that survives a kill: writes every message to disk first and keeps it until it is finished.

A restart reads from the commit point, which never passes the oldest unfinished message. If a message stays
unfinished while thousands after it are finished (deferred for an hour, requeued again and again), the backlog
rewrites it at the end, so that neither the files nor the messages that a restart repeats grow without bound.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import Batch, Message, StorageFailed, Waiting, weight
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.disk.layout import Position
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import (
    Check,
    OpenFiles,
    Replacement,
    SyncFailure,
    SyncJob,
    read_regular,
    replace_content,
)
from nsq.daemons.nsqd.storage.memory_first import append, decode, encode, peek

#: With more finished messages than this behind an unfinished one, that one is rewritten at the end.
_MAX_LAG = 500

#: The commit point is synced after this many finished messages. Together with _MAX_LAG and the messages
#: finished during a sync, this bounds how many a restart repeats after a kill.
_SYNC_EVERY = 250

#: The most weight of messages kept only in memory.
_MOST_MEMORY_ONLY = 16_000

#: The most records skipped at a time, and the most weight of messages taken at a time.
_PORTION = 1000


class _Entry:
    """A record whose message is or was in memory: its end position, and the message until it is finished."""

    __slots__ = ("message", "position")

    def __init__(self, position: Position, message: Message | None) -> None:
        self.position = position
        self.message = message


class DurableBacklog:
    """A durable queue. ``written`` is called after every append: a publisher's reply waits for the next sync.

    While syncs fail (``sync_error`` returns the error), the queue refuses messages: none could be confirmed.
    """

    needs_finished = True

    def __init__(
        self,
        disk: DiskQueue,
        dues: DueTimes,
        memory_limit: int,
        *,
        failed: Callable[[Exception, int], None],
        written: Callable[[], None],
        finished_many: Callable[[], None],
        sync_error: Callable[[], Exception | None],
        make_room: Callable[[OSError], bool],
    ) -> None:
        self.disk = disk
        self.dues = dues
        self._limit = memory_limit
        self._failed = failed
        self._written = written
        self._finished_many = finished_many
        self._finished_count = 0  # since the last call of ``finished_many``
        self._make_room = make_room
        self._sync_error = sync_error
        self._ready: deque[Message] = deque()
        self._entries: deque[_Entry] = deque()  # in the order of the files
        self._by_id: dict[bytes, _Entry] = {}  # entries of unfinished messages
        # Messages taken already whose record is still unread, to recognise it later; None if finished.
        self._taken_unread: dict[bytes, Message | None] = {}
        # Messages that only the topic has on disk, and the function to call when they are finished.
        self._memory_only: dict[bytes, tuple[Message, Callable[[list[Message]], None]]] = {}
        self._finished_to: Position | None = None
        self._finished_unread: list[bytes] = []  # at a stop: ids of finished messages with unread records

    def __len__(self) -> int:
        return len(self._ready) + self.backend_depth

    @property
    def backend_depth(self) -> int:
        # max(): if files were damaged, records of taken messages may be missing.
        return max(0, self.disk.unread - len(self._taken_unread))

    # Adding messages.

    def put(self, messages: Batch | list[Message]) -> None:
        messages = list(messages)
        caught_up = not self.disk.unread
        positions = self._append(messages)
        if caught_up and len(self._ready) + len(messages) <= self._limit:
            self.disk.skip(positions[-1])
            self._ready.extend(messages)
            self._enter(zip(positions, messages, strict=True))

    def keep(self, message: Message) -> None:
        caught_up = not self.disk.unread
        (position,) = self._append([message])
        if caught_up:
            self.disk.skip(position)
            self._enter([(position, message)])
        else:
            self._taken_unread[message.id] = message

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        if weight([message for message, _ in self._memory_only.values()]) >= _MOST_MEMORY_ONLY:
            return False
        self._memory_only.update((message.id, (message, finished)) for message in messages)
        self._ready.extend(message for message in messages if not message.due)
        return True

    def put_back(self, messages: list[Message]) -> None:
        self._ready.extend(messages)

    def _append(self, messages: list[Message]) -> list[Position]:
        if (known := self._sync_error()) is not None:
            raise StorageFailed(str(known))
        records = list(map(encode, messages))
        try:
            try:
                self.dues.add(messages)
            except OSError as error:
                if not self._make_room(error):
                    raise
                self.dues.add(messages)
            positions = append(self.disk, records, self._make_room)
        except OSError as error:
            for message in messages:
                if message.due:
                    self.dues.remove(message.id)
            self._failed(error, sum(map(len, records)))
            raise StorageFailed(str(error)) from error
        self._written()
        return positions

    def _enter(self, records: Iterable[tuple[Position, Message | None]]) -> None:
        for position, message in records:
            # After a kill a message may have two records; keep the first.
            if message is not None and message.id in self._by_id:
                message = None
            entry = _Entry(position, message)
            self._entries.append(entry)
            if message is not None:
                self._by_id[message.id] = entry

    # Taking and finishing messages.

    def take(self, limit: int) -> list[Message]:
        ready = self._ready
        taken = [ready.popleft() for _ in range(min(limit, len(ready)))]
        while len(taken) < limit and weight(taken) < _PORTION and self.disk.unread:
            found = self._read(limit - len(taken))
            if found is None:
                break
            taken += found
        return taken

    def put_first(self, messages: list[Message]) -> None:
        self._ready.extendleft(reversed(messages))

    def _read(self, limit: int) -> list[Message] | None:
        """Return the messages of the next ``limit`` records; None at the end or if reading fails."""
        try:
            found = self.disk.read(limit)
        except OSError as error:
            self._failed(error, 0)
            return None
        messages = self._decode_records(found)
        if not self.disk.unread:
            self._taken_unread.clear()
            self.dues.all_read()
        return messages if found else None

    def _decode_records(self, found: list[tuple[Position, bytes]]) -> list[Message]:
        messages = []
        for position, data in found:
            message = decode(data)
            if message.id in self._taken_unread:
                self._enter([(position, self._taken_unread.pop(message.id))])
            elif message.id in self._by_id or self.dues.was_finished(message.id):
                self._enter([(position, None)])
            else:
                message.due = self.dues.get(message.id)
                self._enter([(position, message)])
                messages.append(message)
        return messages

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        taken = {*self._taken_unread, *self._by_id} | self.dues.finished_ids
        return await peek(self._ready, self.disk, n, max_bytes, taken)

    def finished(self, messages: list[Message]) -> None:
        for message in messages:
            entry = self._by_id.pop(message.id, None)
            if entry is not None:
                entry.message = None
            elif message.id in self._taken_unread:
                self._taken_unread[message.id] = None
            elif message.id in self._memory_only:
                _, tell = self._memory_only.pop(message.id)
                tell([message])
            if message.due:
                self.dues.remove(message.id)
        self._forget_finished()
        self._finished_count += len(messages)
        if self._finished_count >= _SYNC_EVERY:
            self._finished_count = 0
            self._finished_many()

    def _forget_finished(self) -> None:
        entries = self._entries
        while entries and entries[0].message is None:
            self._finished_to = entries.popleft().position

    def advance(self) -> None:
        """Move the commit point past finished messages. Called before every sync."""
        self._skip_taken()
        self._forget_finished()
        finished = len(self._entries) - len(self._by_id)
        if finished > _MAX_LAG:
            places = (place for place, entry in enumerate(reversed(self._entries)) if entry.message is None)
            count = len(self._entries) - next(places)
            # Only if half of these records are finished: else many deferred ones would be rewritten forever.
            if 2 * finished >= count:
                self._try_to_rewrite(count)
        self._commit()

    def begin_new_file(self) -> None:
        """Append to a new file from now on: an fsync has failed."""
        self.disk.begin_new_file()

    def _commit(self) -> None:
        if self._finished_to is not None:
            self.disk.commit(self._finished_to)
            self._finished_to = None

    def make_room(self) -> bool:
        """Remove files without wanted messages. Returns whether there were any."""
        self._commit()
        return self.disk.make_room()

    def _skip_taken(self) -> bool:
        """Read records of messages that were taken before: no consumer would. Returns whether to go on."""
        if not self.disk.unread or self.backend_depth:
            return False
        found = self._read(_PORTION)
        self._ready.extend(found or [])
        return found is not None

    def _try_to_rewrite(self, count: int) -> None:
        """Rewrite, unless the disk is full; the caller then still moves the commit point, to free space."""
        try:
            self._rewrite_unfinished(count)
        except OSError as error:
            self._failed(error, 0)

    def _rewrite_unfinished(self, count: int) -> None:
        """Rewrite the unfinished messages of the first ``count`` records at the end; forget those records."""
        first = itertools.islice(self._entries, count)
        stragglers = [entry.message for entry in first if entry.message is not None]
        caught_up = not self.disk.unread
        positions = self.disk.append(map(encode, stragglers)) if stragglers else []
        for _ in range(count):
            self._finished_to = self._entries.popleft().position
        for message in stragglers:
            del self._by_id[message.id]
        if not caught_up:
            self._taken_unread.update((message.id, message) for message in stragglers)
        elif stragglers:
            self.disk.skip(positions[-1])
            self._enter(zip(positions, stragglers, strict=True))

    # Emptying and stopping.

    def clear(self) -> None:
        for message, tell in self._memory_only.values():
            tell([message])
        self._memory_only.clear()
        self._forget()
        self.disk.empty()
        self.dues.clear()

    def _forget(self) -> None:
        self._ready.clear()
        self._entries.clear()
        self._by_id.clear()
        self._taken_unread.clear()
        self._finished_to = None

    def persist(self, taken: list[Message]) -> None:
        """Write due times of deferred messages, and make sure that no finished message is repeated.

        Unfinished messages are on disk already. Raises StorageFailed if finished ones may be repeated.
        """
        try:
            # Messages that were requeued with a delay have no due time on disk yet.
            self.dues.add(message for message in taken if message.id not in self._memory_only)
            self._rewrite_for_restart()
            self._finished_unread = [each for each, message in self._taken_unread.items() if message is None]
        except OSError as error:
            raise self.not_synced(error) from error

    def sync_jobs(self) -> list[SyncJob]:
        """Return the jobs that sync the writes of ``persist``."""
        jobs = [self.dues.last_job(self._finished_unread), self.disk.sync_job()]
        return [job for job in jobs if job is not None]

    def not_synced(self, error: OSError) -> StorageFailed:
        """Return the error that explains what a failure of ``sync_jobs`` means."""
        what = f"{self.disk.name} may repeat messages, or deliver deferred ones at once"
        return StorageFailed(f"{what}: {error}")

    def release(self) -> None:
        self.dues.release()
        self.disk.release()

    def _rewrite_for_restart(self) -> None:
        """Rewrite unfinished messages, with their attempts, so that the commit point passes finished ones."""
        while self._skip_taken():
            pass
        to_write = [
            place
            for place, entry in enumerate(self._entries, 1)
            if entry.message is None or entry.message.attempts
        ]
        if to_write:
            self._try_to_rewrite(to_write[-1])
        self.advance()

    def delete(self) -> None:
        self._forget()
        self.dues.delete()
        self.disk.delete()


_ENTRY = struct.Struct(">16sq")
#: Instead of a due time: the message is finished, though its record is still unread.
_FINISHED = 0
#: A year in nanoseconds. An entry due later is damaged: its message is delivered at once.
_LONGEST = 366 * 86_400 * 10**9
#: The file is rewritten when it holds more obsolete entries than this plus the number of needed ones.
_SPARE = 4096


class DueSync(SyncJob):
    """Syncs the first ``written`` entries; pass it to ``DueTimes.synced`` afterwards."""

    def __init__(self, path: Path, written: int, *, named: bool, check: Check) -> None:
        super().__init__(path.parent, [path], new_names=not named, check=check)
        self.written = written


class DueTimes:
    """An append-only file of message ids and due times. An entry of a finished or due message is obsolete.

    Methods that write may raise OSError, and then change nothing.
    """

    def __init__(
        self, directory: Path, queue_name: str, clock: Clock, open_files: OpenFiles | None = None
    ) -> None:
        self._files = OpenFiles(1) if open_files is None else open_files
        self._sync_failure = SyncFailure()
        self._path = directory / f"{queue_name}.dues.dat"
        self._clock = clock
        self._dues, self.finished_ids, self._size = _load(self._path, clock.time_ns())
        self._file = -1  # opened by the first write
        self._written = self._synced = 0  # entries in this run
        self._released = False
        self._named = False  # whether the directory was synced since the file was created

    def get(self, message_id: bytes) -> float:
        """Return a message's due time on the monotonic clock; 0 if it has none."""
        due = self._dues.get(message_id)
        return 0.0 if due is None else self._clock.now() + (due - self._clock.time_ns()) / 1e9

    def add(self, messages: Iterable[Message]) -> None:
        """Write the due times of those messages that are due later."""
        now, now_ns = self._clock.now(), self._clock.time_ns()
        later = {each.id: now_ns + round((each.due - now) * 1e9) for each in messages if each.due > now}
        if not later:
            return
        self._tidy()
        self._write(b"".join([_ENTRY.pack(*entry) for entry in later.items()]))
        self._written += len(later)
        self._dues |= later

    def remove(self, message_id: bytes) -> None:
        self._dues.pop(message_id, None)

    def was_finished(self, message_id: bytes) -> bool:
        """Whether the message was finished before nsqd stopped. Returns True only once."""
        if message_id not in self.finished_ids:
            return False
        self.finished_ids.remove(message_id)
        return True

    def all_read(self) -> None:
        """Forget the finished ids: all records of the last run have been read."""
        self.finished_ids.clear()

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
        if self._size > _ENTRY.size * (2 * (len(self._dues) + len(self.finished_ids)) + _SPARE):
            self._rewrite()

    def _rewrite(self) -> None:
        """Rewrite the file with only the needed entries, and sync it."""
        content = self._content()
        self._close_file()
        replace_content(self._path, content)
        self._size = len(content)

    def _content(self) -> bytes:
        entries = [*self._dues.items(), *((each, _FINISHED) for each in self.finished_ids)]
        return b"".join([_ENTRY.pack(*entry) for entry in entries])

    def sync_job(self) -> DueSync | None:
        if self._synced == self._written:
            return None
        return DueSync(self._path, self._written, named=self._named, check=self._sync_failure.check())

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
        self.finished_ids.clear()

    def last_job(self, finished: Iterable[bytes]) -> SyncJob | None:
        """Return a job that writes all that a restart needs; nothing may be written afterwards.

        ``finished`` are ids of finished messages whose records are unread.
        """
        self.finished_ids.update(finished)
        if not self._dues and not self.finished_ids:
            self.delete()
            return None
        return SyncJob(self._path.parent, (), replacement=Replacement(self._path, self._content()))

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
        except OSError as error:
            self._sync_failure.record(error)
        finally:
            self._close_file()


def _load(path: Path, now: int) -> tuple[dict[bytes, int], set[bytes], int]:
    """Return due times in the future, finished ids, and the size without a torn entry at the end."""
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return {}, set(), 0
    size = len(content) // _ENTRY.size * _ENTRY.size
    entries = dict(_ENTRY.iter_unpack(content[:size]))
    dues = {message_id: due for message_id, due in entries.items() if now < due <= now + _LONGEST}
    return dues, {message_id for message_id, due in entries.items() if due == _FINISHED}, size
