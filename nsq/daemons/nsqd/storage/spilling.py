"""The backlog of Go's nsqd: in memory up to --mem-queue-size, on disk beyond.

Killed, it loses what was in memory; stopped, it writes everything down.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.message import Message
from nsq.daemons.nsqd.disk import record
from nsq.daemons.nsqd.disk.queue import DiskQueue

#: Messages written at a time when nsqd stops: a disk that fills up takes all but some of these.
_PORTION = 100


class SpillingBacklog:
    """In order: what is in memory, then what is on disk, then what the disk does not take at the moment."""

    remembers = False

    def __init__(
        self,
        disk: DiskQueue,
        memory_limit: int,
        *,
        failed: Callable[[Exception], None],
        wrote: Callable[[int], None],
    ) -> None:
        self.disk = disk
        self._wrote = wrote
        self._limit = memory_limit
        self._failed = failed
        self._memory: deque[Message] = deque()
        self._stuck: deque[Message] = deque()
        self._dues: dict[bytes, float] = {}  # of deferred messages on disk: a record has no place for it

    def __len__(self) -> int:
        return len(self._memory) + self.disk.unread + len(self._stuck)

    @property
    def backend_depth(self) -> int:
        return self.disk.unread

    def put(self, messages: list[Message]) -> None:
        room = self._room
        if len(messages) > room:
            if self._stuck:
                raise StorageFailed("the disk does not take messages at the moment")
            try:
                # The disk first: when it refuses, nothing of the batch is in the queue.
                self._write(messages[room:])
            except OSError as error:
                self._failed(error)
                raise StorageFailed(str(error)) from error
            messages = messages[:room]
        self._memory.extend(messages)

    def put_back(self, messages: list[Message]) -> None:
        room = self._room
        self._memory.extend(messages[:room])
        rest = messages[room:]
        if not rest:
            return
        if not self._stuck:
            try:
                self._write(rest)
                return
            except OSError as error:
                self._failed(error)
        self._stuck.extend(rest)

    def keep(self, message: Message) -> None:
        """Whoever defers it has it in memory."""

    @property
    def _room(self) -> int:
        """In memory; none while there are others on disk that came earlier."""
        if self._stuck or self.disk.unread:
            return 0
        return max(0, self._limit - len(self._memory))

    def _write(self, messages: list[Message]) -> None:
        self.disk.append(map(encode, messages))
        self._dues.update((message.id, message.due) for message in messages if message.due)
        self._wrote(len(messages))

    @property
    def stuck(self) -> int:
        """How many messages the disk has refused."""
        return len(self._stuck)

    def retry(self) -> bool:
        """Write what the disk did not take; whether it does now."""
        if self._stuck:
            try:
                self._write(list(self._stuck))
            except OSError as error:
                self._failed(error)
                return False
            self._stuck.clear()
        return True

    def take(self, limit: int) -> list[Message]:
        memory = self._memory
        taken = [memory.popleft() for _ in range(min(limit, len(memory)))]
        if len(taken) < limit and self.disk.unread:
            taken += self._read(limit - len(taken))
        if len(taken) < limit and not self.disk.unread:
            taken += [self._stuck.popleft() for _ in range(min(limit - len(taken), len(self._stuck)))]
        return taken

    def _read(self, limit: int) -> list[Message]:
        try:
            found = self.disk.read(limit)
        except OSError as error:
            self._failed(error)
            return []
        if not found:
            return []
        self.disk.commit(found[-1][0])
        messages = [decode(data) for _, data in found]
        if self._dues:
            for message in messages:
                message.due = self._dues.pop(message.id, 0.0)
        return messages

    def finished(self, messages: list[Message]) -> None:
        """It was forgotten when it was taken."""

    def clear(self) -> None:
        self._memory.clear()
        self._stuck.clear()
        self._dues.clear()
        self.disk.empty()

    def close(self, taken: list[Message]) -> None:
        left = deque([*taken, *self._memory, *self._stuck])
        try:
            try:
                while left:
                    portion = list(itertools.islice(left, _PORTION))
                    self.disk.append(map(encode, portion))
                    for _ in portion:
                        left.popleft()
            finally:
                self.disk.close()
        except OSError as error:
            self._failed(error)
            name = self.disk.name
            what = f"{len(left)} messages of {name} are lost" if left else f"{name} may repeat messages"
            raise StorageFailed(f"{what}: {error}") from error

    def delete(self) -> None:
        self._memory.clear()
        self._stuck.clear()
        self._dues.clear()
        self.disk.delete()


def encode(message: Message) -> bytes:
    return record.encode(message.timestamp, message.attempts, message.id, message.body)


def decode(data: bytes) -> Message:
    found = record.decode(data)
    message = Message(found.id, found.body, found.timestamp)
    message.attempts = found.attempts
    return message
