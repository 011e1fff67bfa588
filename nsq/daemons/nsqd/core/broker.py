"""All topics of one nsqd, with publishing, subscribing, creating and deleting."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from nsq.daemons.nsqd.core.backlog import (
    Backlog,
    Batch,
    EphemeralBacklog,
    MemoryBacklog,
    Message,
    MessageIds,
    StorageFailed,
)
from nsq.daemons.nsqd.core.bound import Bound
from nsq.daemons.nsqd.core.channel import Channel, Subscriber
from nsq.daemons.nsqd.core.clock import Clock, RoundRobin
from nsq.daemons.nsqd.core.deferred import Deferred, DeferredInMemory
from nsq.daemons.nsqd.core.latency import LatencyWindow, MeasuredChannel
from nsq.daemons.nsqd.core.topic import Topic, TopicStarting
from nsq.wire.names import is_ephemeral

#: A larger publish is split into parts of this size, or less to many channels; see ``Broker.at_once``. Other
#: clients are served between two parts.
AT_ONCE = 2000
#: The copy of a deferred message takes as much work as this many other copies.
_DEFERRED_WORK = 3
#: Seconds until a topic tries again to hand its messages to channels whose disk refused them.
_STORAGE_RETRY = 1.0


class Observer(Protocol):
    """Is notified when topics and channels are created and deleted: the registration with nsqlookupd."""

    def topic_created(self, topic: Topic) -> None:
        """Start the new topic, at once or when its channels are known."""

    def topic_deleted(self, topic: Topic) -> None: ...

    def channel_created(self, channel: Channel) -> None: ...

    def channel_deleted(self, channel: Channel) -> None: ...


class Unobserved:
    """The observer of an nsqd without registration."""

    def topic_created(self, topic: Topic) -> None:
        topic.start()

    def topic_deleted(self, topic: Topic) -> None:
        pass

    def channel_created(self, channel: Channel) -> None:
        pass

    def channel_deleted(self, channel: Channel) -> None:
        pass


class Backlogs(Protocol):
    """Makes the backlogs of topics and channels, and the places of deferred messages."""

    def backlog(self, topic: str, channel: str = "") -> Backlog: ...

    def deferred(self, topic: str, channel: str) -> Deferred:
        """Make the place for a channel's deferred messages, after its backlog."""

    def changed(self) -> None:
        """Note that topics or channels were created, deleted, paused or unpaused."""


class InMemory:
    """Makes backlogs for an nsqd without a disk, as in tests."""

    def __init__(self, mem_queue_size: int = 10_000) -> None:
        self._mem_queue_size = mem_queue_size

    def backlog(self, topic: str, channel: str = "") -> MemoryBacklog:
        if is_ephemeral(channel or topic):
            return EphemeralBacklog(self._mem_queue_size)
        return MemoryBacklog()

    def deferred(self, topic: str, channel: str) -> Deferred:
        return DeferredInMemory()

    def changed(self) -> None:
        """Do nothing: nothing survives a restart."""


class Draining(StorageFailed):
    """This nsqd is draining: it accepts no publishes, and creates no topics and channels. Clients should use
    another nsqd.
    """

    def __init__(self) -> None:
        super().__init__("exiting")


class Broker:
    """Publishes, subscribes, creates and deletes, for the TCP protocol and the HTTP API alike."""

    def __init__(
        self,
        clock: Clock,
        *,
        node_id: int = 0,
        backlogs: Backlogs | None = None,
        max_channel_consumers: int = 0,
        latency_percentiles: tuple[float, ...] = (),
        latency_window: float = 600.0,
        chance: Callable[[int], int] = random.randrange,
        bound: Bound | None = None,
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.observer: Observer = Unobserved()
        self.draining = False
        #: Who has stored a part of a large publish, and not yet the rest.
        self.unfinished: set[object] = set()
        self._clock = clock
        self.ids = MessageIds(node_id, clock.time_ns)
        self._backlogs = backlogs or InMemory()
        self._max_channel_consumers = max_channel_consumers
        self._latency_percentiles = latency_percentiles
        self._latency_window = latency_window
        self._chance = chance
        self.bound = bound
        self._woken: list[Channel] = []
        self._turns = RoundRobin(clock)

    def at_once(self, topic_name: str) -> int:
        """Return how many messages to publish to the topic before other clients are served."""
        topic = self.topics.get(topic_name)
        return topic.at_once(AT_ONCE) if topic is not None else AT_ONCE

    # Publishing. Raises StorageFailed, or TopicStarting: then the caller must publish again later. A drain
    # refuses no part of a publish of which an earlier part is stored (``begun``), but all others.

    def publish(self, topic_name: str, bodies: list[bytes], begun: bool = False) -> int:
        """Publish, and return the number of copies for all channels together, a measure of the work."""
        if self.draining and not begun:
            raise Draining
        topic = self.topics.get(topic_name) or self.topic(topic_name)
        if not topic.started:
            raise TopicStarting(topic)
        topic.put(Batch(self.ids.take(len(bodies)), bodies, self._clock.time_ns()))
        return len(bodies) * (len(topic.channels) or 1)

    def publish_deferred(
        self, topic_name: str, messages: list[tuple[float, bytes]], begun: bool = False
    ) -> int:
        """Publish messages with their delays, and return a measure of the work, as ``publish``."""
        if self.draining and not begun:
            raise Draining
        topic = self.topic(topic_name)
        if not topic.started:
            raise TopicStarting(topic)
        now, timestamp = self._clock.now(), self._clock.time_ns()
        ids = self.ids.take(len(messages))
        topic.put_deferred(
            [
                Message(each, body, timestamp, now + delay)
                for each, (delay, body) in zip(ids, messages, strict=True)
            ]
        )
        return _DEFERRED_WORK * len(messages) * (len(topic.channels) or 1)

    # Topics and channels.

    def topic(self, name: str) -> Topic:
        """Return the topic of that name; create it if it does not exist."""
        topic = self.topics.get(name)
        if topic is None:
            backlog = self._backlogs.backlog(name)
            kept = self.bound.cut_topic if self.bound is not None else None
            topic = Topic(name, backlog, self._make_channel, self._later, self._turns.ask, kept)
            self.topics[name] = topic
            self._backlogs.changed()
            self.observer.topic_created(topic)
        return topic

    def refuse_new(self, topic_name: str, channel_name: str = "") -> None:
        """Raise Draining if this nsqd drains and would have to create the topic or channel.

        The first channel of a topic with messages is created all the same: without it they could not leave.
        """
        if not self.draining:
            return
        topic = self.topics.get(topic_name)
        if topic is None:
            raise Draining
        first = not topic.channels and topic.depth
        if channel_name and channel_name not in topic.channels and not first:
            raise Draining

    def delete_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        for channel_name in list(topic.channels):
            self._end_channel(topic, channel_name)
        topic.backlog.delete()
        self._backlogs.changed()
        self.observer.topic_deleted(topic)

    def delete_channel(self, topic: Topic, name: str) -> None:
        self._end_channel(topic, name)
        if is_ephemeral(topic.name) and not topic.channels and topic.name in self.topics:
            self.delete_topic(topic.name)

    def _end_channel(self, topic: Topic, name: str) -> None:
        channel = topic.remove_channel(name)
        if channel is not None:
            channel.close()
            channel.empty()
            channel.backlog.delete()
            channel.deferred.delete()
            self._backlogs.changed()
            self.observer.channel_deleted(channel)

    def _make_channel(self, topic_name: str, name: str) -> Channel:
        kind = MeasuredChannel if self._latency_percentiles else Channel
        channel = kind(
            topic_name,
            name,
            self._backlogs.backlog(topic_name, name),
            self._backlogs.deferred(topic_name, name),
            self._clock,
            wake=self._wake,
            on_another_turn=self._turns.ask,
            chance=self._chance,
            max_consumers=self._max_channel_consumers,
        )
        if isinstance(channel, MeasuredChannel):
            channel.latency = LatencyWindow(self._clock, self._latency_window, self._latency_percentiles)
        self._backlogs.changed()
        self.observer.channel_created(channel)
        return channel

    def pause(self, thing: Topic | Channel, paused: bool) -> None:
        thing.pause(paused)
        self._backlogs.changed()

    def _later(self, action: Callable[[], None]) -> object:
        return self._clock.call_at(self._clock.now() + _STORAGE_RETRY, action)

    # Subscribing.

    def subscribe(self, topic_name: str, channel_name: str, subscriber: Subscriber) -> Channel:
        self.refuse_new(topic_name, channel_name)
        channel = self.topic(topic_name).channel(channel_name)
        channel.subscribe(subscriber)
        return channel

    def unsubscribe(self, channel: Channel, subscriber: Subscriber) -> None:
        channel.unsubscribe(subscriber)
        if channel.subscribers or not is_ephemeral(channel.name):
            return
        topic = self.topics.get(channel.topic_name)
        if topic is not None and topic.channels.get(channel.name) is channel:
            self.delete_channel(topic, channel.name)

    # Delivering: one round serves all channels that were woken since the last.

    def _wake(self, channel: Channel) -> None:
        if not self._woken:
            self._clock.call_soon(self._pump)
        self._woken.append(channel)

    def _pump(self) -> None:
        woken, self._woken = self._woken, []
        for channel in woken:
            channel.pump()
        if self.bound is not None:
            self.bound.cut(woken)

    def resume(self) -> None:
        """Continue where the disk could not be read: it may work again."""
        for topic in self.topics.values():
            topic.release()
            for channel in topic.channels.values():
                channel.wake()

    def close(self) -> list[tuple[Backlog, list[Message]]]:
        """Stop every timer and disconnect every subscriber. Returns all backlogs, each with its messages that
        were taken and not finished or deferred; channels come before their topic.
        """
        self._woken.clear()  # the backlogs now belong to the caller
        if self.bound is not None:
            self.bound.close()
        left: list[tuple[Backlog, list[Message]]] = []
        for topic in self.topics.values():
            taken = topic.close()
            left += [(channel.backlog, channel.close()) for channel in topic.channels.values()]
            left.append((topic.backlog, taken))
        return left
