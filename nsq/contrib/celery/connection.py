"""The subscriptions of one kombu connection, and the way of their messages to Celery's thread.

    consumers' threads   put messages into ``_arrivals`` and wake the event loop by a pipe
    Celery's thread      takes them out: the event loop in ``_on_readable``, gevent in ``drain_events``
    the keeper           touches what Celery holds, and shares out the prefetches

Nothing polls. An nsqd that is lost is dialed again by its consumer, and Celery does not notice.
"""

from __future__ import annotations

import io
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nsq
from nsq.contrib.celery.broker import Queue, broker_of
from nsq.contrib.celery.receiving import Delivery, QueueSubscription
from nsq.contrib.celery.settings import settings_of
from nsq.log import Logger

if TYPE_CHECKING:
    from nsq.contrib.celery.transport import Channel

log = Logger("nsq.celery")

#: The most messages handed to Celery before the event loop may do other things.
_AT_ONCE = 50
#: Seconds to connect when Celery gives none.
_CONNECT_TIMEOUT = 5.0
#: While a queue is purged: messages in flight, and seconds without one after which the queue counts as empty.
_PURGED_AT_ONCE, _PURGED = 2500, 1.0
#: Seconds between two looks at how the prefetch is shared, while several subscriptions share it.
_SHARING = 1.0
#: Seconds for a thread to end.
_TO_STOP = 10.0
#: The seconds of a message's timeout that the keeper reckons with before there was a message.
_NO_TIMEOUT = 240.0


class Connection:
    """One kombu connection, which ``Transport.establish_connection`` returns."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.connected = True
        self.connect_timeout = client.connect_timeout or _CONNECT_TIMEOUT
        self.broker = broker_of(settings_of(client))
        self.nsqds = self.broker.reach(self.connect_timeout)
        self.channels: set[Channel] = set()
        self.sharing = threading.Lock()
        """Held while prefetches are shared out: a consumer that is cancelled gets no share afterwards."""
        self.numbers = itertools.count(1)
        """Of the channels."""
        self._idle: dict[tuple[str, str], QueueSubscription] = {}  # by queue and topic: without a consumer
        self._all: set[QueueSubscription] = set()
        self._arrivals: queue.SimpleQueue[tuple[Channel, Delivery]] = queue.SimpleQueue()
        # The two ends of a pipe, once an event loop waits for messages. Files, not numbers: a closed one
        # raises, where its number may be another file's by then.
        self._pipe: tuple[io.FileIO, io.FileIO] | None = None
        self._woken = False
        self._loop: Any = None
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False ends the keeper
        self._keeper: threading.Thread | None = None
        self._shortest_timeout = _NO_TIMEOUT  # of a message
        self._pid = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child: the connection belongs to its parent."""
        return os.getpid() != self._pid

    # Subscriptions.

    def create(self, queue: Queue) -> None:
        """Make nsqd keep the queue's messages: a durable queue's for ever, a transient one's as long as this
        connection lives.
        """
        if queue.transient:
            for topic in self.broker.topics_to_consume(queue):
                if not any(each.queue is queue and each.topic == topic for each in self._all):
                    subscription = self._new(queue, topic)
                    self._idle[queue.name, topic] = subscription
                    subscription.wait_until_everywhere(self.connect_timeout)
            return
        for topic in self.broker.topics_to_consume(queue):
            # The topic of the queue's own name keeps messages also without a channel.
            if topic != queue.channel and (topic, queue.channel) not in self.broker.created:
                subscription = self._new(queue, topic)
                try:
                    if subscription.wait_until_everywhere(self.connect_timeout):
                        self.broker.created.add((topic, queue.channel))
                finally:
                    self._stop(subscription)

    def subscribe(self, queue: Queue) -> list[QueueSubscription]:
        subscriptions = [
            self._idle.pop((queue.name, topic))
            if (queue.name, topic) in self._idle
            else self._new(queue, topic)
            for topic in self.broker.topics_to_consume(queue)
        ]
        for subscription in subscriptions:
            subscription.wait_until_exists(self.connect_timeout)
        return subscriptions

    def release(self, subscription: QueueSubscription) -> None:
        """Take a subscription back from a consumer that has been cancelled, and keep it for another one.

        Celery may still answer its messages, and a transient queue would end with it.
        """
        subscription.cancel()
        self._idle[subscription.queue.name, subscription.topic] = subscription

    def drop_idle(self, name: str) -> None:
        for place in [place for place in self._idle if place[0] == name]:
            self._stop(self._idle.pop(place))

    def _new(self, queue: Queue, topic: str) -> QueueSubscription:
        subscription = QueueSubscription(self.broker, queue, topic, self.nsqds)
        self._all.add(subscription)
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="nsq-celery-keeper", daemon=True)
            self._keeper.start()
        return subscription

    def _stop(self, subscription: QueueSubscription) -> None:
        self._all.discard(subscription)
        subscription.stop()

    # Touching and sharing, on a thread of its own.

    def share_soon(self) -> None:
        self._requests.put(True)

    def _keep(self) -> None:
        pause = 0.0
        while True:
            with suppress(queue.Empty):
                go_on = self._requests.get(timeout=pause)
                while go_on and not self._requests.empty():  # one round serves all requests
                    go_on = self._requests.get()
                if not go_on:
                    return
            pause = self._shortest_timeout / 4
            for channel in self.channels.copy():
                try:
                    channel.held.touch()
                    channel.share()
                    if channel.shares:
                        pause = min(pause, _SHARING)
                except Exception:  # the others still need the keeper
                    log.exception("touching messages, or sharing a prefetch out, has failed")

    # Messages, on their way to Celery's thread.

    def arrived(self, channel: Channel, delivery: Delivery) -> None:
        """Pass a message on. Called by the consumers' threads."""
        self._arrivals.put((channel, delivery))
        self.wake()
        if delivery.timeout < self._shortest_timeout:
            self._shortest_timeout = delivery.timeout
            self.share_soon()  # the keeper touches more often from now on

    def wake(self) -> None:
        """Wake the event loop. Any thread may call this."""
        if self._pipe is not None and not self._woken:
            self._woken = True
            with suppress(ValueError):  # closed
                self._pipe[1].write(b"\0")

    def register(self, loop: Any) -> None:
        """Have the event loop call us when messages arrive."""
        self._loop = loop
        if self._pipe is None:
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
            self._pipe = io.FileIO(reader, "rb"), io.FileIO(writer, "wb")
        loop.add_reader(self._pipe[0].fileno(), self._on_readable, self._pipe[0])
        if not hasattr(loop, "_waker"):
            _wake_for_other_threads(loop, self.wake)
        self._woken = False
        self.wake()

    def _on_readable(self, reader: io.FileIO) -> None:
        reader.read(64)
        # First this, then the queue: a message that arrives from now on wakes the loop again.
        self._woken = False
        for _ in range(_AT_ONCE):
            try:
                channel, delivery = self._arrivals.get_nowait()
            except queue.Empty:
                return
            channel.deliver(delivery)
        self.wake()

    def drain_events(self, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError when none arrives in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                channel, delivery = self._arrivals.get(timeout=left)
            except queue.Empty:
                raise TimeoutError("no message arrived in time") from None
            if channel.deliver(delivery):
                return

    # The end.

    def close(self) -> None:
        """End everything; in a forked child, only let go of it."""
        if not self.connected:
            return
        self.connected = False
        if not self.inherited:
            for channel in self.channels.copy():
                channel.close()
            self._requests.put(False)
            if self._keeper is not None:
                self._keeper.join(_TO_STOP)
            stopping = [
                threading.Thread(target=each.stop, name=f"nsq-celery-stop-{each.name}", daemon=True)
                for each in self._all
            ]
            for thread in stopping:  # together: each may wait for an nsqd that does not answer
                thread.start()
            for thread in stopping:
                thread.join(_TO_STOP)
        if self._pipe is not None:
            number = self._pipe[0].fileno()
            if not self.inherited and number in self._loop.readers:
                self._loop.remove_reader(number)
            for end in self._pipe:
                end.close()


def _wake_for_other_threads(loop: Any, wake: Callable[[], None]) -> None:
    """Wake kombu's event loop, before 5.7, also for calls from other threads: acks of the threads pool would
    wait for the next timer, up to a second.
    """
    original, main = loop.call_soon, threading.get_ident()

    def call_soon(callback: Any, *args: Any) -> Any:
        called = original(callback, *args)
        if threading.get_ident() != main:
            wake()
        return called

    loop.call_soon = call_soon


def purge(connection: Connection, topic: str, channel: str) -> int:
    """Take the messages that wait in a channel; return how many."""
    count = itertools.count()
    came = queue.SimpleQueue[None]()

    def take(_: nsq.Message) -> None:
        next(count)
        came.put(None)

    settings = connection.broker.settings
    consumer = nsq.Consumer(
        topic,
        channel,
        nsqd=connection.nsqds,
        nsqlookupd=settings.lookupds,
        config=settings.config,
        transport=settings.transport,
    )
    consumer.set_max_in_flight(_PURGED_AT_ONCE)
    consumer.add_handler(take)
    with consumer:
        consumer.wait_until_connected(connection.connect_timeout, connections=len(connection.nsqds))
        with suppress(queue.Empty):
            while True:
                came.get(timeout=_PURGED)
    return next(count)
