"""The backlog that survives a kill: writes every message to disk first and keeps it until it is finished.

A restart reads from the commit point, which never passes the oldest unfinished message. If a message stays
unfinished while thousands after it are finished (deferred for an hour, requeued again and again), the backlog
rewrites it at the end, so that neither the files nor the messages that a restart repeats grow without bound.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from nsq.daemons.nsqd.core.backlog import Batch, Message, StorageFailed, Waiting, weight
from nsq.daemons.nsqd.disk.layout import Place, Position
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import SyncJob
from nsq.daemons.nsqd.storage.dues import DueTimes
from nsq.daemons.nsqd.storage.memory_first import append, decode, encode, peek, refusal

#: With more finished messages than this behind an unfinished one, that one is rewritten at the end.
_MAX_LAG = 500

#: The commit point is synced after this many finished messages. Together with _MAX_LAG and the messages
#: finished during a sync, this bounds how many a restart repeats after a kill.
_SYNC_EVERY = 250

#: The most weight of messages kept only in memory.
_MOST_MEMORY_ONLY = 16_000

#: The most records skipped at a time, and the most weight of messages taken at a time.
_TAKE_LIMIT = 1000


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
        # Records that were rewritten while others were unread, until the cursor reaches them.
        self._rewritten: dict[Place, tuple[bytes, _Entry]] = {}
        # Unread records to skip, with the message's id: another record or a deferred file has the message.
        # By place, because the message can come back later, and then has another record behind them.
        self._obsolete: dict[Place, bytes] = {}
        # Messages that only the topic, or the store of deferred messages, has on disk, and the function to
        # call when they are finished.
        self._memory_only: dict[bytes, tuple[Message, Callable[[list[Message]], None]]] = {}
        self._finished_to: Position | None = None
        self._finished_unread: dict[Place, bytes] = {}  # at a stop: unread records that are not needed

    def __len__(self) -> int:
        return len(self._ready) + self.backend_depth

    @property
    def backend_depth(self) -> int:
        # max(): if files were damaged, records of taken messages may be missing.
        return max(0, self.disk.unread - len(self._rewritten) - len(self._obsolete))

    # Adding messages.

    def put(self, messages: Batch | list[Message]) -> None:
        messages = list(messages)
        caught_up = not self.disk.unread
        positions = self._append(messages)
        if caught_up and len(self._ready) + len(messages) <= self._limit:
            self.disk.skip(positions[-1])
            self._ready.extend(messages)
            self._enter(zip(positions, messages, strict=True))

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        if weight([message for message, _ in self._memory_only.values()]) >= _MOST_MEMORY_ONLY:
            return False
        self._memory_only.update((message.id, (message, finished)) for message in messages)
        self._ready.extend(message for message in messages if not message.due)
        return True

    def put_back(self, messages: list[Message]) -> None:
        self._ready.extend(messages)

    def put_due(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        stored = [message for message in messages if self._has(message)]
        new = [message for message in messages if not self._has(message)]
        refused = False
        try:
            if new:
                self.put(new)
        except StorageFailed:
            # Consumers must get them all the same: on a full disk only they can make room. Those that are
            # still deferred do not count: they may wait for this call.
            waiting = [message for message, _ in self._memory_only.values() if not message.due]
            if weight(waiting) >= _MOST_MEMORY_ONLY:
                raise
            self._memory_only.update((message.id, (message, finished)) for message in new)
            refused = True
        for message in messages:
            if message.id in self._memory_only:
                message.due = 0.0
        self.put_back(messages if refused else stored)
        return not refused

    def _has(self, message: Message) -> bool:
        """Whether the unfinished message is here: the disk refused it when it was deferred."""
        return message.id in self._by_id or message.id in self._memory_only

    def skip_records(self, obsolete: Mapping[Place, bytes]) -> None:
        """Skip these unread records: after a kill, other records of their messages count."""
        self._obsolete.update(obsolete)

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
            raise refusal(error) from error
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
        while len(taken) < limit and weight(taken) < _TAKE_LIMIT and self.disk.unread:
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
            self._rewritten.clear()
            self._obsolete.clear()
            self.dues.all_read()
        return messages if found else None

    def _decode_records(self, found: list[tuple[Position, bytes]]) -> list[Message]:
        messages = []
        for position, data in found:
            if (rewritten := self._rewritten.pop(position.place, None)) is not None:
                self._entries.append(rewritten[1])
                continue
            message = decode(data)
            obsolete = self._obsolete.pop(position.place, None) is not None
            if obsolete or message.id in self._by_id or self.dues.was_finished(message.id, position.place):
                self._enter([(position, None)])
            else:
                message.due = self.dues.get(message.id)
                self._enter([(position, message)])
                messages.append(message)
        return messages

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        skipped = {*self._rewritten, *self._obsolete}
        return await peek(self._ready, self.disk, n, max_bytes, skipped)

    def finished(self, messages: list[Message]) -> None:
        for message in messages:
            entry = self._by_id.pop(message.id, None)
            if entry is not None:
                entry.message = None
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
        self._replace_lost_files()
        self._skip_taken()
        self._forget_finished()
        rewritten = sum(entry.message is not None for _, entry in self._rewritten.values())
        finished = len(self._entries) + rewritten - len(self._by_id)
        if finished > _MAX_LAG:
            places = (place for place, entry in enumerate(reversed(self._entries)) if entry.message is None)
            count = len(self._entries) - next(places)
            # Only if half of these records are finished: else many deferred ones would be rewritten forever.
            if 2 * finished >= count:
                self._try_to_rewrite(count)
        self._commit()

    def begin_new_file(self) -> None:
        """Append to a new file from now on: an fsync has failed, or another program has removed files."""
        self.disk.begin_new_file()
        self._replace_lost_files()

    def _replace_lost_files(self) -> None:
        """Write the messages in memory again, if their records may have been in files that were removed."""
        if self.disk.lost_files:
            self.disk.lost_files = not self._try_to_rewrite(len(self._entries))
            self._written()

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
        found = self._read(_TAKE_LIMIT)
        self._ready.extend(found or [])
        return found is not None

    def _try_to_rewrite(self, count: int) -> bool:
        """Rewrite, unless the disk is full; the caller then still moves the commit point, to free space."""
        try:
            self._rewrite_unfinished(count)
        except OSError as error:
            self._failed(error, 0)
            return False
        return True

    def _rewrite_unfinished(self, count: int) -> None:
        """Rewrite the unfinished messages of the first ``count`` records at the end; forget those records."""
        first = itertools.islice(self._entries, count)
        stragglers = [entry.message for entry in first if entry.message is not None]
        caught_up = not self.disk.unread
        positions = self.disk.append(map(encode, stragglers)) if stragglers else []
        for _ in range(count):
            self._finished_to = self._entries.popleft().position
        if caught_up and stragglers:
            self.disk.skip(positions[-1])
        for position, message in zip(positions, stragglers, strict=True):
            entry = self._by_id[message.id] = _Entry(position, message)
            if caught_up:
                self._entries.append(entry)
            else:
                self._rewritten[position.place] = message.id, entry

    # Emptying and stopping.

    def clear(self) -> None:
        for message, tell in self._memory_only.values():
            tell([message])
        self._memory_only.clear()
        self._forget()
        self.disk.empty()
        self.dues.clear()

    def clear_waiting(self) -> None:
        """Empty the files, then write again what channels hold in memory only: now the disk has room."""
        waiting = {message.id for message in self._ready}
        taken = [e.message for e in self._by_id.values() if e.message and e.message.id not in waiting]
        self.clear()
        if taken:
            with suppress(StorageFailed):
                self.put(taken)
            while self.take(_TAKE_LIMIT):
                pass

    def _forget(self) -> None:
        self._ready.clear()
        self._entries.clear()
        self._by_id.clear()
        self._rewritten.clear()
        self._obsolete.clear()
        self._finished_to = None

    def persist(self, taken: list[Message]) -> None:
        """Write due times of deferred messages, and make sure that no finished message is repeated.

        Unfinished messages are on disk already. Raises StorageFailed if finished ones may be repeated.
        """
        try:
            self.disk.check_files()
        except OSError as error:
            self._failed(error, 0)
        try:
            # Messages that were requeued with a delay have no due time on disk yet.
            self.dues.add(message for message in taken if message.id not in self._memory_only)
            self._rewrite_for_restart()
            finished = {
                place: each for place, (each, entry) in self._rewritten.items() if entry.message is None
            }
            self._finished_unread = finished | self._obsolete
        except OSError as error:
            raise self.not_synced(error) from error

    def sync_jobs(self) -> list[SyncJob]:
        """Return the jobs that sync the writes of ``persist``."""
        jobs = [self.dues.last_job(self._finished_unread), self.disk.sync_job(last=True)]
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
