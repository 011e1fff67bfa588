"""The queue behind a topic or channel: an interface, and the ones that keep everything in memory."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from nsq.daemons.nsqd.core.message import Message
from nsq.wire.names import is_ephemeral


class StorageFailed(Exception):
    """The disk does not take what must be on it. What was to be put is not in the queue."""


class Backlog(Protocol):
    """Messages waiting, first in first out; whole batches in and out.

    A message that was taken is either put back or finished: a durable backlog forgets it only then.
    """

    def __len__(self) -> int:
        """How many are waiting, wherever they are kept."""

    @property
    def backend_depth(self) -> int:
        """How many of them are not in memory."""

    @property
    def remembers(self) -> bool:
        """Whether it wants to be told by ``finished``."""

    def put(self, messages: list[Message]) -> None:
        """New ones, behind all others. Raises StorageFailed."""

    def keep(self, message: Message) -> None:
        """A new one that counts as taken: it is deferred and comes by ``put_back``. Raises StorageFailed."""

    def put_back(self, messages: list[Message]) -> None:
        """What was taken waits again. Never fails: what the disk does not take stays in memory."""

    def take(self, limit: int) -> list[Message]:
        """Remove and return the first ones, at most ``limit``. One may be due later: its ``due`` says so."""

    def finished(self, messages: list[Message]) -> None:
        """They were taken, and nobody wants them any more."""

    def clear(self) -> None: ...

    def close(self, taken: list[Message]) -> None:
        """nsqd stops. ``taken`` are those that were neither put back nor finished.

        Raises StorageFailed when not everything can be kept.
        """

    def delete(self) -> None:
        """Leave nothing behind."""


class Backlogs(Protocol):
    """Where topics and channels get theirs."""

    def backlog(self, topic: str, channel: str = "") -> Backlog: ...

    def changed(self) -> None:
        """Topics or channels came, went, or were paused."""


class MemoryBacklog:
    """Keeps all of them in memory."""

    backend_depth = 0
    remembers = False

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: list[Message]) -> None:
        self._messages.extend(messages)

    def put_back(self, messages: list[Message]) -> None:
        self.put(messages)

    def keep(self, message: Message) -> None:
        """Whoever defers it has it in memory."""

    def finished(self, messages: list[Message]) -> None:
        """It was forgotten when it was taken."""

    def take(self, limit: int) -> list[Message]:
        messages = self._messages
        if limit >= len(messages):
            taken = list(messages)
            messages.clear()
            return taken
        popleft = messages.popleft
        return [popleft() for _ in range(limit)]

    def clear(self) -> None:
        self._messages.clear()

    def close(self, taken: list[Message]) -> None:
        """What is in memory ends with it."""

    def delete(self) -> None:
        self.clear()


class EphemeralBacklog(MemoryBacklog):
    """Holds --mem-queue-size messages and drops what comes beyond: nobody was promised those."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, messages: list[Message]) -> None:
        room = self._limit - len(self._messages)
        for message in messages:
            if room <= 0:
                return
            self._messages.append(message)
            room -= 1


class InMemory:
    """Backlogs for an nsqd without a disk: tests, and whoever says so."""

    def __init__(self, mem_queue_size: int = 10_000) -> None:
        self._mem_queue_size = mem_queue_size

    def backlog(self, topic: str, channel: str = "") -> Backlog:
        if is_ephemeral(channel or topic):
            return EphemeralBacklog(self._mem_queue_size)
        return MemoryBacklog()

    def changed(self) -> None:
        """Nobody asks after a restart."""
