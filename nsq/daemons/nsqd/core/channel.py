"""A channel: one queue balanced over its subscribers, with the messages in flight and deferred."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol

from nsq.daemons.nsqd.core.backlog import (
    MAX_ATTEMPTS,
    Backlog,
    Batch,
    Message,
    StorageFailed,
    Waiting,
    take_some,
)
from nsq.daemons.nsqd.core.clock import Alarm, Clock
from nsq.daemons.nsqd.core.deferred import Deferred

#: How near a consumer is to this nsqd, nearest first. Without topology awareness all are ANYWHERE.
ZONE_LOCAL, REGION_LOCAL, ANYWHERE = range(3)


class Sink(Protocol):
    """Receives a subscriber's messages: a client's session."""

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly to be sent more messages now."""

    def deliver(self, messages: list[Message]) -> None:
        """Accept the messages; they may stay buffered until ``flush``."""

    def flush(self) -> None: ...

    def channel_closed(self) -> None:
        """End the connection: the channel was deleted, or nsqd stops."""


class Subscriber:
    """A consumer of a channel. ``in_flight`` is in the order of delivery, and so usually of deadlines."""

    __slots__ = (
        "closing",
        "deadlines_mixed",
        "finish_count",
        "in_flight",
        "locality",
        "max_msg_timeout",
        "message_count",
        "msg_timeout",
        "next_check",
        "queued",
        "rdy",
        "requeue_count",
        "sample_rate",
        "sink",
    )

    def __init__(
        self,
        sink: Sink,
        *,
        msg_timeout: float,
        max_msg_timeout: float,
        sample_rate: int = 0,
        locality: int = ANYWHERE,
    ) -> None:
        self.sink = sink
        self.msg_timeout = msg_timeout
        self.max_msg_timeout = max_msg_timeout
        self.sample_rate = sample_rate
        self.locality = locality
        self.rdy = 0
        self.closing = False
        self.queued = False  # whether the channel has it among those that may have room
        self.next_check = float("inf")  # when the channel looks for messages that have timed out
        self.in_flight: dict[bytes, Message] = {}
        self.deadlines_mixed = False
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def room(self) -> int:
        """The number of messages it can be sent now."""
        if self.closing or self.sink.full:
            return 0
        return max(0, self.rdy - len(self.in_flight))

    def hand_over(self, messages: list[Message], now: float) -> None:
        """Put the messages in flight and send them."""
        deadline = now + self.msg_timeout
        in_flight = self.in_flight
        for message in messages:
            if message.attempts < MAX_ATTEMPTS:
                message.attempts += 1
            message.delivered_at = now
            message.deadline = deadline
            in_flight[message.id] = message
        self.message_count += len(messages)
        self.sink.deliver(messages)

    def touch(self, message: Message, now: float) -> None:
        """Restart the message's timeout; its deadline never exceeds max_msg_timeout after delivery."""
        limit = message.delivered_at + self.max_msg_timeout
        message.deadline = min(now + self.msg_timeout, limit)
        if message.deadline == limit:
            self.deadlines_mixed = True
        # Move it to the end, so that the first message is always the next to expire.
        self.in_flight[message.id] = self.in_flight.pop(message.id)

    def next_deadline(self) -> float:
        if not self.in_flight:
            self.deadlines_mixed = False
            return float("inf")
        if self.deadlines_mixed:
            return min(message.deadline for message in self.in_flight.values())
        return next(iter(self.in_flight.values())).deadline

    def take_expired(self, now: float) -> list[Message]:
        """Remove and return the messages that have timed out."""
        expired = []
        for message in self.in_flight.values():
            if message.deadline <= now:
                expired.append(message)
            elif not self.deadlines_mixed:
                break
        for message in expired:
            del self.in_flight[message.id]
        return expired


#: Messages, and bytes of them, sent to a subscriber before checking ``full`` again: bounds the output that is
#: held for a slow reader.
_SLICE, _SLICE_BYTES = 256, 256 * 1024


#: The most subscribers searched for the owner of a message. The search only improves an error's text.
_SEARCHED = 64

#: Seconds until deferred messages that are due are tried again, when the disk has refused them.
_STORAGE_RETRY = 1.0


class NotInFlight(Exception):
    """The message was finished, requeued or timed out meanwhile, or never sent to this subscriber."""


class TooManyConsumers(Exception):
    """The channel has as many consumers as --max-channel-consumers allows."""


class Channel:
    """Sends every message to one subscriber at a time, until one finishes it."""

    def __init__(
        self,
        topic_name: str,
        name: str,
        backlog: Backlog,
        deferred: Deferred,
        clock: Clock,
        *,
        wake: Callable[[Channel], None],
        on_another_turn: Callable[[Callable[[], None]], object],
        chance: Callable[[int], int],
        max_consumers: int = 0,
    ) -> None:
        """``wake`` requests one ``pump``; ``on_another_turn`` calls in a later round of the event loop."""
        self.topic_name = topic_name
        self.name = name
        self.backlog = backlog
        self.deferred = deferred
        self.subscribers: list[Subscriber] = []
        self.paused = False
        self.message_count = 0
        self.delivered = [0] * (ANYWHERE + 1)  # by the subscriber's locality
        self.requeue_count = 0
        self.timeout_count = 0
        self.dropped_count = 0
        # For ``drop_oldest``: the ``message_count`` of its last call, adjusted for deferred messages, and how
        # many of the next messages come from the topic's backlog of before this channel.
        self._counted = 0
        self.spared = 0
        self._clock = clock
        self._wake = wake
        self._on_another_turn = on_another_turn
        self._asked = False  # whether ``_release_due`` is scheduled
        self._closed = False
        self._chance = chance
        self._max_consumers = max_consumers
        self._sequence = itertools.count()
        self._alarm = Alarm(clock, self._look_at_time)
        self._awake = False
        # Subscribers that may have room, by locality, in the order of their turns. One without room leaves
        # when its turn comes, and returns when ``wake`` names it. So a message costs the same work however
        # many subscribers there are.
        self._ready: list[deque[Subscriber]] = [deque() for _ in range(ANYWHERE + 1)]
        # The subscribers with messages in flight, by the time of their next check.
        self._checks: list[tuple[float, int, Subscriber]] = []
        self._needs_finished = backlog.needs_finished
        self._alarm.set(deferred.next_check())  # there may be some of an earlier run

    @property
    def depth(self) -> int:
        return len(self.backlog)

    @property
    def in_flight_count(self) -> int:
        return sum(len(subscriber.in_flight) for subscriber in self.subscribers)

    def now(self) -> float:
        """Return the time on the clock of deadlines and due times."""
        return self._clock.now()

    @property
    def deferred_count(self) -> int:
        return len(self.deferred)

    # Messages in.

    def put(self, messages: Batch | list[Message]) -> None:
        self.backlog.put(messages)
        self.message_count += len(messages)
        self.wake()

    def hold_in_memory(self, messages: list[Message], finished: Callable[[list[Message]], None]) -> bool:
        """Take messages that the channel's disk refused; see ``Backlog.hold_in_memory``."""
        if not self.backlog.hold_in_memory(messages, finished):
            return False
        deferred = [message for message in messages if message.due]
        self.deferred.hold(deferred)
        self._counted += len(deferred)
        self._alarm.set(self.deferred.next_check())
        self.message_count += len(messages)
        self.wake()
        return True

    def put_deferred(self, messages: list[Message]) -> None:
        self.deferred.add(messages)
        self.message_count += len(messages)
        self._counted += len(messages)  # they do not wait yet
        self.spared = max(0, self.spared - len(messages))
        self._alarm.set(self.deferred.next_check())

    def _defer_taken(self, message: Message) -> None:
        """Defer a message from the backlog. If the disk refuses it, the backlog keeps its record."""
        try:
            self.deferred.add([message])
        except StorageFailed:
            self.deferred.hold([message])
        else:
            if self._needs_finished:
                self.backlog.finished([message])
        self._alarm.set(self.deferred.next_check())

    def put_due(self, messages: list[Message]) -> bool:
        """Take deferred messages that are due now; see ``Deferred.release``."""
        stored = self.backlog.put_due(messages, self.deferred.finished)
        self._counted -= len(messages)
        self.wake()
        return stored

    def _put_back(self, messages: list[Message]) -> None:
        if messages:
            self.backlog.put_back(messages)
            self.wake()

    def drop_oldest(self, most: int) -> list[Message]:
        """Drop the oldest waiting messages beyond ``most``, at most one for each that has come since the last
        call; return them. What waited at the start, or is requeued, pushes out nothing.
        """
        come, self._counted = self.message_count - self._counted, self.message_count
        spared = min(come, self.spared)
        self.spared -= spared
        left = min(come - spared, len(self.backlog) - most)
        dropped: list[Message] = []
        while left > 0 and (messages := self.backlog.take(min(left, _SLICE))):
            left -= len(messages)
            if self._needs_finished:
                messages = self._without_deferred(messages, self._clock.now())
                self.backlog.finished(messages)
            dropped += messages
        self.dropped_count += len(dropped)
        return dropped

    # Messages out.

    def wake(self, subscriber: Subscriber | None = None) -> None:
        """Request one ``pump`` soon; further calls until then do nothing. Name the subscriber that may have
        room now.
        """
        if subscriber is not None and not subscriber.queued:
            subscriber.queued = True
            self._ready[subscriber.locality].append(subscriber)
        if not self._awake:
            self._awake = True
            self._wake(self)

    def pump(self) -> None:
        """Send waiting messages to the subscribers with room, round robin."""
        self._awake = False
        if self.paused:
            return
        served: dict[int, Subscriber] = {}
        now = self._clock.now()
        while len(self.backlog) and (ready := self._nearest_ready()):
            share = -(-len(self.backlog) // len(ready))
            for _ in range(len(ready)):
                if not ready:
                    break  # delivering has disconnected subscribers
                subscriber = ready[0]
                room = subscriber.room
                if not room:
                    ready.popleft().queued = False
                    continue
                messages = take_some(self.backlog, min(share, room, _SLICE), _SLICE_BYTES)
                if not messages:
                    break
                ready.rotate(-1)
                served[id(subscriber)] = subscriber
                self._hand_over(subscriber, messages, now)
            else:
                continue
            break  # nothing is left, the count was too high, or the disk cannot be read now
        for subscriber in served.values():
            subscriber.sink.flush()

    def _nearest_ready(self) -> deque[Subscriber] | None:
        """Return the queue of the nearest subscribers of which one has room."""
        for ready in self._ready:
            while ready:
                if ready[0].room:
                    return ready
                ready.popleft().queued = False
        return None

    def _hand_over(self, subscriber: Subscriber, messages: list[Message], now: float) -> None:
        if self._needs_finished:
            messages = self._without_deferred(messages, now)
        if subscriber.sample_rate:
            messages = self._sample(messages, subscriber.sample_rate)
        if messages:
            self.delivered[subscriber.locality] += len(messages)
            if now + subscriber.msg_timeout < subscriber.next_check:
                self._check_at(now + subscriber.msg_timeout, subscriber)
            subscriber.hand_over(messages, now)

    def _without_deferred(self, messages: list[Message], now: float) -> list[Message]:
        """Defer again what is not due yet: after a restart a backlog may return such messages."""
        ready = [message for message in messages if message.due <= now]
        if len(ready) < len(messages):
            for message in messages:
                if message.due > now:
                    self._defer_taken(message)
        return ready

    def _sample(self, messages: list[Message], rate: int) -> list[Message]:
        # Like Go's nsqd, which compares with ">" and so delivers one percent more than requested.
        kept = [message for message in messages if self._chance(100) <= rate]
        if self._needs_finished:
            chosen = set(map(id, kept))
            self.backlog.finished([message for message in messages if id(message) not in chosen])
        return kept

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        """Return the first ``n`` waiting messages, with at most ``max_bytes`` of bodies. Changes nothing.

        Messages in flight or deferred are not included.
        """
        return await self.backlog.peek(n, max_bytes)

    def held_longest(self, n: int) -> Generator[None, None, list[tuple[Subscriber, Message, float]]]:
        """Return the ``n`` messages longest in flight, each with its subscriber and the seconds since
        delivery. One step for each subscriber, which may have thousands of messages.
        """
        found: list[tuple[Subscriber, Message]] = []
        for subscriber in list(self.subscribers):
            found += [(subscriber, message) for message in subscriber.in_flight.values()]
            found = heapq.nsmallest(n, found, key=lambda held: held[1].delivered_at)
            yield
        now = self._clock.now()
        return [(subscriber, message, now - message.delivered_at) for subscriber, message in found]

    # FIN, REQ and TOUCH.

    def finish(self, subscriber: Subscriber, message_ids: list[bytes]) -> list[tuple[bytes, NotInFlight]]:
        """Finish many messages at once, in a third of the time. Returns those not in flight, and why."""
        finished, failed, take = [], [], subscriber.in_flight.pop
        for message_id in message_ids:
            message = take(message_id, None)
            if message is not None:
                finished.append(message)
            else:
                failed.append((message_id, self._not_in_flight(message_id)))
        if finished:
            self._finished(subscriber, finished)
        return failed

    def _finished(self, subscriber: Subscriber, messages: list[Message]) -> None:
        subscriber.finish_count += len(messages)
        if self._needs_finished:
            self.backlog.finished(messages)
        self.wake(subscriber)

    def requeue(self, subscriber: Subscriber, message_id: bytes, delay: float) -> None:
        message = subscriber.in_flight.pop(message_id, None)
        if message is None:
            raise self._not_in_flight(message_id)
        subscriber.requeue_count += 1
        self.requeue_count += 1
        if delay > 0:
            message.due = self._clock.now() + delay
            self._defer_taken(message)
        else:
            self.backlog.put_back([message])
        self.wake(subscriber)

    def touch(self, subscriber: Subscriber, message_id: bytes) -> None:
        message = subscriber.in_flight.get(message_id)
        if message is None:
            raise self._not_in_flight(message_id)
        subscriber.touch(message, self._clock.now())
        # Usually later than before, but earlier if msg_timeout exceeds max_msg_timeout.
        self._check_at(message.deadline, subscriber)

    def _not_in_flight(self, message_id: bytes) -> NotInFlight:
        searched = itertools.islice(self.subscribers, _SEARCHED)
        if any(message_id in other.in_flight for other in searched):
            return NotInFlight("client does not own message")
        return NotInFlight("ID not in flight")

    # Subscribers come and go.

    def subscribe(self, subscriber: Subscriber) -> None:
        if self._max_consumers and len(self.subscribers) >= self._max_consumers:
            raise TooManyConsumers(
                f"channel consumers for {self.topic_name}:{self.name} exceeds limit of {self._max_consumers}"
            )
        self.subscribers.append(subscriber)
        self.wake(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove the subscriber. Its messages in flight are requeued at once."""
        if subscriber not in self.subscribers:
            return
        self.subscribers.remove(subscriber)
        if subscriber.queued:
            self._ready[subscriber.locality].remove(subscriber)
        if subscriber.next_check < float("inf"):
            self._checks = [check for check in self._checks if check[2] is not subscriber]
            heapq.heapify(self._checks)
        orphans = list(subscriber.in_flight.values())
        subscriber.in_flight.clear()
        self.requeue_count += len(orphans)
        self._put_back(orphans)

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self.wake()

    def empty(self) -> None:
        """Discard all messages: waiting, in flight and deferred."""
        self.backlog.clear()
        self.deferred.clear()
        for subscriber in self.subscribers:
            subscriber.in_flight.clear()
            subscriber.next_check = float("inf")
            self.wake(subscriber)
        self._checks.clear()
        self._alarm.cancel()

    def close(self) -> list[Message]:
        """Disconnect all subscribers. Returns the messages taken from the backlog and not finished, without
        those that ``deferred`` has stored.
        """
        self._closed = True
        self._alarm.cancel()
        taken = [message for subscriber in self.subscribers for message in subscriber.in_flight.values()]
        taken += self.deferred.take_held()
        for subscriber in self.subscribers:
            subscriber.sink.channel_closed()
        self.subscribers.clear()
        self._checks.clear()
        for ready in self._ready:
            ready.clear()
        return taken

    # Time passes.

    def _check_at(self, when: float, subscriber: Subscriber) -> None:
        """Check the subscriber's messages for timeouts at ``when``, unless an earlier check is due."""
        if when < subscriber.next_check:
            subscriber.next_check = when
            heapq.heappush(self._checks, (when, next(self._sequence), subscriber))
            self._alarm.set(when)

    def _look_at_time(self) -> None:
        now = self._clock.now()
        while self._checks and self._checks[0][0] <= now:
            when, _, subscriber = heapq.heappop(self._checks)
            if when != subscriber.next_check:
                continue  # an earlier check has replaced it
            subscriber.next_check = float("inf")
            if expired := subscriber.take_expired(now):
                self.timeout_count += len(expired)
                self.backlog.put_back(expired)
                self.wake(subscriber)
            self._check_at(subscriber.next_deadline(), subscriber)
        if self._checks:
            self._alarm.set(self._checks[0][0])
        check = self.deferred.next_check()
        if check > now:
            self._alarm.set(check)
        elif not self._asked and not self._closed:
            # Thousands of channels may have messages that are due at the same time.
            self._asked = True
            self._on_another_turn(self._release_due)

    def _release_due(self) -> None:
        self._asked = False
        if self._closed:
            return  # the deferred messages now belong to the storage
        now = self._clock.now()
        try:
            self.deferred.release(now, self.put_due)
        except StorageFailed:
            self._alarm.set(now + _STORAGE_RETRY)
        else:
            self._look_at_time()
