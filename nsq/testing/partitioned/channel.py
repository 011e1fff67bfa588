"""What a partition stores, and its deliveries to one channel: plain, or one message at a time.

Knows no sockets; the time is an argument.
"""

from __future__ import annotations

import heapq
import json
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from nsq.wire.frames import FRAME_MESSAGE

#: Bytes that the server's queue adds to the body of a stored message.
STORED_OVERHEAD = 30
_FRAME = struct.Struct(">iiqH16s")
_HEAD = 30  # of the frame, behind its size
_MAX_ATTEMPTS = 4000
#: A killed leader can take so many FINs of a channel with it.
_REMEMBERED = 1000


class StoredMessage(NamedTuple):
    """A message in the log of a partition."""

    body: bytes
    internal_id: int
    trace_id: int
    offset: int
    size: int
    headers: dict[str, Any]
    timestamp: int  # nanoseconds since the epoch


@dataclass(order=True, slots=True)
class Stored:
    """A message in a partition's log. ``ext`` has its version byte and JSON, or nothing in a plain topic."""

    offset: int
    id: bytes = field(compare=False)
    timestamp: int = field(compare=False)
    ext: bytes = field(compare=False)
    body: bytes = field(compare=False)

    @property
    def size(self) -> int:
        return STORED_OVERHEAD + len(self.ext) + len(self.body)

    @property
    def headers(self) -> dict[str, Any]:
        found = json.loads(self.ext[3:]) if self.ext[:1] == b"\4" else {}
        return found if isinstance(found, dict) else {}

    def report(self) -> StoredMessage:
        internal_id, trace_id = struct.unpack(">QQ", self.id)
        return StoredMessage(
            self.body, internal_id, trace_id, self.offset, self.size, self.headers, self.timestamp
        )


def encode_id(internal_id: int, trace_id: int) -> bytes:
    return struct.pack(">QQ", internal_id, trace_id)


class ChannelState(NamedTuple):
    """The state of a channel of one partition."""

    depth: int
    in_flight: int
    finished: int
    subscribers: int


class Subscriber(Protocol):
    """A connection that consumes a channel."""

    number: int
    ready: int
    in_flight: dict[bytes, tuple[Stored, float]]  # with the time when it comes again
    msg_timeout: float
    detailed: bool
    tag: str | None

    def accepts(self, message: Stored) -> bool:
        """Whether its filter lets the message through."""

    def send(self, frame: bytes) -> None: ...

    def end(self) -> None:
        """The node no longer leads this partition."""


class Channel:
    """``first_twice`` says when an ordered subscription gets the first message of a backlog for the second
    time: never, after its FIN, or at once.
    """

    def __init__(self, name: str, log: list[Stored], first_twice: bool | str) -> None:
        self.name = name
        self.ordered = False
        self.paused = False
        self.subscribers: list[Subscriber] = []
        self.finished = 0
        self._log = log
        self._position = len(log)
        self._again: list[Stored] = []  # a heap
        self._deferred: list[tuple[float, Stored]] = []  # a heap
        self._attempts: dict[bytes, int] = {}  # of messages that came back
        self._finished_last: deque[Stored] = deque(maxlen=_REMEMBERED)
        self._first_twice = first_twice
        self._ordered_here = False  # since this leader leads
        self._twice: bytes | None = None  # the id of the message that comes twice
        self._echo: bytes | None = None  # the same id, once it has come after its FIN

    def state(self) -> ChannelState:
        in_flight = sum(len(subscriber.in_flight) for subscriber in self.subscribers)
        depth = len(self._log) - self._position + len(self._again) + len(self._deferred)
        return ChannelState(depth, in_flight, self.finished, len(self.subscribers))

    # Subscribers

    def subscribe(self, subscriber: Subscriber, *, ordered: bool) -> None:
        """Add a subscriber. An ordered one makes the channel ordered for all.

        The real server then starts its reader anew, and delivers the first message of a backlog twice.
        """
        self.subscribers.append(subscriber)
        if ordered and not self._ordered_here:
            self.ordered = self._ordered_here = True
            first = self._next()
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
            subscriber.end()
        self._attempts.clear()

    def lose_fins(self, count: int) -> None:
        """Forget the last FINs, as a new leader does that has not heard of them."""
        for _ in range(min(count, len(self._finished_last))):
            heapq.heappush(self._again, self._finished_last.pop())
            self.finished -= 1

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
        """Send what the subscribers have room for. They take turns."""
        self._take_back(now)
        while not self.paused and (message := self._next()) is not None:
            free = [each for each in self.subscribers if self._has_room(each)]
            chosen = _choose(free, self.subscribers, message)
            if chosen is None:
                return
            self._take()
            if not chosen.accepts(message):
                continue  # counts as finished
            chosen.in_flight[message.id] = (message, now + chosen.msg_timeout)
            attempts = min(self._attempts.get(message.id, 0) + 1, _MAX_ATTEMPTS)
            frame = _encode(message, attempts, detailed=chosen.detailed)
            chosen.send(frame)
            if message.id == self._twice and self._first_twice == "at once":
                self._twice = None
                chosen.send(frame)
            self.subscribers.remove(chosen)
            self.subscribers.append(chosen)

    def _take_back(self, now: float) -> None:
        """Let come again what has timed out or was deferred long enough."""
        while self._deferred and self._deferred[0][0] <= now:
            heapq.heappush(self._again, heapq.heappop(self._deferred)[1])
        for subscriber in self.subscribers:
            in_flight = subscriber.in_flight  # in the order of the deadlines
            while in_flight and (first := next(iter(in_flight))) and in_flight[first][1] <= now:
                self._come_again(subscriber, first)

    def _has_room(self, subscriber: Subscriber) -> bool:
        if self.ordered:
            return subscriber.ready > 0 and not any(each.in_flight for each in self.subscribers)
        return subscriber.ready > len(subscriber.in_flight)

    def _next(self) -> Stored | None:
        if self._again:
            return self._again[0]
        return self._log[self._position] if self._position < len(self._log) else None

    def _take(self) -> None:
        if self._again:
            heapq.heappop(self._again)
        else:
            self._position += 1

    # What subscribers answer

    def finish(self, subscriber: Subscriber, message_id: bytes) -> str | None:
        """Finish a message; return why that fails."""
        found = subscriber.in_flight.pop(message_id, None)
        if found is None:
            return self._not_in_flight(subscriber, message_id)
        self._attempts.pop(message_id, None)
        if message_id == self._echo:  # it had been finished before
            self._echo = None
            return self._not_in_flight(subscriber, message_id)
        self.finished += 1
        self._finished_last.append(found[0])
        if message_id == self._twice:
            self._echo, self._twice = message_id, None
            heapq.heappush(self._again, found[0])
        return None

    def requeue(self, subscriber: Subscriber, message_id: bytes, delay: float, now: float) -> str | None:
        """Requeue a message; return why that fails. In an ordered channel a delay is ignored."""
        if message_id not in subscriber.in_flight:
            return self._not_in_flight(subscriber, message_id)
        if delay <= 0:
            self._come_again(subscriber, message_id)
        elif not self.ordered:
            message, _ = subscriber.in_flight.pop(message_id)
            self._attempts[message_id] = self._attempts.get(message_id, 0) + 1
            heapq.heappush(self._deferred, (now + delay, message))
        return None

    def touch(self, subscriber: Subscriber, message_id: bytes, now: float) -> str | None:
        found = subscriber.in_flight.pop(message_id, None)
        if found is None:
            return self._not_in_flight(subscriber, message_id)
        subscriber.in_flight[message_id] = (found[0], now + subscriber.msg_timeout)
        return None

    def _come_again(self, subscriber: Subscriber, message_id: bytes) -> None:
        message, _ = subscriber.in_flight.pop(message_id)
        self._attempts[message_id] = self._attempts.get(message_id, 0) + 1
        heapq.heappush(self._again, message)

    def _not_in_flight(self, subscriber: Subscriber, message_id: bytes) -> str:
        owners = [each.number for each in self.subscribers if message_id in each.in_flight]
        owners += [0 for _, message in self._deferred if message.id == message_id]
        if owners:
            return f"client does not own message : {owners[0]} vs {subscriber.number}"
        return "Message ID not in flight"


def _choose(free: list[Subscriber], everyone: list[Subscriber], message: Stored) -> Subscriber | None:
    """A tagged message goes to those who want its tag, if there are any; others go to those without a tag."""
    tag = message.headers.get("##client_dispatch_tag") if message.ext else None
    wanted = tag if any(each.tag == tag for each in everyone) else None
    return next((each for each in free if each.tag == wanted), None)


def _encode(message: Stored, attempts: int, *, detailed: bool) -> bytes:
    detail = struct.pack(">QI", message.offset, message.size) if detailed else b""
    data = b"".join((message.ext, detail, message.body))
    head = _FRAME.pack(_HEAD + len(data), FRAME_MESSAGE, message.timestamp, attempts, message.id)
    return head + data
