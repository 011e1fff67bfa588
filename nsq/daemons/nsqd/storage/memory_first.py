"""The backlog of Go's nsqd: keeps messages in memory up to --mem-queue-size, further ones on disk.

If nsqd is killed, the messages in memory are lost; a normal stop writes them to disk.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Container, Iterable
from contextlib import suppress

from nsq.daemons.nsqd.core.backlog import (
    Batch,
    MemoryBacklog,
    Message,
    PartlyStored,
    StorageFailed,
    Waiting,
    show,
    weight,
)
from nsq.daemons.nsqd.disk.layout import Place, Position, decode_record, pack_head
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import SyncJob
from nsq.daemons.nsqd.disk.writing import NotUndone
from nsq.daemons.nsqd.storage.dues import DueTimes
from nsq.daemons.serve.worker_thread import in_thread

#: Messages per write when nsqd stops: if the disk fills up, all earlier writes are kept.
_WRITE_LIMIT = 100
#: The weight of messages in memory with which ``take`` reads none from disk.
_TAKE_WEIGHT = 1000


class MemoryFirstBacklog(MemoryBacklog):
    """A queue in three parts: messages in memory, then on disk, then those that the disk refused."""

    def __init__(
        self,
        disk: DiskQueue,
        dues: DueTimes,
        memory_limit: int,
        *,
        failed: Callable[[Exception, int], None],
        wrote: Callable[[int], None],
        make_room: Callable[[OSError], bool],
    ) -> None:
        """``failed`` gets the error of a write and its size, or that of a read and 0; ``make_room`` frees
        space on the disk and returns whether to try again.
        """
        super().__init__()
        self.disk = disk
        self._dues = dues  # of a topic's deferred messages on disk, whose records do not hold them
        self._wrote = wrote
        self._limit = memory_limit
        self._failed = failed
        self._make_room = make_room
        self._stuck: deque[Message] = deque()
        self._spilled = bool(disk.unread)  # whether messages wait on disk

    def __len__(self) -> int:
        count = self._count + len(self._stuck)
        return count + self.disk.unread if self._spilled else count

    @property
    def backend_depth(self) -> int:
        return self.disk.unread

    def put(self, messages: Batch | list[Message]) -> None:
        room = 0 if self._spilled or self._stuck else max(0, self._limit - self._count)
        if len(messages) > room:
            if self._stuck:
                raise StorageFailed("the disk is refusing messages")
            try:
                # Write to disk first: if it refuses, no part of the batch is in the queue.
                self._write(messages[room:])
            except OSError as error:
                raise refusal(error) from error
            messages = messages[:room]
        super().put(messages)

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        # Only one portion at a time: a stop loses them if the disk is still full.
        if self._stuck:
            return False
        self._stuck.extend(message for message in messages if not message.due)
        return True

    def put_back(self, messages: list[Message]) -> None:
        room = self.room
        super().put(messages[:room])
        rest = messages[room:]
        if not rest:
            return
        if not self._stuck:
            with suppress(OSError):
                self._write(rest)
                return
        self._stuck.extend(rest)

    def put_due(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        self._spilled = bool(self.disk.unread)  # a file of deferred messages may have joined it
        self.put_back(messages)
        return True

    @property
    def room(self) -> int:
        """The number of messages that still fit into memory; 0 while earlier ones are on disk."""
        if self._stuck or self._spilled:
            return 0
        return max(0, self._limit - self._count)

    def _write(self, messages: Batch | list[Message]) -> None:
        records = list(map(encode, messages))
        try:
            if isinstance(messages, list):  # a batch is never deferred
                self._dues.add(messages)
            append(self.disk, records, self._make_room)
        except OSError as error:
            self._failed(error, sum(map(len, records)))
            raise
        self._spilled = True
        self._wrote(len(messages))

    @property
    def stuck(self) -> int:
        """The number of messages that the disk has refused."""
        return len(self._stuck)

    def retry(self) -> bool:
        """Write the messages that the disk refused. Returns whether it accepts them now."""
        if self._stuck:
            try:
                self._write(list(self._stuck))
            except OSError:
                return False
            self._stuck.clear()
        return True

    def take(self, limit: int) -> list[Message]:
        taken = super().take(limit)
        # Not with much in memory already: it would grow with every ``put_first``.
        if len(taken) < limit and self._spilled and weight(taken) < _TAKE_WEIGHT:
            taken += self._read(limit - len(taken))
        if len(taken) < limit and self._stuck and not self._spilled:
            taken += [self._stuck.popleft() for _ in range(min(limit - len(taken), len(self._stuck)))]
        return taken

    def _read(self, limit: int) -> list[Message]:
        try:
            found = self.disk.read(limit)
        except OSError as error:
            self._failed(error, 0)
            return []
        self._spilled = bool(self.disk.unread)
        if not found:
            return []
        self.disk.commit(found[-1][0])
        messages = [decode(data) for _, data in found]
        if self._dues:
            for message in messages:
                message.due = self._dues.get(message.id)
                self._dues.remove(message.id)
        return messages

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        stuck = list(itertools.islice(self._stuck, n))
        found = await peek(self.in_memory, self.disk, n, max_bytes)
        left = max_bytes - sum(len(each.body) for each in found)
        return found + show(stuck, n - len(found), left)

    def clear(self) -> None:
        super().clear()
        self._stuck.clear()
        self._dues.clear()
        self.disk.empty()
        self._spilled = False

    def make_room(self) -> bool:
        """Remove files without wanted messages. Returns whether there were any."""
        return self.disk.make_room()

    def persist(self, taken: list[Message]) -> None:
        """Write all messages in memory to disk, and those taken and not finished.

        Raises StorageFailed if some of them are lost.
        """
        left = deque([*taken, *self.in_memory, *self._stuck])
        try:
            self._dues.add(left)
            while left:
                portion = list(itertools.islice(left, _WRITE_LIMIT))
                append(self.disk, list(map(encode, portion)), self._make_room)
                for _ in portion:
                    left.popleft()
        except OSError as error:
            raise StorageFailed(f"{len(left)} messages of {self.disk.name} are lost: {error}") from error

    def sync_jobs(self) -> list[SyncJob]:
        """Return the jobs that sync all writes."""
        jobs = [self._dues.last_job({}), self.disk.sync_job(last=True)]
        return [job for job in jobs if job is not None]

    def not_synced(self, error: OSError) -> StorageFailed:
        """Return the error that explains what a failure of ``sync_jobs`` means."""
        return StorageFailed(f"{self.disk.name} may repeat messages: {error}")

    def release(self) -> None:
        self._dues.release()
        self.disk.release()

    def delete(self) -> None:
        super().clear()
        self._stuck.clear()
        self._dues.delete()
        self.disk.delete()


def append(disk: DiskQueue, records: list[bytes], make_room: Callable[[OSError], bool]) -> list[Position]:
    """Append; if the disk is full and room can be made, try once more. Raises OSError."""
    try:
        return disk.append(records)
    except OSError as error:
        if isinstance(error, NotUndone) or not make_room(error):
            raise
        return disk.append(records)


def refusal(error: OSError) -> StorageFailed:
    """Return the error for messages that could not be appended."""
    return (PartlyStored if isinstance(error, NotUndone) else StorageFailed)(str(error))


def encode(message: Message) -> bytes:
    return pack_head(message.timestamp, message.attempts, message.id) + message.body


def decode(data: bytes) -> Message:
    found = decode_record(data)
    message = Message(found.id, found.body, found.timestamp)
    message.attempts = found.attempts
    return message


async def peek(
    memory: Iterable[Message], disk: DiskQueue, n: int, max_bytes: int, but: Container[Place] = ()
) -> list[Waiting]:
    """Return the first messages of ``memory``, then of the disk, except the records at the places ``but``."""
    found = show(memory, n, max_bytes)
    if len(found) < n and disk.unread:
        left = max_bytes - sum(len(each.body) for each in found)
        on_disk = await in_thread(disk.peek_job(n - len(found), left, but), "nsqd-peek")
        found += [Waiting(each.id, each.timestamp, each.attempts, size, each.body) for each, size in on_disk]
    return found
