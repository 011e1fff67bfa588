"""Deliveries of one channel of one partition: plain, or one message at a time.

Knows no sockets; the time is an argument.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Iterable
from typing import Protocol

_FRAME = struct.Struct(">iiqH16s")
_DETAIL = struct.Struct(">QI")
_MESSAGE_FRAME = 2
_HEAD = 30  # of the frame, behind its size
_MAX_ATTEMPTS = 4000


class Stored:
    """A message in a partition's log. ``ext`` has its version byte and JSON, or nothing in a plain topic."""

    __slots__ = ("id", "timestamp", "ext", "body", "offset", "size")

    def __init__(
        self, message_id: bytes, timestamp: int, ext: bytes, body: bytes, offset: int, size: int
    ) -> None:
        self.id = message_id
        self.timestamp = timestamp
        self.ext = ext
        self.body = body
        self.offset = offset
        self.size = size

    def __lt__(self, other: Stored) -> bool:
        return self.offset < other.offset


class Subscriber(Protocol):
    """A connection that consumes a channel."""

    ready: int
    in_flight: dict[bytes, tuple[Stored, float]]
    msg_timeout: float
    detailed: bool
    tag: str | None

    def accepts(self, message: Stored) -> bool:
        """Whether its filter lets the message through."""

    def tag_of(self, message: Stored) -> str | None: ...

    def push(self, frames: list[bytes]) -> None: ...

    def unsubscribe(self) -> None:
        """The node no longer leads this partition."""


class Channel:
    def __init__(self, name: str, log: list[Stored], *, first_twice: bool) -> None:
        self.name = name
        self.ordered = False
        self.subscribers: list[Subscriber] = []
        self.finished = 0
        self._log = log
        self._position = len(log)
        self._again: list[Stored] = []  # a heap
        self._deferred: list[tuple[float, Stored]] = []  # a heap
        self._attempts: dict[bytes, int] = {}  # of messages that came back
        self._earliest = math.inf  # no message in flight times out before
        self._first_twice = first_twice
        self._ordered_here = False  # since this leader leads
        self._twice: bytes | None = None  # the id of the message that comes twice
        self._echo: bytes | None = None  # the same id, once it comes for the second time

    @property
    def in_flight(self) -> int:
        return sum(len(subscriber.in_flight) for subscriber in self.subscribers)

    @property
    def depth(self) -> int:
        return len(self._log) - self._position + len(self._again) + len(self._deferred)

    @property
    def messages(self) -> int:
        """The number of messages that its partition ever got, as the server counts them."""
        return len(self._log)

    # Subscribers

    def subscribe(self, subscriber: Subscriber, *, ordered: bool) -> None:
        """Add a subscriber. An ordered one makes the channel ordered for all.

        The real server then starts its reader anew, and delivers the first message of a backlog twice.
        """
        self.subscribers.append(subscriber)
        if ordered and not self._ordered_here:
            self.ordered = self._ordered_here = True
            first = min(self._again, default=None)
            if first is None and self._position < len(self._log):
                first = self._log[self._position]
            self._twice = first.id if first is not None and self._first_twice else None

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber; what it had in flight comes again."""
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)
        for message, _ in subscriber.in_flight.values():
            if self.ordered:
                self._attempts.pop(message.id, None)  # the server counts anew
            heapq.heappush(self._again, message)
        subscriber.in_flight.clear()

    def leader_changed(self) -> None:
        """End every subscription: another node delivers from here on."""
        self._ordered_here = False
        self._twice = self._echo = None
        for subscriber in list(self.subscribers):
            self.unsubscribe(subscriber)
            subscriber.unsubscribe()
        self._attempts.clear()

    def seek(self, position: int) -> None:
        """Continue at this index of the log, whatever was finished."""
        self._position = min(max(position, 0), len(self._log))
        self._again.clear()
        self._deferred.clear()
        self._twice = self._echo = None
        for subscriber in self.subscribers:
            subscriber.in_flight.clear()

    # Deliveries

    def deliver(self, now: float) -> None:
        """Send what the subscribers have room for."""
        if self.ordered:
            self._deliver_one(now)
        elif len(self.subscribers) == 1 and self.subscribers[0].tag is None:
            subscriber = self.subscribers[0]
            room = subscriber.ready - len(subscriber.in_flight)
            if room > 0 and (self._again or self._position < len(self._log)):
                self._send(subscriber, self._take(room, subscriber), now)
        else:
            self._deliver_to_many(now)

    def _deliver_one(self, now: float) -> None:
        if any(subscriber.in_flight for subscriber in self.subscribers):
            return
        for subscriber in self.subscribers:
            if subscriber.ready > 0:
                taken = self._take(1, subscriber)
                if taken:
                    self._send(subscriber, taken, now)
                    self.subscribers.remove(subscriber)  # to the end: they take turns
                    self.subscribers.append(subscriber)
                return

    def _deliver_to_many(self, now: float) -> None:
        """Deliver one by one, in turns; a tagged message goes to those who want its tag, if there are any."""
        while True:
            free = [each for each in self.subscribers if each.ready > len(each.in_flight)]
            message = self._peek() if free else None
            if message is None:
                return
            tag = free[0].tag_of(message)
            wanted = tag if any(each.tag == tag for each in self.subscribers) else None
            chosen = next((each for each in free if each.tag == wanted), None)
            if chosen is None:
                return
            self._send(chosen, self._take(1, chosen), now)
            self.subscribers.remove(chosen)
            self.subscribers.append(chosen)

    def _peek(self) -> Stored | None:
        if self._again:
            return self._again[0]
        return self._log[self._position] if self._position < len(self._log) else None

    def _take(self, count: int, subscriber: Subscriber) -> list[Stored]:
        """Take the next messages, at most ``count``. Those that the filter rejects count as finished."""
        taken: list[Stored] = []
        while self._again and len(taken) < count:
            message = heapq.heappop(self._again)
            if subscriber.accepts(message):
                taken.append(message)
        while len(taken) < count and self._position < len(self._log):
            stop = self._position + count - len(taken)
            taken += filter(subscriber.accepts, self._log[self._position : stop])
            self._position = min(stop, len(self._log))
        return taken

    def _send(self, subscriber: Subscriber, messages: list[Stored], now: float) -> None:
        deadline = now + subscriber.msg_timeout
        self._earliest = min(self._earliest, deadline)
        in_flight, known, detailed = subscriber.in_flight, self._attempts, subscriber.detailed
        pack, frames, attempts = _FRAME.pack, list[bytes](), 1
        for message in messages:
            if known:
                attempts = min(known.get(message.id, 0) + 1, _MAX_ATTEMPTS)
            in_flight[message.id] = (message, deadline)
            data = message.ext + message.body if message.ext else message.body
            if detailed:
                detail = _DETAIL.pack(message.offset, message.size)
                data = b"".join((message.ext, detail, message.body))
            frames.append(
                pack(_HEAD + len(data), _MESSAGE_FRAME, message.timestamp, attempts, message.id) + data
            )
        if frames:
            subscriber.push(frames)

    # What subscribers answer

    def finish(self, subscriber: Subscriber, ids: Iterable[bytes]) -> list[bytes]:
        """Finish messages; return the ids that are not in flight."""
        failed, pop, attempts = list[bytes](), subscriber.in_flight.pop, self._attempts
        for message_id in ids:
            found = pop(message_id, None)
            if found is None:
                failed.append(message_id)
                continue
            if attempts:
                attempts.pop(message_id, None)
            self.finished += 1
            if message_id == self._echo:
                self._echo = None
                failed.append(message_id)  # it had been finished before
            elif message_id == self._twice:
                self._echo, self._twice = message_id, None
                heapq.heappush(self._again, found[0])
        return failed

    def requeue(self, subscriber: Subscriber, message_id: bytes, delay: float, now: float) -> bool:
        """Requeue a message; False if it is not in flight. In an ordered channel a delay is ignored."""
        if message_id not in subscriber.in_flight:
            return False
        if delay <= 0:
            self._come_again(subscriber, message_id)
        elif not self.ordered:
            message, _ = subscriber.in_flight.pop(message_id)
            self._attempts[message_id] = self._attempts.get(message_id, 0) + 1
            heapq.heappush(self._deferred, (now + delay, message))
        return True

    def touch(self, subscriber: Subscriber, message_id: bytes, now: float) -> bool:
        found = subscriber.in_flight.get(message_id)
        if found is None:
            return False
        subscriber.in_flight[message_id] = (found[0], now + subscriber.msg_timeout)
        return True

    def tick(self, now: float) -> bool:
        """Take back what has timed out or waited long enough; return whether there was any."""
        changed = False
        while self._deferred and self._deferred[0][0] <= now:
            heapq.heappush(self._again, heapq.heappop(self._deferred)[1])
            changed = True
        if now < self._earliest:
            return changed
        self._earliest = math.inf
        for subscriber in self.subscribers:
            for message_id, (_, deadline) in list(subscriber.in_flight.items()):
                if deadline <= now:
                    self._come_again(subscriber, message_id)
                    changed = True
                else:
                    self._earliest = min(self._earliest, deadline)
        return changed

    def _come_again(self, subscriber: Subscriber, message_id: bytes) -> None:
        message, _ = subscriber.in_flight.pop(message_id)
        self._attempts[message_id] = self._attempts.get(message_id, 0) + 1
        heapq.heappush(self._again, message)
