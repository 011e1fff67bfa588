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
from nsq.daemons.nsqd.storage.dues import DueBook
from nsq.daemons.nsqd.storage.spilling import decode, encode

#: So many records behind the oldest unfinished one, that one moves to the end.
_MAX_LAG = 50_000

#: Records that are passed over at a time.
_PORTION = 1000


class _Entry:
    """A record that was read or never left memory: where it ends, and the message while that is wanted."""

    __slots__ = ("message", "position")

    def __init__(self, position: Position, message: Message | None) -> None:
        self.position = position
        self.message = message


class DurableBacklog:
    """``written`` is called after every append: the answer to a publisher waits for the sync that follows.

    While syncs fail, as ``fault`` says, nothing is taken in: nobody could be told that it is there to stay.
    """

    remembers = True

    def __init__(
        self,
        disk: DiskQueue,
        dues: DueBook,
        memory_limit: int,
        *,
        failed: Callable[[Exception], None],
        written: Callable[[], None],
        fault: Callable[[], Exception | None],
    ) -> None:
        self.disk = disk
        self.dues = dues
        self._limit = memory_limit
        self._failed = failed
        self._written = written
        self._fault = fault
        self._ready: deque[Message] = deque()
        self._entries: deque[_Entry] = deque()  # in the order of the files
        self._by_id: dict[bytes, _Entry] = {}  # those that are wanted
        # Taken already, though the record is still to be read: to be recognised then. None when finished.
        self._moved: dict[bytes, Message | None] = {}
        self._done_to: Position | None = None

    def __len__(self) -> int:
        return len(self._ready) + self.backend_depth

    @property
    def backend_depth(self) -> int:
        # Where files were damaged, records of what was moved may be missing.
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
        if (known := self._fault()) is not None:
            raise StorageFailed(str(known))
        try:
            self.dues.add(messages)
            positions = self.disk.append(map(encode, messages))
        except OSError as error:
            for message in messages:
                if message.due:
                    self.dues.remove(message.id)
            self._failed(error)
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
        while len(taken) < limit and self.disk.unread:
            found = self._read(limit - len(taken))
            if found is None:
                break
            taken += found
        return taken

    def _read(self, limit: int) -> list[Message] | None:
        """What is wanted of the next so many records; None if there are none, or none can be read."""
        try:
            found = self.disk.read(limit)
        except OSError as error:
            self._failed(error)
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

    def finished(self, messages: list[Message]) -> None:
        for message in messages:
            entry = self._by_id.pop(message.id, None)
            if entry is not None:
                entry.message = None
            elif message.id in self._moved:
                self._moved[message.id] = None
            if message.due:
                self.dues.remove(message.id)
        self._forget_finished()

    def _forget_finished(self) -> None:
        entries = self._entries
        while entries and entries[0].message is None:
            self._done_to = entries.popleft().position

    def advance(self) -> None:
        """Let the place a restart goes on from follow what is finished. Called before every sync."""
        self._pass_over_what_moved()
        self._forget_finished()
        # Only where that frees as much as it writes: else many deferred messages would go round for ever.
        if len(self._entries) > _MAX_LAG and len(self._entries) >= 2 * len(self._by_id):
            self._try_to_overtake(_MAX_LAG // 2)
        if self._done_to is not None:
            self.disk.commit(self._done_to)
            self._done_to = None

    def _pass_over_what_moved(self) -> bool:
        """Nobody else reads on where nothing waits. Whether there may be more of it."""
        if not self.disk.unread or self.backend_depth:
            return False
        found = self._read(_PORTION)
        self._ready.extend(found or [])
        return found is not None

    def _try_to_overtake(self, count: int) -> None:
        """A full disk must not keep what is finished from being forgotten, as that makes room."""
        try:
            self._overtake(count)
        except OSError as error:
            self._failed(error)

    def _overtake(self, count: int) -> None:
        """Write what is unfinished among the first so many records anew, at the end, and forget these."""
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
        self._forget()
        self.disk.empty()
        self.dues.clear()

    def _forget(self) -> None:
        self._ready.clear()
        self._entries.clear()
        self._by_id.clear()
        self._moved.clear()
        self._done_to = None

    def close(self, taken: list[Message]) -> None:
        """What was taken and not finished is on disk already; what was finished shall not come again."""
        try:
            try:
                self.dues.add(taken)  # what was requeued with a delay
                self._close_the_gaps()
                self.dues.close([each for each, message in self._moved.items() if message is None])
            finally:
                self.disk.close()
        except OSError as error:
            self._failed(error)
            what = f"{self.disk.name} may repeat messages, or deliver deferred ones at once"
            raise StorageFailed(f"{what}: {error}") from error

    def _close_the_gaps(self) -> None:
        """So that nothing finished lies behind what is not; and let the count of attempts be known."""
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
