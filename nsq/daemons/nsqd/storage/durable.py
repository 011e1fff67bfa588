"""The backlog that survives a kill: every message is on disk first, and stays until it is finished.

The place that a restart goes on from never passes the oldest message that is not finished. A message that
stays behind while thousands overtake it (deferred for an hour, requeued again and again) is written anew at
the end, so that neither the files nor what a restart repeats grow without a bound.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.message import Message
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.segments import Position
from nsq.daemons.nsqd.storage.dues import DueBook, monotonic_due, wall_clock_due
from nsq.daemons.nsqd.storage.spilling import decode, encode

#: So many records behind the oldest unfinished one, that one moves to the end.
_MAX_LAG = 50_000


class _Entry:
    """A record that was read or never left memory: where it ends, and whether it is wanted."""

    __slots__ = ("done", "message", "position")

    def __init__(self, position: Position, message: Message | None) -> None:
        self.position = position
        self.message = message
        self.done = message is None


class DurableBacklog:
    """``written`` is called after every append: the answer to a publisher waits for the sync that follows."""

    remembers = True

    def __init__(
        self,
        disk: DiskQueue,
        dues: DueBook,
        memory_limit: int,
        failed: Callable[[OSError], None],
        written: Callable[[], None],
    ) -> None:
        self.disk = disk
        self.dues = dues
        self._limit = memory_limit
        self._failed = failed
        self._written = written
        self._ready: deque[Message] = deque()
        self._entries: deque[_Entry] = deque()  # in the order of the files
        self._by_id: dict[bytes, _Entry] = {}
        # Taken already, though the record is still to be read: to be recognised then. None when finished.
        self._moved: dict[bytes, Message | None] = {}
        self._done_to: Position | None = None

    def __len__(self) -> int:
        return len(self._ready) + self.disk.unread - len(self._moved)

    @property
    def backend_depth(self) -> int:
        return max(0, self.disk.unread - len(self._moved))

    # In.

    def put(self, messages: list[Message]) -> None:
        caught_up = not self.disk.unread
        positions = self._append(messages)
        if caught_up and len(self._ready) + len(messages) <= self._limit:
            self.disk.skip(positions[-1])
            self._ready.extend(messages)
            self._enter(zip(positions, messages, strict=True))

    def keep(self, message: Message) -> None:
        self.dues.add(message.id, wall_clock_due(message.due))
        caught_up = not self.disk.unread
        (position,) = self._append([message])
        if caught_up:
            self.disk.skip(position)
            self._enter([(position, message)])
        else:
            self._moved[message.id] = message

    def put_back(self, messages: list[Message]) -> None:
        self._ready.extend(messages)

    def _append(self, messages: list[Message]) -> list[Position]:
        try:
            positions = self.disk.append(map(encode, messages))
        except OSError as fault:
            self._failed(fault)
            raise StorageFailed(str(fault)) from fault
        self._written()
        return positions

    def _enter(self, records: Iterable[tuple[Position, Message | None]]) -> None:
        for position, message in records:
            entry = _Entry(position, message)
            self._entries.append(entry)
            if message is not None:
                self._by_id[message.id] = entry

    # Out.

    def take(self, limit: int) -> list[Message]:
        ready = self._ready
        taken = [ready.popleft() for _ in range(min(limit, len(ready)))]
        while len(taken) < limit and self.disk.unread:
            found = self.disk.read(limit - len(taken))
            if not found:
                break
            taken += self._understand(found)
        return taken

    def _understand(self, found: list[tuple[Position, bytes]]) -> list[Message]:
        messages = []
        for position, data in found:
            message = decode(data)
            if message.id in self._moved:
                self._enter([(position, self._moved.pop(message.id))])
                continue
            due = self.dues.get(message.id)
            message.due = monotonic_due(due) if due else 0.0
            self._enter([(position, message)])
            messages.append(message)
        return messages

    def finished(self, messages: list[Message]) -> None:
        for message in messages:
            entry = self._by_id.pop(message.id, None)
            if entry is not None:
                entry.done = True
                entry.message = None
            elif message.id in self._moved:
                self._moved[message.id] = None
            if message.due:
                self.dues.remove(message.id)
        entries = self._entries
        while entries and entries[0].done:
            self._done_to = entries.popleft().position

    def advance(self) -> None:
        """Let the place a restart goes on from follow what is finished. Called before every sync."""
        if len(self._entries) > _MAX_LAG:
            self._overtake(_MAX_LAG // 2)
        if self._done_to is not None:
            self.disk.commit(self._done_to)
            self._done_to = None

    def _overtake(self, count: int) -> None:
        """Write what is unfinished among the first so many records anew, at the end, and forget these."""
        stragglers = [
            entry.message for entry in itertools.islice(self._entries, count) if entry.message is not None
        ]
        caught_up = not self.disk.unread
        positions = self.disk.append(map(encode, stragglers)) if stragglers else []
        for _ in range(count):
            self._done_to = self._entries.popleft().position
        for message in stragglers:
            self._by_id.pop(message.id, None)
        if not caught_up:
            self._moved.update((message.id, message) for message in stragglers)
        elif stragglers:
            self.disk.skip(positions[-1])
            self._enter(zip(positions, stragglers, strict=True))

    # The end.

    def clear(self) -> None:
        self._forget()
        self.disk.empty()

    def _forget(self) -> None:
        self._ready.clear()
        self._entries.clear()
        self._by_id.clear()
        self._moved.clear()
        self._done_to = None
        self.dues.clear()

    def close(self, taken: list[Message]) -> None:
        """What was taken and not finished is on disk already; what was finished shall not come again."""
        try:
            done = [place for place, entry in enumerate(self._entries, 1) if entry.done]
            if done:
                self._overtake(done[-1])
            self.advance()
            self.dues.close()
        finally:
            self.disk.close()

    def delete(self) -> None:
        self._forget()
        self.dues.delete()
        self.disk.delete()
