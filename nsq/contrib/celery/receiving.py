"""Receives a queue's messages, and keeps those that Celery holds.

    QueueSubscription   one nsq.Consumer on one topic and channel; decides what becomes of each message
    Held           the messages that Celery holds by their tags: acknowledges, touches and adopts them

A message that Celery holds may be delivered again: its connection was lost, or its time was up. If this
process gets it, the new delivery takes the place of the old one (it is adopted), and Celery hears nothing.
If Celery has acknowledged it meanwhile, it is finished at once. So neither runs twice here.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from nsq.consumer.consumer import Consumer
from nsq.contrib.celery.broker import Broker, Queue
from nsq.contrib.celery.envelope import Envelope
from nsq.contrib.celery.names import nsq_name
from nsq.errors import AlreadyResponded, ConnectionFailed, InvalidMessage, NsqError
from nsq.log import Logger
from nsq.message import Message
from nsq.wire.frames import Published
from nsq.wire.names import EPHEMERAL

log = Logger("nsq.celery")

#: The subscription, the nsqd, and its id of a message, which it keeps when it delivers the message again. The
#: same id comes over other channels of the topic too.
Key = tuple[str, str, bytes]

#: How many acknowledged messages are remembered, in case their nsqd did not hear of it.
_MOST_DONE = 10_000
#: Seconds by which the clocks of an nsqd and a worker may differ.
_CLOCKS_DIFFER = 1.0
#: Seconds by which Celery may have a task before its time: a hop would take about as long.
_EARLY = 0.05
#: Seconds until a message that could not be handed on is delivered again.
_AGAIN = 5.0
#: The least seconds that a touch must gain, else the message has reached --max-msg-timeout.
_LEAST_GAIN = 0.01
#: Seconds to wait for further nsqds when one is connected: they may be down.
_LAST_NSQDS = 1.0
#: Seconds for a consumer to send its last answers.
_TO_STOP = 2.0


@dataclass
class Delivery:
    tag: int
    consumer_tag: str
    key: Key
    message: Message
    timeout: float
    """The seconds that nsqd gives the message between two touches."""
    envelope: Envelope
    queue: Queue
    at_limit: bool = False
    """Whether nsqd gives it no more time."""
    asked_back: bool = False
    """Whether its task asks to be put back, by ``Reject(requeue=True)``: it has not lost its process."""


class Held:
    """The messages that one kombu channel holds. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three tables, never a call
        self._by_tag: dict[int, Delivery] = {}
        self._by_key: dict[Key, Delivery] = {}
        self._done: dict[Key, None] = {}  # acknowledged, the oldest first
        self._tags = itertools.count(1)

    def __len__(self) -> int:
        return len(self._by_tag)

    def admit(
        self, key: Key, message: Message, envelope: Envelope, queue: Queue, consumer_tag: str
    ) -> Delivery:
        timeout = message.expires_at - message.received_at
        delivery = Delivery(next(self._tags), consumer_tag, key, message, timeout, envelope, queue)
        with self._lock:
            self._by_tag[delivery.tag] = self._by_key[key] = delivery
        return delivery

    def adopt(self, key: Key, message: Message) -> bool:
        """Take a new delivery of a message that is held or was acknowledged; return whether it is one."""
        with self._lock:
            held = self._by_key.get(key)
            done = held is None and key in self._done
            if held is not None:
                held.message = message
                held.at_limit = False
        if done:
            message.finish()
        return held is not None or done

    def get(self, tag: int) -> Delivery | None:
        return self._by_tag.get(tag)

    def release(self, tag: int) -> Delivery | None:
        """Forget a message, so that its next delivery is a new one; None for an unknown tag."""
        with self._lock:
            delivery = self._by_tag.pop(tag, None)
            if delivery is not None:
                self._by_key.pop(delivery.key, None)
        return delivery

    def finish(self, tag: int) -> None:
        """Acknowledge a message. If its nsqd does not hear of it, its next delivery will be finished."""
        delivery = self.release(tag)
        if delivery is None:
            return
        with self._lock:
            self._done[delivery.key] = None
            if len(self._done) > _MOST_DONE:
                del self._done[next(iter(self._done))]
        with suppress(AlreadyResponded):
            delivery.message.finish()

    def give_back(self, tag: int) -> None:
        """Have nsqd deliver a message again at once, to any consumer."""
        delivery = self.release(tag)
        if delivery is not None:
            with suppress(AlreadyResponded):  # nsqd has it again anyway
                delivery.message.requeue(0.0, backoff=False)

    def touch(self) -> None:
        """Touch the messages that have used half of their time."""
        for delivery in list(self._by_tag.copy().values()):
            message = delivery.message
            if delivery.at_limit or message.time_left > delivery.timeout / 2:
                continue
            before = message.expires_at
            with suppress(AlreadyResponded):
                message.touch()
            delivery.at_limit = message.expires_at - before < _LEAST_GAIN

    def tags(self) -> list[int]:
        return list(self._by_tag.copy())


class QueueSubscription:
    """A consumer of one topic for one queue. At first it takes no messages: it only makes nsqd keep them."""

    def __init__(self, broker: Broker, queue: Queue, topic: str, nsqds: tuple[str, ...]) -> None:
        self.queue = queue
        self.topic = topic
        self.name = f"{topic}/{queue.channel}"
        self._broker = broker
        self._began = time.time() - _CLOCKS_DIFFER
        self._allowed = 0
        # Where messages go; None: back to nsqd.
        self._held: Held | None = None
        self._consumer_tag = ""
        self._arrived: Callable[[Delivery], None] = lambda _: None
        self.on_message: Callable[[], None] = lambda: None
        """Called for each message before anything else."""
        self.consumer = Consumer(
            topic,
            queue.channel,
            nsqd=nsqds,
            nsqlookupd=broker.settings.lookupds,
            config=broker.settings.config,
            transport=broker.settings.transport,
            max_in_flight=1,
        )
        self._nsqds = len(nsqds)
        self.consumer.add_handler(self._receive)
        self.consumer.pause()
        self.consumer.start()

    def wait_until_exists(self, seconds: float) -> None:
        """Wait until an nsqd has the channel. Raises ConnectionFailed."""
        if not self.consumer.wait_until_connected(seconds):
            raise ConnectionFailed(f"{self.name}: {self.consumer.health().summary}")

    def wait_until_everywhere(self, seconds: float) -> bool:
        """Wait until all nsqds have the channel, only a moment for the last ones. Return whether they do."""
        self.wait_until_exists(seconds)
        return self.consumer.wait_until_connected(min(seconds, _LAST_NSQDS), connections=self._nsqds)

    @property
    def longest_delivery(self) -> float:
        """The seconds that nsqd allows for one delivery, however often it is touched (--max-msg-timeout)."""
        # The consumer's reports do not say it.
        conns = self.consumer._engine.connections.table.values()
        return min((conn.deliveries.max_msg_timeout for conn in conns), default=math.inf)

    def deliver_to(self, held: Held, consumer_tag: str, arrived: Callable[[Delivery], None]) -> None:
        self._consumer_tag, self._arrived = consumer_tag, arrived
        self._held = held

    def cancel(self) -> None:
        """Take no more messages. Those that Celery holds can still be answered."""
        self._held = None
        self.allow(0)

    def allow(self, in_flight: int) -> None:
        """Set how many messages may be here at once."""
        if in_flight == self._allowed:
            return
        if in_flight:
            self.consumer.set_max_in_flight(in_flight)
        if not in_flight:
            self.consumer.pause()
        elif not self._allowed:
            self.consumer.resume()
        self._allowed = in_flight

    def stop(self) -> None:
        self.consumer.stop(_TO_STOP)

    # A message, on the consumer's handler thread.

    def _receive(self, message: Message) -> None:
        message.disable_auto_response()
        self.on_message()
        held = self._held
        try:
            if held is None:
                message.requeue(0.0, backoff=False)
            else:
                key = self.name, message.nsqd_address, message.id
                if not held.adopt(key, message):
                    self._decide(held, key, message)
        except AlreadyResponded:
            log.debug("%r needs no answer any more", message)
        except NsqError as error:
            log.warning("%r is delivered again in %g s: %s", message, _AGAIN, error)
            message.requeue(_AGAIN, backoff=False)

    def _decide(self, held: Held, key: Key, message: Message) -> None:
        try:
            envelope = Envelope.decode(message.body)
            if in_worker():
                envelope.check_task()
        except InvalidMessage as error:
            topic = dead_letters(self.topic)
            self._broker.producer.publish(topic, message.body)
            message.finish()
            log.error("%r of %s goes to the topic %s: %s", message, self.topic, topic, error)
            return
        now = time.time()
        if not self._broker.takes(self.queue, envelope) or self._is_stale(message, envelope, now):
            message.finish()
        elif envelope.seconds_left(now) > _EARLY and not self.queue.transient:
            # Deferred for longer than nsqd allows at once. A requeue would raise ``attempts``, and nsqd would
            # cut its delay. If the process dies before the FIN, the message arrives twice.
            address_to(self.queue, envelope)
            defer = self._broker.deferral(envelope)
            self._broker.producer.publish(own_topic(self.queue), envelope.encode(), defer=defer)
            message.finish()
        else:  # a transient queue's task that is not due yet: Celery waits for it
            self._arrived(held.admit(key, message, envelope, self.queue, self._consumer_tag))

    def _is_stale(self, message: Message, envelope: Envelope, now: float) -> bool:
        """Whether the message is too old, or older than the queue: nsqd keeps what a topic got before."""
        published = message.timestamp / 1e9
        lifetimes = [each for each in (envelope.lifetime, self.queue.lifetime) if each is not None]
        if lifetimes and not envelope.is_task and now - published > min(lifetimes):
            return True
        return self.queue.transient and bool(envelope.exchange) and published < self._began


# Messages that go back to the same queue: straight to it, as other queues of its exchange have had theirs.


def own_topic(queue: Queue) -> str:
    """Return the topic of a durable queue's own name."""
    return nsq_name(queue.name, transient=False)


def address_to(queue: Queue, envelope: Envelope) -> None:
    envelope.exchange, envelope.routing_key = "", queue.name


def in_worker() -> bool:
    """Whether this is a Celery worker, and no other program that uses kombu."""
    return "celery.worker.consumer.consumer" in sys.modules


def dead_letters(topic: str) -> str:
    """Return the topic of messages that no worker can work on."""
    return f"{topic.removesuffix(EPHEMERAL)}.dead"


def requeue_after_death(broker: Broker, delivery: Delivery) -> None:
    """Publish a task again whose process has died, with its count of deaths, or as a dead letter.

    Does not wait: the message is finished once nsqd has the new one.
    """
    envelope, message = delivery.envelope, delivery.message
    deaths = envelope.count_death()
    most = broker.settings.max_deaths
    again = not most or deaths <= most
    address_to(delivery.queue, envelope)
    topic = own_topic(delivery.queue) if again else dead_letters(own_topic(delivery.queue))
    if not again:
        log.error(
            "task %s has lost its process %d times, max_deaths is %d: it goes to the topic %s",
            envelope.headers.get("id"), deaths, most, topic,
        )  # fmt: skip
    _replace(broker, message, topic, envelope.encode())


def publish_dead(broker: Broker, delivery: Delivery, reason: str) -> None:
    """Publish a message that cannot be a task as a dead letter. Does not wait."""
    topic = dead_letters(own_topic(delivery.queue))
    log.error("%r goes to the topic %s: %s", delivery.message, topic, reason)
    _replace(broker, delivery.message, topic, delivery.message.body)


def _replace(broker: Broker, message: Message, topic: str, body: bytes) -> None:
    """Publish a message's successor, then finish the message."""
    try:
        future = broker.producer.publish_async(topic, body, block=False)
    except NsqError as error:
        _put_back(message, error)
    else:
        future.add_done_callback(partial(_after_publish, message))


def _after_publish(message: Message, future: Future[Published]) -> None:
    error = future.exception()
    if isinstance(error, NsqError):
        _put_back(message, error)
    else:
        with suppress(AlreadyResponded):
            message.finish()


def _put_back(message: Message, error: NsqError) -> None:
    log.warning("%r could not be published again, so that nsqd delivers it again: %s", message, error)
    with suppress(AlreadyResponded):
        message.requeue(_AGAIN, backoff=False)
