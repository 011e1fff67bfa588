"""A channel: one queue, balanced over its subscribers; what is in flight, and what is deferred."""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
from collections.abc import Callable
from operator import itemgetter

from nsq.daemons.nsqd.core.backlog import Backlog
from nsq.daemons.nsqd.core.clock import Alarm, Clock
from nsq.daemons.nsqd.core.message import Message
from nsq.daemons.nsqd.core.subscriber import ANYWHERE, Subscriber

#: Handed to one subscriber before its output is looked at again: bounds what a slow reader can make us hold.
_SLICE = 64


#: Deferred messages that become due at a time: others are served before the next.
_PORTION = 1000


class NotInFlight(Exception):
    """The message was finished, requeued or timed out meanwhile, or was never this subscriber's."""


class TooManyConsumers(Exception):
    """The channel has as many consumers as --max-channel-consumers allows."""


class Channel:
    """Every message that comes in goes to exactly one subscriber at a time, until one finishes it."""

    def __init__(
        self,
        topic_name: str,
        name: str,
        backlog: Backlog,
        clock: Clock,
        *,
        wake: Callable[[Channel], None],
        chance: Callable[[int], int],
        max_consumers: int = 0,
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self.backlog = backlog
        self.subscribers: list[Subscriber] = []
        self.paused = False
        self.message_count = 0
        self.delivered = [0] * (ANYWHERE + 1)  # by the locality of who received
        self.requeue_count = 0
        self.timeout_count = 0
        self._clock = clock
        self._wake = wake
        self._chance = chance
        self._max_consumers = max_consumers
        self._deferred: list[tuple[float, int, Message]] = []
        self._sequence = itertools.count()
        self._alarm = Alarm(clock, self._look_at_time)
        self._awake = False
        self._turn = 0
        self._remembers = backlog.remembers

    @property
    def depth(self) -> int:
        return len(self.backlog)

    @property
    def in_flight_count(self) -> int:
        return sum(len(subscriber.in_flight) for subscriber in self.subscribers)

    @property
    def deferred_count(self) -> int:
        return len(self._deferred)

    @property
    def delivery_count(self) -> int:
        return sum(self.delivered)

    # Messages in.

    def put(self, messages: list[Message]) -> None:
        self.backlog.put(messages)
        self.message_count += len(messages)
        self.wake()

    def put_deferred(self, message: Message) -> None:
        self.backlog.keep(message)
        self.message_count += 1
        self._defer(message)

    def _defer(self, message: Message) -> None:
        heapq.heappush(self._deferred, (message.due, next(self._sequence), message))
        self._alarm.set(message.due)

    def _put_back(self, messages: list[Message]) -> None:
        if messages:
            self.backlog.put_back(messages)
            self.wake()

    # Messages out.

    def wake(self) -> None:
        """Ask for a ``pump`` soon: once for all that happens until then."""
        if not self._awake:
            self._awake = True
            self._wake(self)

    def pump(self) -> None:
        """Hand out what is waiting, in turns, to everyone who has room."""
        self._awake = False
        if self.paused or not len(self.backlog):
            return
        served: dict[int, Subscriber] = {}
        now = self._clock.now()
        while len(self.backlog):
            ready = self._in_turn()
            if not ready:
                break
            share = -(-len(self.backlog) // len(ready))
            for place, subscriber in ready:
                messages = self.backlog.take(min(share, subscriber.room, _SLICE))
                if not messages:
                    break
                served[id(subscriber)] = subscriber
                self._turn = place + 1
                self._hand_over(subscriber, messages, now)
            else:
                continue
            break  # fewer than were counted, or the disk cannot be read at the moment
        for subscriber in served.values():
            subscriber.sink.flush()

    def _in_turn(self) -> list[tuple[int, Subscriber]]:
        """The nearest of those with room and their places, starting after the one served last."""
        ready = [(place, subscriber) for place, subscriber in enumerate(self.subscribers) if subscriber.room]
        nearest = min((subscriber.locality for _, subscriber in ready), default=ANYWHERE)
        if nearest != ANYWHERE:
            ready = [entry for entry in ready if entry[1].locality == nearest]
        start = bisect.bisect_left(ready, self._turn, key=itemgetter(0))
        return ready[start:] + ready[:start]

    def _hand_over(self, subscriber: Subscriber, messages: list[Message], now: float) -> None:
        if self._remembers:
            messages = self._without_deferred(messages, now)
        if subscriber.sample_rate:
            messages = self._sample(messages, subscriber.sample_rate)
        if messages:
            self.delivered[subscriber.locality] += len(messages)
            subscriber.hand_over(messages, now)
            self._alarm.set(now + subscriber.msg_timeout)

    def _without_deferred(self, messages: list[Message], now: float) -> list[Message]:
        """After a restart a backlog may give what is not due yet."""
        ready = [message for message in messages if message.due <= now]
        if len(ready) < len(messages):
            for message in messages:
                if message.due > now:
                    self._defer(message)
        return ready

    def _sample(self, messages: list[Message], rate: int) -> list[Message]:
        # nsqd compares with ">": it keeps one percent more than asked for.
        kept = [message for message in messages if self._chance(100) <= rate]
        if self._remembers:
            chosen = set(map(id, kept))
            self.backlog.finished([message for message in messages if id(message) not in chosen])
        return kept

    # What subscribers answer.

    def finish(self, subscriber: Subscriber, message_ids: list[bytes]) -> list[tuple[bytes, NotInFlight]]:
        """Many in one go, which takes each a third of the time; those that are not in flight, and why."""
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
        if self._remembers:
            self.backlog.finished(messages)
        self.wake()

    def requeue(self, subscriber: Subscriber, message_id: bytes, delay: float) -> None:
        message = subscriber.in_flight.pop(message_id, None)
        if message is None:
            raise self._not_in_flight(message_id)
        subscriber.requeue_count += 1
        self.requeue_count += 1
        if delay > 0:
            message.due = self._clock.now() + delay
            self._defer(message)
            self.wake()
        else:
            self._put_back([message])

    def touch(self, subscriber: Subscriber, message_id: bytes) -> None:
        message = subscriber.in_flight.get(message_id)
        if message is None:
            raise self._not_in_flight(message_id)
        subscriber.touch(message, self._clock.now())
        # Usually later than it was; with a msg_timeout above max_msg_timeout it is earlier.
        self._alarm.set(message.deadline)

    def _not_in_flight(self, message_id: bytes) -> NotInFlight:
        if any(message_id in other.in_flight for other in self.subscribers):
            return NotInFlight("client does not own message")
        return NotInFlight("ID not in flight")

    # Subscribers come and go.

    def subscribe(self, subscriber: Subscriber) -> None:
        if self._max_consumers and len(self.subscribers) >= self._max_consumers:
            raise TooManyConsumers(
                f"channel consumers for {self.topic_name}:{self.name} exceeds limit of {self._max_consumers}"
            )
        self.subscribers.append(subscriber)
        self.wake()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Let it go. What it had in flight can no longer be answered and goes to the others at once."""
        if subscriber not in self.subscribers:
            return
        self.subscribers.remove(subscriber)
        orphans = list(subscriber.in_flight.values())
        subscriber.in_flight.clear()
        self.requeue_count += len(orphans)
        self._put_back(orphans)

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self.wake()

    def empty(self) -> None:
        """Drop every message: waiting, in flight and deferred."""
        self.backlog.clear()
        self._deferred.clear()
        for subscriber in self.subscribers:
            subscriber.in_flight.clear()
        self._alarm.cancel()
        self.wake()

    def close(self) -> None:
        """End it: subscribers are told, timers stop. Messages stay where they are."""
        self._alarm.cancel()
        for subscriber in self.subscribers:
            subscriber.sink.channel_closed()
        self.subscribers.clear()

    def shelve(self) -> Callable[[], None]:
        """nsqd stops: the backlog gets back what it gave away and nobody finished. The answer does that."""
        taken = [message for subscriber in self.subscribers for message in subscriber.in_flight.values()]
        self.close()
        taken += [message for _, _, message in sorted(self._deferred, key=itemgetter(0, 1))]
        self._deferred.clear()
        return functools.partial(self.backlog.close, taken)

    # Time passes.

    def _look_at_time(self) -> None:
        now = self._clock.now()
        for subscriber in self.subscribers:
            expired = subscriber.take_expired(now)
            self.timeout_count += len(expired)
            self._put_back(expired)
        self._put_back(self._take_due(now))
        next_deadline = min((s.next_deadline() for s in self.subscribers), default=float("inf"))
        self._alarm.set(min(next_deadline, self._deferred[0][0] if self._deferred else float("inf")))

    def _take_due(self, now: float) -> list[Message]:
        due: list[Message] = []
        while self._deferred and self._deferred[0][0] <= now and len(due) < _PORTION:
            due.append(heapq.heappop(self._deferred)[2])
        return due
