"""The queue behind a topic or channel: an interface, and the ones that keep everything in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from nsq.daemons.nsqd.core.message import Message


class Backlog(Protocol):
    """Messages waiting, first in first out; whole batches in and out."""

    def __len__(self) -> int:
        """How many are waiting, wherever they are kept."""

    @property
    def backend_depth(self) -> int:
        """How many of them are not in memory."""

    def put(self, messages: Iterable[Message]) -> None: ...

    def take(self, limit: int) -> list[Message]:
        """Remove and return the first ones, at most ``limit``."""

    def clear(self) -> None: ...


class MemoryBacklog:
    """Keeps all of them in memory."""

    backend_depth = 0

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Iterable[Message]) -> None:
        self._messages.extend(messages)

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


class EphemeralBacklog(MemoryBacklog):
    """Holds --mem-queue-size messages and drops what comes beyond: nobody was promised those."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, messages: Iterable[Message]) -> None:
        room = self._limit - len(self._messages)
        for message in messages:
            if room <= 0:
                return
            self._messages.append(message)
            room -= 1
