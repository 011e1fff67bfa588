"""Messages, where their ids come from, and the queue behind a topic or channel in which they wait."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from nsq.wire.names import is_ephemeral

_SEQUENCE_BITS = 12
_NODE_BITS = 10
_HEAD_MASK = (1 << 64 - _SEQUENCE_BITS) - 1
#: What the wire can hold; further deliveries are not counted.
MAX_ATTEMPTS = 0xFFFF


class Message:
    """One channel's copy: the body is shared between channels, the history is not."""

    __slots__ = ("attempts", "body", "deadline", "delivered_at", "due", "id", "timestamp")

    def __init__(self, message_id: bytes, body: bytes, timestamp: int, due: float = 0.0) -> None:
        self.id = message_id
        self.body = body
        self.timestamp = timestamp
        self.attempts = 0
        self.due = due  # not to be delivered before; 0 for at once
        self.delivered_at = 0.0
        self.deadline = 0.0

    def copy(self) -> Message:
        return Message(self.id, self.body, self.timestamp, self.due)


class Batch:
    """Messages of one publish that were not handed out yet. It does not change: all channels share it."""

    __slots__ = ("bodies", "ids", "timestamp")

    def __init__(self, ids: list[bytes], bodies: list[bytes], timestamp: int) -> None:
        self.ids = ids
        self.bodies = bodies
        self.timestamp = timestamp

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Message]:
        return map(Message, self.ids, self.bodies, itertools.repeat(self.timestamp))

    def __getitem__(self, part: slice) -> Batch:
        return Batch(self.ids[part], self.bodies[part], self.timestamp)


def weight(messages: Batch | list[Message]) -> int:
    """Measure the work that messages are: their number, or the KiB of their bodies if that is more."""
    bodies = messages.bodies if isinstance(messages, Batch) else [message.body for message in messages]
    return max(len(bodies), sum(map(len, bodies)) // 1024)


class Waiting(NamedTuple):
    """A message that waits, as ``peek`` shows it. Its body may be cut short: ``size`` is the whole."""

    id: bytes
    timestamp: int  # nanoseconds since 1970
    attempts: int
    size: int
    body: bytes


def show(messages: Iterable[Message], n: int, max_bytes: int) -> list[Waiting]:
    """The first ``n``, with no more than ``max_bytes`` of their bodies."""
    shown: list[Waiting] = []
    for message in itertools.islice(messages, n):
        body = message.body[:max_bytes]
        max_bytes -= len(body)
        shown.append(Waiting(message.id, message.timestamp, message.attempts, len(message.body), body))
    return shown


class MessageIds:
    """Ids of 16 hex digits, ascending, unique among nsqds of different node ids: time, node, sequence.

    Time counts in 2²⁰ ns. A sequence that is used up borrows from the next tick instead of waiting for it, so
    a burst runs ahead of the clock, never backwards and never twice over the same id; so does a clock set
    back.
    """

    def __init__(self, node_id: int, time_ns: Callable[[], int]) -> None:
        self._node = node_id
        self._time_ns = time_ns
        self._tick = -1
        # The sequence is an id's last digits. Appending them costs a third of writing out the number.
        self._digits = [b"%03x" % sequence for sequence in range(1 << _SEQUENCE_BITS)]
        self._used = 0
        self._head = b""  # the digits before, for this tick

    def take(self, count: int) -> list[bytes]:
        tick = self._time_ns() >> 20
        ids: list[bytes] = []
        while True:
            if tick > self._tick:
                self._tick, self._used = tick, 0
                self._head = b"%013x" % ((tick << _NODE_BITS | self._node) & _HEAD_MASK)
            sequences = self._digits[self._used : self._used + count - len(ids)]
            self._used += len(sequences)
            ids += map(self._head.__add__, sequences)
            if len(ids) == count:
                return ids
            tick = self._tick + 1


class StorageFailed(Exception):
    """The disk does not take what must be on it. What was to be put is not in the queue."""


class Backlog(Protocol):
    """Messages waiting, first in first out; whole batches in and out.

    A message that was taken is either put back or finished: a durable backlog forgets it only then.
    """

    def __len__(self) -> int:
        """Count the messages that wait, wherever they are kept."""

    @property
    def backend_depth(self) -> int:
        """The number of them that are not in memory."""

    @property
    def remembers(self) -> bool:
        """Whether it wants to be told by ``finished``."""

    def put(self, messages: Batch | list[Message]) -> None:
        """New ones, behind all others. Raises StorageFailed."""

    def keep(self, message: Message) -> None:
        """A new one that counts as taken: it is deferred and comes by ``put_back``. Raises StorageFailed."""

    def borrow(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        """Keep in memory alone new messages that the disk has refused; the topic's disk keeps them. Returns
        False while there are too many. A backlog that remembers tells ``finished`` of those finished.
        """

    def put_back(self, messages: list[Message]) -> None:
        """Let taken messages wait again. Never fails: what the disk does not take stays in memory."""

    def take(self, limit: int) -> list[Message]:
        """Remove and return the first ones, at most ``limit``. One may be due later: its ``due`` says so."""

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        """The first ``n`` that wait, in the order of ``take``, with at most ``max_bytes`` of their bodies.

        Changes nothing; what has to be read from disk is read in another thread.
        """

    def finished(self, messages: list[Message]) -> None:
        """They were taken, and are not needed any more."""

    def clear(self) -> None: ...

    def delete(self) -> None:
        """Leave nothing behind."""


class Backlogs(Protocol):
    """Makes the backlogs of topics and channels."""

    def backlog(self, topic: str, channel: str = "") -> Backlog: ...

    def changed(self) -> None:
        """Topics or channels came, went, or were paused."""


#: Messages of a batch that become messages at a time.
_PORTION = 1000


class MemoryBacklog:
    """Keeps all of them in memory. A batch becomes messages when it is its turn."""

    remembers = False

    def __init__(self) -> None:
        self._first: deque[Message] = deque()
        self._behind: deque[Batch | list[Message]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def backend_depth(self) -> int:
        return 0

    @property
    def in_memory(self) -> Iterator[Message]:
        """The messages in memory, in their order."""
        return itertools.chain(self._first, itertools.chain.from_iterable(self._behind))

    def put(self, messages: Batch | list[Message]) -> None:
        count = len(messages)
        self._count += count
        if count > _PORTION:
            self._behind.extend(messages[start : start + _PORTION] for start in range(0, count, _PORTION))
        elif count:
            self._behind.append(messages)

    def borrow(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        """Never asked for: memory refuses nothing."""
        return False

    def put_back(self, messages: list[Message]) -> None:
        self.put(messages)

    def keep(self, message: Message) -> None:
        """The channel that defers it has it in memory."""

    def finished(self, messages: list[Message]) -> None:
        """It was forgotten when it was taken."""

    def take(self, limit: int) -> list[Message]:
        first, behind = self._first, self._behind
        while len(first) < limit and behind:
            first.extend(behind.popleft())
        if limit < len(first):
            taken = [first.popleft() for _ in range(limit)]
        else:
            taken = list(first)
            first.clear()
        self._count -= len(taken)
        return taken

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        return show(self.in_memory, n, max_bytes)

    def clear(self) -> None:
        self._first.clear()
        self._behind.clear()
        self._count = 0

    def delete(self) -> None:
        self.clear()


class EphemeralBacklog(MemoryBacklog):
    """Holds --mem-queue-size messages and drops those beyond, as Go's does."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, messages: Batch | list[Message]) -> None:
        super().put(messages[: max(0, self._limit - len(self))])


class InMemory:
    """Backlogs for an nsqd without a disk, as in tests."""

    def __init__(self, mem_queue_size: int = 10_000) -> None:
        self._mem_queue_size = mem_queue_size

    def backlog(self, topic: str, channel: str = "") -> Backlog:
        if is_ephemeral(channel or topic):
            return EphemeralBacklog(self._mem_queue_size)
        return MemoryBacklog()

    def changed(self) -> None:
        """Nothing is kept for a restart."""
