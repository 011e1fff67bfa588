"""Messages, their ids, and the backlog of a topic or channel: the queue in which messages wait."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_SEQUENCE_BITS = 12
_NODE_BITS = 10
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_HEAD_MASK = (1 << 64 - _SEQUENCE_BITS) - 1
_SEQUENCES = [b"%03x" % sequence for sequence in range(1 << _SEQUENCE_BITS)]
#: The largest count that the wire format holds; further deliveries are not counted.
MAX_ATTEMPTS = 0xFFFF


class Message:
    """One channel's copy of a message: channels share the body, but not attempts and deadlines."""

    __slots__ = ("attempts", "body", "deadline", "delivered_at", "due", "id", "timestamp")

    def __init__(self, message_id: bytes, body: bytes, timestamp: int, due: float = 0.0) -> None:
        self.id = message_id
        self.body = body
        self.timestamp = timestamp
        self.attempts = 0
        self.due = due  # do not deliver before this time; 0 for at once
        # Set when it is delivered.
        self.delivered_at: float
        self.deadline: float

    def copy(self) -> Message:
        return Message(self.id, self.body, self.timestamp, self.due)


class Batch:
    """The messages of one publish, before delivery. Immutable, because all channels share it."""

    __slots__ = ("bodies", "ids", "timestamp")

    def __init__(self, ids: Ids | list[bytes], bodies: list[bytes], timestamp: int) -> None:
        self.ids = ids
        self.bodies = bodies
        self.timestamp = timestamp

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[Message]:
        return map(Message, self.ids, self.bodies, itertools.repeat(self.timestamp))

    def __getitem__(self, part: slice) -> Batch:
        return Batch(self.ids[part], self.bodies[part], self.timestamp)


def weight(messages: Batch | list[Message]) -> int:
    """Estimate the work for these messages: their number, or the KiB of their bodies if that is more."""
    bodies = messages.bodies if isinstance(messages, Batch) else [message.body for message in messages]
    return max(len(bodies), sum(map(len, bodies)) // 1024)


class Waiting(NamedTuple):
    """A waiting message, as ``peek`` returns it. ``size`` is that of its whole body, ``body`` may be cut."""

    id: bytes
    timestamp: int  # nanoseconds since 1970
    attempts: int
    size: int
    body: bytes


def show(messages: Iterable[Message], n: int, max_bytes: int) -> list[Waiting]:
    """Return the first ``n`` messages, with at most ``max_bytes`` of their bodies together."""
    shown: list[Waiting] = []
    for message in itertools.islice(messages, n):
        body = message.body[:max_bytes]
        max_bytes -= len(body)
        shown.append(Waiting(message.id, message.timestamp, message.attempts, len(message.body), body))
    return shown


@dataclass(slots=True, eq=False)
class Ids:
    """Consecutive ids of 16 hex digits, written out when they are read: a backlog holds them as numbers.

    The first one is number ``first`` of its node, where each tick has 4096 numbers.
    """

    node: int
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[bytes]:
        ids: list[bytes] = []
        while (left := self.count - len(ids)) > 0:
            number = self.first + len(ids)
            tick, sequence = number >> _SEQUENCE_BITS, number & _SEQUENCE_MASK
            # Only the last digits differ. Appending them costs a third of writing out each number.
            head = b"%013x" % ((tick << _NODE_BITS | self.node) & _HEAD_MASK)
            ids += map(head.__add__, _SEQUENCES[sequence : sequence + left])
        return iter(ids)

    def __getitem__(self, part: slice) -> Ids:
        start, stop, _ = part.indices(self.count)
        return Ids(self.node, self.first + start, max(0, stop - start))


class MessageIds:
    """Makes ids from time, node id and sequence: ascending, and unique for each node id.

    A tick is 2²⁰ ns. When a tick's sequence is used up, the ids go on with the next tick without waiting for
    it, so a burst runs ahead of the clock. Ids never go back or repeat, even if the clock is set back; nor
    after a restart, if ``start_after`` gets the last run's ``tick`` or a later one.
    """

    def __init__(self, node_id: int, time_ns: Callable[[], int]) -> None:
        self._node = node_id
        self._time_ns = time_ns
        self._next = 0

    @property
    def tick(self) -> int:
        """The tick of the last id; -1 if there is none."""
        return (self._next - 1) >> _SEQUENCE_BITS

    def take(self, count: int) -> Ids:
        first = self._time_ns() >> 20 << _SEQUENCE_BITS
        if first < self._next:  # not ``max``: this runs for every PUB
            first = self._next
        self._next = first + count
        return Ids(self._node, first, count)

    def start_after(self, tick: int) -> None:
        """Make only ids of later ticks, whatever the clock says."""
        self._next = max(self._next, tick + 1 << _SEQUENCE_BITS)


class StorageFailed(Exception):
    """The disk refused the messages. None of them is in the queue."""


class PartlyStored(StorageFailed):
    """The messages were refused but may be delivered: another channel has them, or the next start finds
    them.
    """


class Backlog(Protocol):
    """A queue of waiting messages, first in first out, in whole batches.

    The owner either puts a taken message back or finishes it; a durable backlog keeps it until then.
    """

    def __len__(self) -> int:
        """Count the waiting messages, in memory and on disk."""

    @property
    def backend_depth(self) -> int:
        """The number of waiting messages that are only on disk."""

    @property
    def needs_finished(self) -> bool:
        """Whether the owner must call ``finished``."""

    def put(self, messages: Batch | list[Message]) -> None:
        """Append new messages. Raises StorageFailed."""

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        """Keep new messages that the disk refused in memory only; the topic's backlog has them on disk.
        Returns False if there are too many already. A durable backlog calls ``finished`` when they are.
        """

    def put_back(self, messages: list[Message]) -> None:
        """Append taken messages again. Never fails: messages that the disk refuses stay in memory."""

    def put_due(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        """Append messages that were deferred until now. Returns False if the disk refused those that it had
        not: a durable backlog then keeps them in memory only, and calls ``finished`` when they are. Raises
        StorageFailed if it keeps too many already.
        """

    def take(self, limit: int) -> list[Message]:
        """Remove and return the first messages, at most ``limit``. Some may have a later ``due`` time."""

    def put_first(self, messages: list[Message]) -> None:
        """Put the last messages that ``take`` returned to the front again."""

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        """Return the first ``n`` messages, in the order of ``take``, with at most ``max_bytes`` of bodies.

        Changes nothing; another thread reads from disk.
        """

    def finished(self, messages: list[Message]) -> None:
        """Forget messages that were taken before."""

    def clear(self) -> None: ...

    def clear_waiting(self) -> None:
        """Discard the waiting messages, but none that was taken and not finished."""

    def delete(self) -> None:
        """Remove all messages and files."""


_BODY = operator.attrgetter("body")


def take_some(backlog: Backlog, limit: int, most_bytes: int) -> list[Message]:
    """Take the first messages: at most ``limit``, and little more than ``most_bytes`` of their bodies."""
    messages = backlog.take(limit)
    if len(messages) < 2 or sum(map(len, map(_BODY, messages))) <= most_bytes:
        return messages
    size = count = 0
    while size < most_bytes:
        size += len(messages[count].body)
        count += 1
    backlog.put_first(messages[count:])
    return messages[:count]


#: Batches are split at this size; a part becomes Message objects when it is taken.
_BATCH_LIMIT = 1000


class MemoryBacklog:
    """Keeps all messages in memory. A batch becomes Message objects only when it is taken."""

    needs_finished = False

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
        if count > _BATCH_LIMIT:
            self._behind.extend(
                messages[start : start + _BATCH_LIMIT] for start in range(0, count, _BATCH_LIMIT)
            )
        elif count:
            self._behind.append(messages)

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        """Return False; not called, because memory refuses nothing."""
        return False

    def put_back(self, messages: list[Message]) -> None:
        self.put(messages)

    def put_due(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        self.put_back(messages)
        return True

    def finished(self, messages: list[Message]) -> None:
        """Do nothing: ``take`` has removed them."""

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

    def put_first(self, messages: list[Message]) -> None:
        self._first.extendleft(reversed(messages))
        self._count += len(messages)

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        return show(self.in_memory, n, max_bytes)

    def clear(self) -> None:
        self._first.clear()
        self._behind.clear()
        self._count = 0

    def clear_waiting(self) -> None:
        self.clear()

    def delete(self) -> None:
        self.clear()


class EphemeralBacklog(MemoryBacklog):
    """Holds --mem-queue-size messages and drops further ones, as Go's nsqd does."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, messages: Batch | list[Message]) -> None:
        super().put(messages[: max(0, self._limit - len(self))])
