"""The kombu transport: what Celery calls, in terms of NSQ.

Channel     exchanges, queues, consumers, prefetch, acknowledgements
Transport   what kombu makes of a URL; one for each kombu connection
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from celery import current_app
from celery.exceptions import Reject
from kombu.transport import base

import nsq
from nsq.consumer.rdy import Backoff, RdyWindows, exponential
from nsq.contrib.celery.broker import Broker, Queue
from nsq.contrib.celery.connection import Connection, purge
from nsq.contrib.celery.envelope import Envelope
from nsq.contrib.celery.receiving import (
    Delivery,
    Held,
    QueueSubscription,
    in_worker,
    publish_dead,
    requeue_after_death,
)
from nsq.contrib.celery.settings import settings_of, split_secret
from nsq.errors import ConfigError, ConnectionFailed, PublishFailed, PublishUncertain, UsageError
from nsq.log import Logger
from nsq.transport.addresses import is_unix, split

log = Logger("nsq.celery")

#: In flight where Celery sets no limit, and for consumers that acknowledge nothing.
_UNLIMITED, _NO_ACK = 2500, 500
#: Seconds in which nsqd has answered ``basic_get`` if there is a message.
_GET_PATIENCE = 1.0
#: After so many seconds without a message a subscription keeps only one place of the prefetch, and while
#: there are more subscriptions than places, one has a place for so long.
_IDLE, _TURN = 2.0, 10.0
#: What Celery raises for a message that is no task. Others are no fault of the message, such as OSError.
_FAULTS_OF_A_MESSAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
#: Arguments of queues that cannot be kept, with the reasons.
_REFUSED = {
    "x-max-priority": "nsq has no priorities: use one queue for each, and more workers for the urgent one",
    "x-max-length": "nsq cannot limit a queue",
    "x-max-length-bytes": "nsq cannot limit a queue",
    "x-dead-letter-exchange": "nsq drops rejected tasks: have the task publish to another queue instead",
    "x-single-active-consumer": "nsq gives messages to all workers of a queue",
}


class Channel(base.StdChannel):  # type: ignore[misc]
    """A kombu channel. The prefetch, and the messages that Celery holds, belong to it."""

    Message = base.Message

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.channel_id = number
        self.no_ack_consumers: set[str] = set()
        self.held = Held()
        self.closed = False
        self._broker = connection.broker
        self._prefetch = 0
        self._callbacks: dict[str, Callable[[Any], object]] = {}
        self._subscriptions: dict[str, list[QueueSubscription]] = {}  # by consumer tag
        self._got: dict[str, list[Any]] = {}  # messages for ``basic_get``, by queue
        self._windows = RdyWindows(0, Backoff(exponential(0), 0.0), random.choice, _IDLE, _TURN)

    # Exchanges and queues.

    def exchange_declare(
        self,
        exchange: str = "",
        type: str = "direct",  # noqa: A002
        **_: Any,
    ) -> None:
        if type not in Transport.implements.exchange_type:
            raise UsageError(f"exchange {exchange!r} is of type {type!r}; nsq has direct, topic and fanout")
        if exchange:
            self._broker.exchanges[exchange] = type

    def exchange_delete(self, exchange: str, **_: Any) -> None:
        self._broker.exchanges.pop(exchange, None)

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        return base.to_rabbitmq_queue_arguments(arguments, **options)  # type: ignore[no-any-return]

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[str, int, int]:
        """Note the queue. The counts are zeros: nsqd tells them over HTTP only."""
        arguments = arguments or {}
        for name, reason in _REFUSED.items():
            if arguments.get(name) not in (None, False):  # "" is a name, too: that of the default exchange
                raise UsageError(f"queue {queue!r} has {name}; {reason}")
        name = queue or f"nsq.gen-{random.getrandbits(96):024x}"
        if not passive:
            known = self._broker.queues.setdefault(name, Queue(name))
            known.transient = auto_delete or exclusive or not durable
            lifetime = arguments.get("x-message-ttl")
            known.lifetime = None if lifetime is None else lifetime / 1000
        return name, 0, 0

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        """Bind, and have nsqd keep messages for the queue from now on."""
        if exchange:
            known = self._broker.queues.setdefault(queue, Queue(queue))
            known.bindings.setdefault(exchange, set()).add(routing_key)
            self.connection.create(known)

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        self._broker.queue(queue).bindings.get(exchange, set()).discard(routing_key)

    def queue_delete(self, queue: str = "", **_: Any) -> int:
        """Forget the queue here. On nsqd a durable queue stays; nsqadmin deletes it."""
        self._broker.queues.pop(queue, None)
        self.connection.drop_idle(queue)
        return 0

    def queue_purge(self, queue: str = "", **_: Any) -> int:
        """Take the messages that wait; those that workers hold or that are deferred stay. Return how many."""
        known = self._broker.queue(queue)
        return sum(
            [purge(self.connection, topic, known.channel) for topic in self._broker.topics_to_consume(known)]
        )

    # Publishing.

    def prepare_message(
        self,
        body: str | bytes,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> Envelope:
        if priority:
            raise UsageError(f"priority is {priority!r}; nsq has no priorities: use one queue for each")
        return Envelope(body, content_type, content_encoding, headers or {}, properties or {})

    def basic_publish(self, message: Envelope, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        message.exchange, message.routing_key = exchange or "", routing_key or ""
        self._broker.publish(message)

    # Consuming.

    def basic_qos(self, prefetch_size: int, prefetch_count: int, a_global: bool = False) -> None:
        self._prefetch = prefetch_count
        self.connection.share_soon()

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        consumer_tag: str = "",
        callback: Callable[[Any], object] = lambda _: None,
        **_: Any,
    ) -> str:
        tag = consumer_tag or f"nsq-{random.getrandbits(64):016x}"
        self._callbacks[tag] = callback
        if no_ack:
            self.no_ack_consumers.add(tag)
        subscriptions = self.connection.subscribe(self._broker.queue(queue))
        self._subscriptions[tag] = subscriptions
        if not no_ack:
            _check_time_limits(self._broker, queue, min(each.longest_delivery for each in subscriptions))
        for subscription in subscriptions:
            subscription.deliver_to(self.held, tag, lambda delivery: self.connection.arrived(self, delivery))
            if no_ack:
                subscription.allow(_NO_ACK)
            else:
                with self.connection.sharing:
                    self._windows.connected(subscription, _UNLIMITED, time.monotonic())
                subscription.on_message = lambda one=subscription: self._note_message(one)  # type: ignore[misc]
        self.share()
        self.connection.share_soon()
        return tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        self._callbacks.pop(consumer_tag, None)
        for subscription in self._subscriptions.pop(consumer_tag, []):
            with self.connection.sharing:
                self._windows.disconnected(subscription)
            self.connection.release(subscription)
        self.connection.share_soon()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Return a message, or None if nsqd sends none within a second. Celery never calls this."""
        messages = self._got.setdefault(queue, [])
        if not messages:
            tag = self.basic_consume(queue, no_ack, f"get-{queue}", messages.append)
            try:
                with suppress(TimeoutError):
                    self.connection.drain_events(_GET_PATIENCE)
            finally:
                self.basic_cancel(tag)
        return messages.pop(0) if messages else None

    def deliver(self, delivery: Delivery) -> bool:
        """Hand a message to Celery, on its thread; return whether a consumer took it."""
        callback = self._callbacks.get(delivery.consumer_tag)
        if callback is None:
            self.held.give_back(delivery.tag)
            return False
        if delivery.consumer_tag in self.no_ack_consumers:
            self.held.finish(delivery.tag)
        envelope = delivery.envelope
        message = self.Message(
            body=envelope.body,
            delivery_tag=delivery.tag,
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            headers=envelope.headers,
            properties=envelope.properties,
            delivery_info={
                "exchange": envelope.exchange,
                "routing_key": envelope.routing_key,
                "consumer_tag": delivery.consumer_tag,
                "redelivered": delivery.message.attempts > 1,
            },
            channel=self,
        )
        try:
            callback(message)
        except _FAULTS_OF_A_MESSAGE as error:
            # Celery's own error would end the worker, and the message would come to the next one, and so on.
            if not in_worker() or delivery.consumer_tag in self.no_ack_consumers:
                raise
            self.bury(delivery.tag, error)
        return True

    def bury(self, delivery_tag: int, error: Exception) -> None:
        """Make a message a dead letter on which Celery has failed, unless it is acknowledged."""
        log.error("Celery has failed on a message", exc_info=error)
        delivery = self.held.release(delivery_tag)
        if delivery is not None:
            publish_dead(self._broker, delivery, repr(error))
        self._make_room()

    # Answers. They raise nothing: an error that is no connection error would end the worker.

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        tags = [tag for tag in self.held.tags() if tag <= delivery_tag] if multiple else [delivery_tag]
        for tag in tags:
            self.held.finish(tag)
        self._make_room()

    def basic_reject(self, delivery_tag: int, requeue: bool = False, **_: Any) -> None:
        delivery = self.held.get(delivery_tag)
        if delivery is None or not requeue:
            self.held.finish(delivery_tag)
        elif delivery.envelope.is_task and not delivery.queue.transient and not delivery.asked_back:
            self.held.release(delivery_tag)
            requeue_after_death(self._broker, delivery)
        else:
            self.held.give_back(delivery_tag)
        self._make_room()

    def expect_reject(self, delivery_tag: int) -> None:
        """Note that the next reject of a message is its task's own wish."""
        delivery = self.held.get(delivery_tag)
        if delivery is not None:
            delivery.asked_back = True

    def basic_recover(self, requeue: bool = False) -> None:
        for tag in self.held.tags():
            self.held.give_back(tag)

    def flow(self, active: bool = True) -> None:
        """Do nothing: ``basic_qos`` limits the messages."""

    # The prefetch.

    def _note_message(self, subscription: QueueSubscription) -> None:
        window = self._windows.nsqds.get(subscription)
        if window is not None:
            now = time.monotonic()
            silent = now - window.last_message_at
            window.last_message_at = window.has_sent_at = now
            if silent >= _IDLE:
                self.connection.share_soon()

    def _make_room(self) -> None:
        if self._windows.below_target:
            self.connection.share_soon()

    @property
    def shares(self) -> bool:
        """Whether several subscriptions share the prefetch."""
        return len(self._windows.nsqds) > 1

    def share(self) -> None:
        """Share the prefetch out over the subscriptions."""
        with self.connection.sharing:
            windows, now = self._windows, time.monotonic()
            windows.max_in_flight = self._prefetch or _UNLIMITED
            in_flight = {one: one.consumer.stats().in_flight for one in list(windows.nsqds)}  # type: ignore[attr-defined]
            windows.tick(now, in_flight)
            for subscription, allowed in windows.decide(now, in_flight):
                subscription.allow(allowed)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Give back what Celery still holds, and end the consumers. May be called again."""
        if self.closed or self.connection.inherited:
            return
        self.closed = True
        self.connection.channels.discard(self)
        for consumer_tag in list(self._callbacks):
            self.basic_cancel(consumer_tag)
        for tag in self.held.tags():
            self.held.give_back(tag)


def _check_time_limits(broker: Broker, queue: str, longest: float) -> None:
    """Refuse time limits that are longer than nsqd allows for a task whose message is acknowledged at its
    end, and say once for each queue how long such a task may take. Does nothing but in a worker.

    ``longest`` is the time in seconds that nsqd allows for one delivery.
    """
    if not in_worker():
        return
    late = [task for task in current_app.tasks.values() if task.acks_late]
    for task in late:
        limit = task.time_limit or current_app.conf.task_time_limit
        if limit and limit > longest:
            raise ConfigError(
                f"task {task.name} has acks_late and a time_limit of {limit:g} s, but after {longest:g} s "
                "nsqd gives it to another worker: raise nsqd's --max-msg-timeout, or lower the limit"
            )
    if late and (queue, longest) not in broker.told_limits:
        broker.told_limits.add((queue, longest))
        log.info(
            "acks_late: a task may take %g s from its delivery to its end (nsqd's --max-msg-timeout), then "
            "another worker of the queue %s may get it too",
            longest,
            queue,
        )


class Transport(base.Transport):  # type: ignore[misc]
    Channel = Channel

    can_parse_url = True
    default_port = 4150
    driver_type = "nsq"
    driver_name = "nsq"
    implements = base.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )
    connection_errors = (ConnectionFailed, PublishFailed, PublishUncertain, ConnectionError)
    recoverable_connection_errors = connection_errors
    channel_errors = (base.ChannelError,)
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        _hide_secrets(client)
        _admit_to_mingle_and_gossip()
        _tell_rejects_from_deaths()
        _bury_what_cannot_begin()

    def driver_version(self) -> str:
        return nsq.__version__

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What ``inspect stats`` shows where kombu knows nothing: it does not look into the URL."""
        port = self.default_port
        with suppress(UsageError):  # an error of the URL is raised when a connection is made
            settings = settings_of(self.client)
            for first in (settings.nsqds or settings.lookupds)[:1]:
                port = port if is_unix(first) else split(first)[1]
        return {"hostname": "127.0.0.1", "port": port}

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        url, secret = split_secret(uri)
        secret = secret or self.client.password
        prefix = f"{self.client.uri_prefix}+" if self.client.uri_prefix else ""
        scheme, slashes, rest = url.rpartition("://")
        shown = f"{secret if include_password else mask}@" if secret else ""
        return f"{prefix}{scheme or 'nsq'}{slashes or '://'}{shown}{rest}"

    def establish_connection(self) -> Connection:
        return Connection(self.client)

    def close_connection(self, connection: Connection) -> None:
        connection.close()

    def create_channel(self, connection: Connection) -> base.StdChannel:
        channel = Channel(connection, next(connection.numbers))
        connection.channels.add(channel)
        return channel

    def verify_connection(self, connection: Connection) -> bool:
        return connection.connected

    def drain_events(self, connection: Connection, timeout: float | None = None, **_: Any) -> None:
        connection.drain_events(timeout)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.register(loop)


def _hide_secrets(client: Any) -> None:
    """Move the secret from the URL to ``password``, which Celery does not show, as it shows ``hostname``."""
    client.hostname, secret = split_secret(client.hostname or "")
    client.password = client.password or secret
    for place, url in enumerate(client.alt or []):
        client.alt[place] = split_secret(url)[0]


def _admit_to_mingle_and_gossip() -> None:
    """Add ourselves to the transports that Celery's mingle and gossip work with; otherwise both are off."""
    for module, name in (("mingle", "Mingle"), ("gossip", "Gossip")):
        step = getattr(sys.modules.get(f"celery.worker.consumer.{module}"), name, None)
        if step is not None:
            step.compatible_transports = step.compatible_transports | {"nsq"}


def _tell_rejects_from_deaths() -> None:
    """Have Celery's requests mark messages whose tasks ask to be put back: ``basic_reject`` is called in the
    same way for tasks that have lost their process. And have them acknowledged when Celery itself fails.
    """
    request = getattr(sys.modules.get("celery.worker.request"), "Request", None)
    if request is None or hasattr(request.on_failure, "__wrapped__"):
        return
    original = request.on_failure

    @wraps(original)
    def on_failure(self: Any, exc_info: Any, *args: Any, **options: Any) -> Any:
        error, channel, tag = exc_info.exception, self._message.channel, self._message.delivery_tag
        if not isinstance(channel, Channel):
            return original(self, exc_info, *args, **options)
        if isinstance(getattr(error, "exc", error), Reject):
            channel.expect_reject(tag)
        try:
            return original(self, exc_info, *args, **options)
        except _FAULTS_OF_A_MESSAGE as fault:  # such as a header that names what to call after a failure
            channel.bury(tag, fault)

    request.on_failure = on_failure


def _bury_what_cannot_begin() -> None:
    """Have the worker survive a task that it cannot hand to a process because its message is malformed.

    A task that has waited for a free process begins outside of ``Channel.deliver``.
    """
    worker = getattr(sys.modules.get("celery.worker.worker"), "WorkController", None)
    if worker is None or hasattr(worker._process_task, "__wrapped__"):
        return
    original = worker._process_task

    @wraps(original)
    def _process_task(self: Any, request: Any) -> None:
        try:
            original(self, request)
        except _FAULTS_OF_A_MESSAGE as error:
            if not isinstance(request.message.channel, Channel):
                raise
            with suppress(AttributeError):  # as Celery frees the process of a task that was revoked
                self._quick_release()
            self.state.task_ready(request)
            request.message.channel.bury(request.message.delivery_tag, error)

    worker._process_task = _process_task
