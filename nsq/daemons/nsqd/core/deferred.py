"""A channel's deferred messages, in the order of their due times: in memory only, as for #ephemeral names."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed, Waiting, show

#: Messages that one call of ``release`` hands over; the event loop serves others before the next call.
RELEASED_AT_ONCE = 1000


class DueRange(NamedTuple):
    """So many messages are due between two monotonic times."""

    first: float
    last: float
    messages: int


class Deferred(Protocol):
    """Deferred messages: each has ``due``, a monotonic time."""

    #: After a kill: the ids of messages here that the topic still has too, and will hand over again.
    repeated: Collection[bytes]

    def __len__(self) -> int: ...

    @property
    def on_disk(self) -> int:
        """The number of messages that are only on disk."""

    def add(self, messages: list[Message]) -> None:
        """Add messages, all or none. Raises StorageFailed if the disk refuses them."""

    def hold(self, messages: list[Message]) -> None:
        """Add messages that the disk has refused, in memory only."""

    def next_check(self) -> float:
        """Return when to call ``release`` next."""

    def release(self, now: float, put: Callable[[list[Message]], bool]) -> None:
        """Remove messages that are due, and call ``put`` with them, or with none if they have joined the
        backlog's files. If it raises StorageFailed, they stay. If it returns False, they are in memory only:
        those that are on disk here stay there until ``finished``.
        """

    def finished(self, messages: list[Message]) -> None:
        """Forget messages that were in memory only."""

    def next_due(self) -> float:
        """Return when the next message is due, roughly for those on disk."""

    def due_ranges(self) -> list[DueRange]:
        """Return how many messages are due when, roughly for those on disk."""

    async def peek(self, n: int, max_bytes: int) -> list[tuple[float, Waiting]]:
        """Return the ``n`` messages due next with their due times. Changes nothing."""

    def take_held(self) -> list[Message]:
        """Remove and return, at a stop, the messages whose only record on disk is in a backlog."""

    def clear(self) -> None: ...

    def delete(self) -> None:
        """Remove all messages and files."""


class DeferredInMemory:
    """A heap of messages. ``source`` is the place on disk of each, if it has one."""

    repeated: Collection[bytes] = ()

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Message, object]] = []
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def on_disk(self) -> int:
        return 0

    def add(self, messages: list[Message]) -> None:
        self._push(messages, None)

    def hold(self, messages: list[Message]) -> None:
        self._push(messages, None)

    def _push(self, messages: list[Message], source: object) -> None:
        heap, push = self._heap, heapq.heappush
        for message in messages:
            push(heap, (message.due, next(self._sequence), message, source))

    def next_check(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def release(self, now: float, put: Callable[[list[Message]], bool]) -> None:
        heap = self._heap
        due: list[tuple[float, int, Message, object]] = []
        while heap and heap[0][0] <= now and len(due) < RELEASED_AT_ONCE:
            due.append(heapq.heappop(heap))
        if not due:
            return
        try:
            stored = put([message for _, _, message, _ in due])
        except StorageFailed:
            for entry in due:
                heapq.heappush(heap, entry)
            raise
        self._released(due, stored)

    def _released(self, entries: list[tuple[float, int, Message, object]], stored: bool) -> None:
        """Note that these messages are elsewhere now, ``stored`` or in memory only."""

    def finished(self, messages: list[Message]) -> None:
        """Do nothing: no message here is on disk."""

    def due_ranges(self) -> list[DueRange]:
        return [DueRange(due, due, 1) for due, _, _, _ in self._heap]

    async def peek(self, n: int, max_bytes: int) -> list[tuple[float, Waiting]]:
        first = heapq.nsmallest(n, self._heap)
        messages = [message for _, _, message, _ in first]
        return [(entry[0], shown) for entry, shown in zip(first, show(messages, n, max_bytes), strict=True)]

    def take_held(self) -> list[Message]:
        return []

    def clear(self) -> None:
        self._heap.clear()

    def delete(self) -> None:
        self.clear()
