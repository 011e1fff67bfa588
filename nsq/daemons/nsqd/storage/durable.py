"""The backlog that survives a kill: every message is on disk first, and stays until it is finished.

The place that a restart goes on from never passes the oldest message that is not finished. A message that
stays behind while thousands overtake it (deferred for an hour, requeued again and again) is written anew at
the end, so that neither the files nor what a restart repeats grow without a bound.
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

#: So many finished messages behind one that is not, and that one moves to the end.
_MAX_LAG = 500

#: So many messages are finished, and the place to go on from is made to last. With _MAX_LAG and what is
#: finished during a sync this bounds what a kill brings back.
_PLACE_EVERY = 250

#: The weight of messages that are in memory alone, beyond which no more are.
_MOST_MEMORY_ONLY = 16_000

#: Records that are passed over at a time, and the weight of those that are taken.
_PORTION = 1000


class _Entry:
    """A record that was read or never left memory: where it ends, and the message while that is wanted."""

    __slots__ = ("message", "position")

    def __init__(self, position: Position, message: Message | None) -> None:
        self.position = position
        self.message = message


class DurableBacklog:
    """``written`` is called after every append: the answer to a publisher waits for the sync that follows.

    While syncs fail, as ``fault`` says, messages are refused: none could be confirmed.
    """

    needs_finished = True

    def __init__(
        self,
        disk: DiskQueue,
        dues: DueBook,
        memory_limit: int,
        *,
        failed: Callable[[Exception, int], None],
        written: Callable[[], None],
        finished_many: Callable[[], None],
        fault: Callable[[], Exception | None],
        make_room: Callable[[OSError], bool],
    ) -> None:
        self.disk = disk
        self.dues = dues
        self._limit = memory_limit
        self._failed = failed
        self._written = written
        self._finished_many = finished_many
        self._finished_count = 0  # since the last time that was told
        self._make_room = make_room
        self._fault = fault
        self._ready: deque[Message] = deque()
        self._entries: deque[_Entry] = deque()  # in the order of the files
        self._by_id: dict[bytes, _Entry] = {}  # those that are wanted
        # Taken already, though the record is still to be read: to be recognised then. None when finished.
        self._moved: dict[bytes, Message | None] = {}
        # Messages of a topic, whose disk keeps them, and what to call when they are finished.
        self._memory_only: dict[bytes, tuple[Message, Callable[[list[Message]], None]]] = {}
        self._done_to: Position | None = None
        self._struck: list[bytes] = []  # finished at the end, though their records were not read

    def __len__(self) -> int:
        return len(self._ready) + self.backend_depth

    @property
    def backend_depth(self) -> int:
        # Where files were damaged, records of what was moved may be missing.
        return max(0, self.disk.unread - len(self._moved))

    # In.

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
            self._moved[message.id] = message

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        if weight([message for message, _ in self._memory_only.values()]) >= _MOST_MEMORY_ONLY:
            return False
        self._memory_only.update((message.id, (message, finished)) for message in messages)
        self._ready.extend(message for message in messages if not message.due)
        return True

    def put_back(self, messages: list[Message]) -> None:
        self._ready.extend(messages)

    def _append(self, messages: list[Message]) -> list[Position]:
        if (known := self._fault()) is not None:
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
            # After a kill there may be two records of a message; one of them is enough to have.
            if message is not None and message.id in self._by_id:
                message = None
            entry = _Entry(position, message)
            self._entries.append(entry)
            if message is not None:
                self._by_id[message.id] = entry

    # Out.

    def take(self, limit: int) -> list[Message]:
        ready = self._ready
        taken = [ready.popleft() for _ in range(min(limit, len(ready)))]
        while len(taken) < limit and weight(taken) < _PORTION and self.disk.unread:
            found = self._read(limit - len(taken))
            if found is None:
                break
            taken += found
        return taken

    def _read(self, limit: int) -> list[Message] | None:
        """The messages of the next so many records; None if there are none, or none can be read."""
        try:
            found = self.disk.read(limit)
        except OSError as error:
            self._failed(error, 0)
            return None
        messages = self._understand(found)
        if not self.disk.unread:
            self._moved.clear()
            self.dues.nothing_unread()
        return messages if found else None

    def _understand(self, found: list[tuple[Position, bytes]]) -> list[Message]:
        messages = []
        for position, data in found:
            message = decode(data)
            if message.id in self._moved:
                self._enter([(position, self._moved.pop(message.id))])
            elif message.id in self._by_id or self.dues.is_struck(message.id):
                self._enter([(position, None)])
            else:
                message.due = self.dues.get(message.id)
                self._enter([(position, message)])
                messages.append(message)
        return messages

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        taken = {*self._moved, *self._by_id} | self.dues.struck
        return await peek(self._ready, self.disk, n, max_bytes, taken)

    def finished(self, messages: list[Message]) -> None:
        for message in messages:
            entry = self._by_id.pop(message.id, None)
            if entry is not None:
                entry.message = None
            elif message.id in self._moved:
                self._moved[message.id] = None
            elif message.id in self._memory_only:
                _, tell = self._memory_only.pop(message.id)
                tell([message])
            if message.due:
                self.dues.remove(message.id)
        self._forget_finished()
        self._finished_count += len(messages)
        if self._finished_count >= _PLACE_EVERY:
            self._finished_count = 0
            self._finished_many()

    def _forget_finished(self) -> None:
        entries = self._entries
        while entries and entries[0].message is None:
            self._done_to = entries.popleft().position

    def advance(self) -> None:
        """Move the place that a restart goes on from behind what is finished. Called before every sync."""
        self._pass_over_what_moved()
        self._forget_finished()
        finished = len(self._entries) - len(self._by_id)
        if finished > _MAX_LAG:
            places = (place for place, entry in enumerate(reversed(self._entries)) if entry.message is None)
            count = len(self._entries) - next(places)
            # Only where that frees as much as it writes: else many deferred ones would go round for ever.
            if 2 * finished >= count:
                self._try_to_overtake(count)
        self._commit()

    def _commit(self) -> None:
        if self._done_to is not None:
            self.disk.commit(self._done_to)
            self._done_to = None

    def make_room(self) -> bool:
        """Free what the disk keeps in vain; whether there was anything."""
        self._commit()
        return self.disk.make_room()

    def _pass_over_what_moved(self) -> bool:
        """Read records of messages that were taken before, as no consumer does. Whether there may be more."""
        if not self.disk.unread or self.backend_depth:
            return False
        found = self._read(_PORTION)
        self._ready.extend(found or [])
        return found is not None

    def _try_to_overtake(self, count: int) -> None:
        """Overtake, unless the disk is full: finished messages are forgotten all the same, to make room."""
        try:
            self._overtake(count)
        except OSError as error:
            self._failed(error, 0)

    def _overtake(self, count: int) -> None:
        """Write the unfinished messages among the first so many records anew at the end, and forget these."""
        first = itertools.islice(self._entries, count)
        stragglers = [entry.message for entry in first if entry.message is not None]
        caught_up = not self.disk.unread
        positions = self.disk.append(map(encode, stragglers)) if stragglers else []
        for _ in range(count):
            self._done_to = self._entries.popleft().position
        for message in stragglers:
            del self._by_id[message.id]
        if not caught_up:
            self._moved.update((message.id, message) for message in stragglers)
        elif stragglers:
            self.disk.skip(positions[-1])
            self._enter(zip(positions, stragglers, strict=True))

    # The end.

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
        self._moved.clear()
        self._done_to = None

    def write_down(self, taken: list[Message]) -> None:
        """Write down when deferred messages are due, and see to it that no finished message comes again.

        Unfinished messages are on disk already. Raises StorageFailed if a finished one may come again.
        """
        try:
            # For messages that were requeued with a delay.
            self.dues.add(message for message in taken if message.id not in self._memory_only)
            self._close_the_gaps()
            self._struck = [each for each, message in self._moved.items() if message is None]
        except OSError as error:
            raise self.not_synced(error) from error

    def sync_jobs(self) -> list[SyncJob]:
        """Return the jobs that sync all that was written at the end."""
        jobs = [self.dues.last_job(self._struck), self.disk.sync_job()]
        return [job for job in jobs if job is not None]

    def not_synced(self, error: OSError) -> StorageFailed:
        """Return the error that says what a failure of the last jobs means."""
        what = f"{self.disk.name} may repeat messages, or deliver deferred ones at once"
        return StorageFailed(f"{what}: {error}")

    def release(self) -> None:
        self.dues.release()
        self.disk.release()

    def _close_the_gaps(self) -> None:
        """Rewrite unfinished messages so that no finished one lies behind them, and with their attempts."""
        while self._pass_over_what_moved():
            pass
        to_write = [
            place
            for place, entry in enumerate(self._entries, 1)
            if entry.message is None or entry.message.attempts
        ]
        if to_write:
            self._try_to_overtake(to_write[-1])
        self.advance()

    def delete(self) -> None:
        self._forget()
        self.dues.delete()
        self.disk.delete()


_ENTRY = struct.Struct(">16sq")
#: In the place of a moment: the message is finished, though its record is still to be read.
_STRUCK = 0
#: Nanoseconds, a year. What claims to be due later is damaged: the message comes at once.
_LONGEST = 366 * 86_400 * 10**9
#: So many entries that are no longer needed may be in the file, besides as many as are.
_SPARE = 4096


class DueSync(SyncJob):
    """Makes the first ``written`` entries last; tell the book by ``synced``."""

    def __init__(self, path: Path, written: int, *, named: bool, check: Check) -> None:
        super().__init__(path.parent, [path], new_names=not named, check=check)
        self.written = written


class DueBook:
    """A file of ids and moments, written at its end only. Of a message that is gone or due an entry means
    nothing.

    Methods that write raise OSError; the book is then as it was.
    """

    def __init__(
        self, directory: Path, queue_name: str, clock: Clock, open_files: OpenFiles | None = None
    ) -> None:
        self._files = OpenFiles(1) if open_files is None else open_files
        self._sync_failure = SyncFailure()
        self._path = directory / f"{queue_name}.dues.dat"
        self._clock = clock
        self._dues, self.struck, self._size = _load(self._path, clock.time_ns())
        self._file = -1  # opened when there is something to write
        self._written = self._synced = 0  # entries in this life
        self._named = False  # whether the file's name is known to be on disk

    def get(self, message_id: bytes) -> float:
        """The moment on the monotonic clock; 0 if there is none."""
        due = self._dues.get(message_id)
        return 0.0 if due is None else self._clock.now() + (due - self._clock.time_ns()) / 1e9

    def add(self, messages: Iterable[Message]) -> None:
        """Add the messages that are due later."""
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

    def is_struck(self, message_id: bytes) -> bool:
        """Whether the record is of a message that was finished before nsqd stopped; true once."""
        if message_id not in self.struck:
            return False
        self.struck.remove(message_id)
        return True

    def nothing_unread(self) -> None:
        """No record is left that could be struck."""
        self.struck.clear()

    def _write(self, entries: bytes) -> None:
        if self._file < 0:
            self._file = self._files.open(self._path, os.O_WRONLY | os.O_CREAT, self._give_up)
        self._files.wrote(self._file)
        # At a known place: whatever a failed write has left there is written over.
        end = self._size
        while entries:
            written = os.pwrite(self._file, entries, end)
            if not written:
                raise OSError(errno.EIO, "nothing was written", str(self._path))
            end += written
            entries = entries[written:]
        self._size = end

    def _tidy(self) -> None:
        if self._size > _ENTRY.size * (2 * (len(self._dues) + len(self.struck)) + _SPARE):
            self._rewrite()

    def _rewrite(self) -> None:
        """Keep the entries that are needed, and sync."""
        content = self._content()
        self._close_file()
        replace_content(self._path, content)
        self._size = len(content)

    def _content(self) -> bytes:
        entries = [*self._dues.items(), *((each, _STRUCK) for each in self.struck)]
        return b"".join([_ENTRY.pack(*entry) for entry in entries])

    def sync_job(self) -> DueSync | None:
        if self._synced == self._written:
            return None
        return DueSync(self._path, self._written, named=self._named, check=self._sync_failure.check())

    def synced(self, job: DueSync) -> None:
        """``job`` was called and did not raise. Raises OSError if entries were lost all the same."""
        job.check()
        self._synced = max(self._synced, job.written)
        if self._file >= 0 and self._synced == self._written:
            self._files.synced(self._file)
        self._named = True

    def clear(self) -> None:
        self._dues.clear()
        self.struck.clear()

    def last_job(self, struck: Iterable[bytes]) -> SyncJob | None:
        """Return a job that leaves all that a restart needs; nothing may be written any more.

        ``struck`` are finished, though their records were not read.
        """
        self.struck.update(struck)
        if not self._dues and not self.struck:
            self.delete()
            return None
        return SyncJob(self._path.parent, (), replacement=Replacement(self._path, self._content()))

    def release(self) -> None:
        self._close_file()

    def delete(self) -> None:
        self.release()
        self._path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            self._files.close(file)

    def _give_up(self) -> None:
        """Too many files are open. After this close a failed write would go unnoticed, hence the sync."""
        try:
            if self._files.is_dirty(self._file):
                os.fsync(self._file)
        except OSError as error:
            self._sync_failure.arose(error)
        finally:
            self._close_file()


def _load(path: Path, now: int) -> tuple[dict[bytes, int], set[bytes], int]:
    """Returns moments to come, struck ids, and the size without a torn entry at the end."""
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return {}, set(), 0
    size = len(content) // _ENTRY.size * _ENTRY.size
    entries = dict(_ENTRY.iter_unpack(content[:size]))
    dues = {message_id: due for message_id, due in entries.items() if now < due <= now + _LONGEST}
    return dues, {message_id for message_id, due in entries.items() if due == _STRUCK}, size
