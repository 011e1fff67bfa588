"""The state that all kombu connections of a process to one broker share: a producer, and the declarations.

NSQ has no place for exchanges and bindings, so each process knows those that it has declared itself. That is
enough: a consumer declares its queues, and a topic gets its name without that knowledge.
"""

from __future__ import annotations

import atexit
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

from nsq.contrib.celery.envelope import Envelope
from nsq.contrib.celery.names import nsq_name, takes, topic_of_exchange
from nsq.contrib.celery.settings import BrokerSettings
from nsq.errors import ConnectionFailed, InvalidMessage, NsqError
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.log import Logger
from nsq.producer.producer import Producer
from nsq.wire.frames import Published
from nsq.wire.names import EPHEMERAL

log = Logger("nsq.celery")

#: Seconds between two attempts to reach the broker.
_PAUSE = 0.2
#: Seconds for the last publishes when the program ends.
_LAST_PUBLISHES = 2.0
#: The largest ``max_msg_size``.
_LARGEST = 2**31 - 1


@dataclass
class Queue:
    name: str
    transient: bool = False
    """Whether it ends with its consumer: auto_delete, exclusive or not durable."""
    lifetime: float | None = None
    """Seconds after which a message is of no use any more (x-message-ttl)."""
    bindings: dict[str, set[str]] = field(default_factory=dict)
    """The routing keys by exchange."""

    @property
    def channel(self) -> str:
        return nsq_name(self.name, transient=self.transient)


class Broker:
    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.exchanges: dict[str, str] = {}
        """The types of the exchanges by name."""
        self.queues: dict[str, Queue] = {}
        self.created: set[tuple[str, str]] = set()
        """The channels of durable queues that this process has created."""
        self.told_limits: set[tuple[str, float]] = set()
        """The queues whose limit for tasks with acks_late has been logged, with that limit."""
        self._last_listed: tuple[str, ...] = ()  # by the nsqlookupds
        # What nsqd has delivered it also takes back, whatever our own limit is: see ``publish`` for that.
        config = replace(settings.config, max_msg_size=_LARGEST)
        self.producer = Producer(
            nsqd=settings.nsqds, nsqlookupd=settings.lookupds, config=config, transport=settings.transport
        )
        atexit.register(self.producer.close, _LAST_PUBLISHES)

    # Reaching it.

    def reach(self, seconds: float) -> tuple[str, ...]:
        """Return the nsqds once one answers, within ``seconds``, or raise the reason.

        An nsqd that restarts is awaited, so that publishers need not fail for that.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                nsqds = self.settings.nsqds + self._listed()
                if not any(each.state == "open" for each in self.producer.stats().connections):
                    self._ping(nsqds, max(deadline - time.monotonic(), _PAUSE))
                return nsqds
            except NsqError as error:
                if not error.retry or time.monotonic() + _PAUSE >= deadline:
                    raise
            time.sleep(_PAUSE)

    def _listed(self) -> tuple[str, ...]:
        """Return the nsqds that the nsqlookupds list. Consumers connect to all of them: the first message of
        a new topic may be on any, and remote control does not wait for a lookup.
        """
        found: dict[str, None] = {}
        reasons: list[str] = []
        for address in self.settings.lookupds:
            try:
                nodes = NsqlookupdApi.of(address, self.settings.config).nodes()
                found.update(dict.fromkeys(node.tcp_address for node in nodes))
            except NsqError as error:
                reasons.append(str(error))
        if found:
            self._last_listed = tuple(found)
        elif self.settings.lookupds and not self._last_listed:
            raise ConnectionFailed("; ".join(reasons) or "no nsqlookupd lists an nsqd")
        return self._last_listed

    def _ping(self, nsqds: tuple[str, ...], seconds: float) -> None:
        reasons: list[NsqError] = []
        for address in nsqds:
            try:
                return self.producer.ping(address, timeout=seconds / len(nsqds))
            except NsqError as error:
                reasons.append(error)
        raise reasons[0]

    # Topics.

    def queue(self, name: str) -> Queue:
        return self.queues.get(name) or Queue(name)

    def topic_to_publish(self, envelope: Envelope) -> str:
        if envelope.exchange:
            return topic_of_exchange(envelope.exchange)
        # The queue of a result or a reply is unknown here; it is transient.
        known = self.queues.get(envelope.routing_key)
        transient = envelope.transient or envelope.is_reply if known is None else known.transient
        return nsq_name(envelope.routing_key, transient=transient)

    def topics_to_consume(self, queue: Queue) -> list[str]:
        topics = [topic_of_exchange(name) for name in queue.bindings]
        # A queue that exists for its bindings and ends with its consumer gets no messages of its own.
        if not topics or not queue.transient:
            topics.append(nsq_name(queue.name, transient=queue.transient))
        return list(dict.fromkeys(topics))

    def takes(self, queue: Queue, envelope: Envelope) -> bool:
        """Whether the queue gets this message of one of its topics."""
        if not envelope.exchange:
            return envelope.routing_key == queue.name
        keys = queue.bindings.get(envelope.exchange)
        return keys is not None and takes(
            self.exchanges.get(envelope.exchange, "direct"), keys, envelope.routing_key
        )

    # Publishing.

    def publish(self, envelope: Envelope) -> None:
        topic, body = self.topic_to_publish(envelope), envelope.encode()
        most = self.settings.config.max_msg_size
        if len(body) > most:
            raise InvalidMessage(f"a message has {len(body)} bytes; max_msg_size, to be nsqd's, is {most}")
        if envelope.exchange and topic.endswith(EPHEMERAL):
            # Events and remote control: the worker's loop must not wait for them.
            with suppress(NsqError):
                self.producer.publish_async(topic, body, block=False).add_done_callback(_note_loss)
        else:
            self.producer.publish(topic, body, defer=self.deferral(envelope))

    def deferral(self, envelope: Envelope) -> float | None:
        """Return the seconds until a task is due, but no more than nsqd allows: a worker then sends it on."""
        left = envelope.seconds_left(time.time())
        return min(left, self.settings.config.max_defer) if left > 0 else None


def _note_loss(future: Future[Published]) -> None:
    error = future.exception()
    if error is not None:
        log.debug("an event or a reply was not published: %s", error)


# One for each broker.

_brokers: dict[BrokerSettings, Broker] = {}
_lock = threading.Lock()


def broker_of(settings: BrokerSettings) -> Broker:
    # The lock only for the first one: a fork may copy it while another thread holds it.
    found = _brokers.get(settings)
    if found is None:
        with _lock:
            found = _brokers.get(settings) or _brokers.setdefault(settings, Broker(settings))
    return found


def close_brokers() -> None:
    """Close the producers of this process. A later connection makes new ones."""
    with _lock:
        while _brokers:
            _, broker = _brokers.popitem()
            atexit.unregister(broker.producer.close)
            broker.producer.close(_LAST_PUBLISHES)
