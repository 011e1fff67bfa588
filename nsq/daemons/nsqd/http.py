"""nsqd's HTTP API: the table of routes, and the handlers for publishing, administration and inspection.

The handlers know requests and the core, but no network.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import functools
import gc
import json
import socket
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd import stats
from nsq.daemons.nsqd.core.backlog import PartlyStored, StorageFailed, Waiting, show
from nsq.daemons.nsqd.core.broker import Broker, Draining
from nsq.daemons.nsqd.core.channel import Channel, Subscriber
from nsq.daemons.nsqd.core.clock import pause_after
from nsq.daemons.nsqd.core.topic import Topic, TopicStarting
from nsq.daemons.nsqd.options import PEEK_LOOPBACK, PEEK_OFF, TLS_VERSIONS, NsqdOptions
from nsq.daemons.nsqd.registration import Registration
from nsq.daemons.nsqd.session.session import Environment, Session
from nsq.daemons.nsqd.stats import Json, Memory
from nsq.daemons.nsqd.statsd import full_prefix
from nsq.daemons.nsqd.storage.committer import Committer
from nsq.daemons.nsqd.storage.health import HEALTHY
from nsq.daemons.serve.debug import Debugging
from nsq.daemons.serve.logins import is_reading
from nsq.daemons.serve.process import Orders
from nsq.daemons.serve.routes import (
    EMPTY,
    JSON,
    OK,
    TEXT,
    Handler,
    HttpError,
    Reply,
    Request,
    Route,
)
from nsq.daemons.serve.sites import (
    on_this_machine,
    own_names,
    own_pages_only,
    refuse_other_sites,
    unknown_name,
)
from nsq.daemons.serve.slices import Slices
from nsq.daemons.serve.worker_thread import in_thread
from nsq.errors import ConfigError
from nsq.flags import config_key, is_duration
from nsq.wire.commands import BadBodies, Limits, unpack_bodies
from nsq.wire.names import valid_channel, valid_topic

#: The values of binary= that mean no. Any other value, also an empty one, means yes.
_NOT_BINARY = ("false", "0")
#: The answer to a publish that was neither confirmed nor refused.
_MAYBE_STORED = "MAYBE_STORED"
#: A body of /mpub at least this large is split in a thread of its own.
_LARGE = 128 * 1024

_MAX_SETTING = 1024 * 1024
#: The number of TLS 1.0 in the protocol; later versions count on from it.
_TLS_1_0 = 0x0301
#: Messages that one peek returns (default, maximum), and the most bytes of their bodies.
_PEEKED, _MAX_PEEKED, _MAX_PEEKED_BYTES = 10, 100, 1024 * 1024
#: Bytes of a long reply that are sent at once.
_PIECE = 64 * 1024


class Persistence(Protocol):
    """The part of the storage that handlers use."""

    @property
    def health(self) -> str:
        """ "OK", or the problem."""

    @property
    def publish_committer(self) -> Committer | None:
        """The committer whose next sync a publisher's reply waits for; None without --durable."""


@dataclass(frozen=True)
class Context:
    """The parts of an nsqd that its HTTP API uses. ``sessions`` returns the currently connected clients."""

    environment: Environment
    registration: Registration
    sessions: Callable[[], Iterable[Session]]
    ports: Callable[[], tuple[int, int]]
    start_time: int
    memory: Memory
    storage: Persistence
    orders: Orders

    @property
    def options(self) -> NsqdOptions:
        return self.environment.options

    @property
    def broker(self) -> Broker:
        return self.environment.broker

    def existing_topic(self, request: Request) -> Topic:
        name = argument(request, "topic")
        topic = self.broker.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic_name = argument(request, "topic")
        if not valid_topic(topic_name):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        channel_name = argument(request, "channel")
        if not valid_channel(channel_name):
            raise HttpError(400, "INVALID_ARG_CHANNEL")
        return self.existing_topic(request), channel_name

    def existing_channel(self, request: Request) -> tuple[Topic, Channel]:
        topic, channel_name = self.topic_and_channel_name(request)
        channel = topic.channels.get(channel_name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return topic, channel


def argument(request: Request, name: str) -> str:
    value = request.args.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


async def _started(topic: Topic) -> None:
    """Wait until the topic has the channels that it has on other nsqds."""
    if not topic.started:
        started = asyncio.Event()
        topic.when_started(started.set)
        await started.wait()


def topic_name(request: Request) -> str:
    name = argument(request, "topic")
    if not valid_topic(name):
        raise HttpError(400, "INVALID_TOPIC")
    return name


def routes(context: Context) -> list[Route]:
    publishing = Publishing(context)
    administration = Administration(context)
    inspection = Inspection(context)
    actions: dict[str, Handler] = {
        "/topic/create": administration.create_topic,
        "/topic/delete": administration.delete_topic,
        "/topic/empty": administration.empty_topic,
        "/topic/pause": administration.pause_topic,
        "/topic/unpause": administration.unpause_topic,
        "/channel/create": administration.create_channel,
        "/channel/delete": administration.delete_channel,
        "/channel/empty": administration.empty_channel,
        "/channel/pause": administration.pause_channel,
        "/channel/unpause": administration.unpause_channel,
    }
    committer = context.storage.publish_committer
    actions = {path: _stored(action, committer) for path, action in actions.items()}
    options = context.options
    looks: dict[str, Handler] = {}
    if options.metrics:
        looks["/metrics"] = inspection.metrics
    if options.peek != PEEK_OFF:
        looks["/topic/peek"] = inspection.peek_topic
        looks["/channel/peek"] = inspection.peek_channel
    publishes = {"/pub": publishing.pub, "/mpub": publishing.mpub}
    publishes |= {"/put": publishing.pub, "/mput": publishing.mpub}  # of NSQ's first releases, as below
    changes = [
        Route("PUT", "/config/drain", administration.drain),
        Route("PUT", "/config/shutdown", administration.shutdown),
        Route("PUT", "/config/:opt", inspection.put_setting),
        Route("POST", "/debug/freememory", inspection.free_memory),
        *(Route("POST", path, handler) for path, handler in actions.items()),
        # The paths of NSQ's first releases, which its guide still uses. Those releases also accepted GET,
        # with which a web page or a crawler can delete a topic.
        *(
            Route(method, _older_name(path), handler)
            for path, handler in actions.items()
            for method in (("GET", "POST") if options.legacy_get else ("POST",))
        ),
    ]
    return [
        Route("GET", "/ping", inspection.ping, plain=True),
        Route("GET", "/info", inspection.info),
        Route("GET", "/stats", inspection.stats),
        *(Route("GET", path, handler) for path, handler in looks.items()),
        Route("GET", "/config/:opt", inspection.get_setting),
        *Debugging().routes(),
        *own_pages_only(
            (Route("POST", path, handler, logged=False) for path, handler in publishes.items()),
            allowed=frozenset(options.allow_pub_origins),
        ),
        *own_pages_only(changes),
    ]


def _stored(action: Handler, committer: Committer | None) -> Handler:
    """Reply 503 if the storage refuses the changes; with a committer, wait until they are fsynced."""

    async def act(request: Request) -> Reply:
        try:
            made = action(request)
            reply = made if isinstance(made, Reply) else await made
            if committer is not None:
                await committer.wait_until_synced()
        except StorageFailed as error:
            raise _refusal(error, "STORAGE_FAILED") from None
        return reply

    return act


def _older_name(path: str) -> str:
    """Return the path of NSQ's first releases: /create_topic for /topic/create."""
    _, noun, verb = path.split("/")
    return f"/{verb}_{noun}"


#: What the role read of a login may GET; and /config/OPTION.
_READ = frozenset({"/info", "/stats", "/metrics"})


def may_read(request: Request) -> bool:
    return is_reading(request) and (request.path in _READ or request.path.startswith("/config/"))


def tls_gate(https_port: Callable[[], int]) -> Callable[[Request], Reply]:
    """Make the gate of an nsqd that requires TLS: it refuses plain requests and names the HTTPS port."""

    def refuse(_: Request) -> Reply:
        return Reply.json({"message": "TLS_REQUIRED", "https_port": https_port()}, 403)

    return refuse


# Publishing and administration.


class Publishing:
    """The handlers of /pub and /mpub."""

    def __init__(self, context: Context) -> None:
        self._options = context.options
        self._broker = context.broker
        self._storage = context.storage
        self._limits = Limits(
            max_msg_size=context.options.max_msg_size, max_body_size=context.options.max_body_size
        )

    async def pub(self, request: Request) -> Reply:
        body = await request.read(self._options.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        name = topic_name(request)
        delay = self._defer(request)
        try:
            if delay:
                await self._publish(name, lambda: self._broker.publish_deferred(name, [(delay, body)]))
            else:
                await self._publish(name, lambda: self._broker.publish(name, [body]))
            await self._wait_until_synced()
        except StorageFailed as error:
            raise _refusal(error, "PUB_FAILED") from None
        return OK

    async def _publish(self, name: str, publish: Callable[[], object]) -> None:
        """Publish; for a new topic, first wait for its channels. Then wait while the topic is crowded."""
        while True:
            try:
                publish()
                break
            except TopicStarting as starting:
                await _started(starting.topic)
        topic = self._broker.topics.get(name)
        if topic is not None and topic.crowded:
            caught_up = asyncio.Event()
            topic.when_caught_up(caught_up.set)
            await caught_up.wait()

    async def _wait_until_synced(self) -> None:
        """With --durable, wait until the messages are fsynced."""
        if self._storage.publish_committer is not None:
            try:
                await self._storage.publish_committer.wait_until_synced()
            except StorageFailed as error:
                raise HttpError(500, _MAYBE_STORED) from error

    def _defer(self, request: Request) -> float:
        text = request.args.get("defer", "0").removeprefix("+")
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise HttpError(400, "INVALID_DEFER")
        if int(text) > round(self._options.max_defer_timeout * 1000):
            raise HttpError(400, "INVALID_DEFER")
        return int(text) / 1000

    async def mpub(self, request: Request) -> Reply:
        if int(request.headers.get("Content-Length") or 0) > self._options.max_body_size:
            raise HttpError(413, "BODY_TOO_BIG")
        name = topic_name(request)
        body = await request.read(self._options.max_body_size, "BODY_TOO_BIG")
        cut = self._lines if request.args.get("binary", "false") in _NOT_BINARY else self._binary
        # A large body may hold a million messages: splitting it on the loop would delay other clients.
        bodies = cut(body) if len(body) < _LARGE else await in_thread(lambda: cut(body), "nsqd-mpub")
        self._broker.unfinished.add(request)
        try:
            start = 0
            while start < len(bodies):
                end = start + self._broker.at_once(name)
                began = time.monotonic()
                part = bodies[start:end]
                await self._publish(name, functools.partial(self._broker.publish, name, part, start > 0))
                start = end
                if start < len(bodies):  # let other clients be served
                    await asyncio.sleep(pause_after(time.monotonic() - began))
            if bodies:
                await self._wait_until_synced()
        except StorageFailed as error:
            raise _refusal(error, "MPUB_FAILED") from None
        finally:
            self._broker.unfinished.discard(request)
        return OK

    def _lines(self, body: bytes) -> list[bytes]:
        lines = [line for line in body.split(b"\n") if line]
        if max(map(len, lines), default=0) > self._options.max_msg_size:
            raise HttpError(413, "MSG_TOO_BIG")
        return lines

    def _binary(self, body: bytes) -> list[bytes]:
        try:
            return unpack_bodies(body, self._limits)
        except BadBodies as error:
            raise HttpError(413, error.code) from None


def _refusal(error: StorageFailed, code: str) -> HttpError:
    """Return the answer to what was refused. 503 to /pub means that the message is not stored."""
    if isinstance(error, PartlyStored):
        return HttpError(500, _MAYBE_STORED)
    return HttpError(503, "EXITING" if isinstance(error, Draining) else code)


class Administration:
    """The handlers that create, delete, empty, pause and unpause topics and channels."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker

    async def create_topic(self, request: Request) -> Reply:
        name = topic_name(request)
        self._broker.refuse_new(name)
        await _started(self._broker.topic(name))
        return EMPTY

    def delete_topic(self, request: Request) -> Reply:
        self._broker.delete_topic(self._context.existing_topic(request).name)
        return EMPTY

    def empty_topic(self, request: Request) -> Reply:
        if not valid_topic(argument(request, "topic")):
            raise HttpError(400, "INVALID_TOPIC")
        self._context.existing_topic(request).empty()
        return EMPTY

    def pause_topic(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_topic(request), True)
        return EMPTY

    def unpause_topic(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_topic(request), False)
        return EMPTY

    def create_channel(self, request: Request) -> Reply:
        topic, name = self._context.topic_and_channel_name(request)
        self._broker.refuse_new(topic.name, name)
        topic.channel(name)
        return EMPTY

    def delete_channel(self, request: Request) -> Reply:
        topic, channel = self._context.existing_channel(request)
        self._broker.delete_channel(topic, channel.name)
        return EMPTY

    def empty_channel(self, request: Request) -> Reply:
        self._context.existing_channel(request)[1].empty()
        return EMPTY

    def pause_channel(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_channel(request)[1], True)
        return EMPTY

    def unpause_channel(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_channel(request)[1], False)
        return EMPTY

    # The names of Go's RFC 1302 for nsqd's drain. The answer does not wait for the end of either.

    def drain(self, request: Request) -> Reply:
        self._context.environment.log.info("PUT /config/drain from %s, draining", request.remote)
        self._broker.draining = True  # for the caller's next request
        self._context.orders.drain.set()
        return OK

    def shutdown(self, request: Request) -> Reply:
        self._context.environment.log.info("PUT /config/shutdown from %s, stopping", request.remote)
        self._context.orders.stop.set()
        return OK


# Inspection.


class Inspection:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = {config_key(field): field for field in dataclasses.fields(context.options)}
        self._slices = Slices()

    def ping(self, request: Request) -> Reply:
        return OK if self._health == HEALTHY else Reply.text(self._health, 500)

    def info(self, request: Request) -> Reply:
        options = self._context.options
        tcp_port, http_port = self._context.ports()
        return Reply.json(
            {
                "version": COMPATIBLE_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": socket.gethostname(),
                "http_port": http_port,
                "tcp_port": tcp_port,
                "start_time": self._context.start_time,
                "max_heartbeat_interval": _nanoseconds(options.max_heartbeat_interval),
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": _nanoseconds(options.max_output_buffer_timeout),
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
                **({"draining": True} if self._context.broker.draining else {}),
            }
        )

    async def stats(self, request: Request) -> Reply:
        args, context = request.args, self._context
        wanted = stats.Filter(
            topic=args.get("topic", ""),
            channel=args.get("channel", ""),
            include_clients=_boolean(args.get("include_clients", "")),
        )
        snapshot = stats.Snapshot(
            version=COMPATIBLE_VERSION,
            health=self._health,
            start_time=context.start_time,
            topics=stats.topics(context.broker, wanted),
            memory=context.memory.figures() if _boolean(args.get("include_mem", "")) else None,
            producers=stats.producers(context.sessions(), wanted) if wanted.include_clients else (),
        )
        if args.get("format") == "json":
            return await self._in_slices(stats.as_json(snapshot), JSON)
        return await self._in_slices(stats.as_text(snapshot, time.time()), TEXT)

    async def metrics(self, request: Request) -> Reply:
        context = self._context
        sessions = list(context.sessions())
        samples: list[stats.Sample] = [
            ("nsqd_info", f'version="{COMPATIBLE_VERSION}"', 1),
            ("nsqd_healthy", "", self._health == HEALTHY),
            ("nsqd_connections", "", len(sessions)),
            ("nsqd_producers", "", sum(1 for session in sessions if session.pub_counts)),
            ("nsqd_pending_body_bytes", "", context.environment.bodies.total),
            *stats.error_samples("tcp", context.environment.errors),
            *stats.error_samples("http", context.environment.http_errors),
            *stats.process_samples(context.start_time),
        ]
        topics = stats.topics(context.broker, stats.Filter(include_clients=False)) or ()
        pieces = stats.as_prometheus(samples, topics, context.options.metrics_max_series)
        return await self._in_slices(pieces, stats.PROMETHEUS)

    async def _in_slices(self, pieces: Iterable[bytes], content_type: str) -> Reply:
        """Join the pieces to one reply, in slices, so that other clients are served meanwhile."""

        def collect() -> Generator[None, None, list[bytes]]:
            together, collected = bytearray(), []
            for piece in pieces:
                together += piece
                if len(together) >= _PIECE:
                    collected.append(bytes(together))
                    together.clear()
                yield
            return [*collected, bytes(together)]

        first, *rest = await self._slices.result(collect())
        return Reply(first, content_type, rest=tuple(rest))

    # Waiting messages.

    async def peek_topic(self, request: Request) -> Reply:
        count = self._peeked(request)
        messages = await self._context.existing_topic(request).peek(count, _MAX_PEEKED_BYTES)
        return _messages(messages)

    async def peek_channel(self, request: Request) -> Reply:
        count = self._peeked(request)
        channel = self._context.existing_channel(request)[1]
        if _boolean(request.args.get("in_flight", "false")):
            held = await self._slices.result(channel.held_longest(count))
            messages = show((message for _, message, _ in held), count, _MAX_PEEKED_BYTES)
            return _messages(messages, [_holder(subscriber, seconds) for subscriber, _, seconds in held])
        if _boolean(request.args.get("deferred", "false")):
            found = await channel.deferred.peek(count, _MAX_PEEKED_BYTES)
            now = channel.now()
            return _messages(
                [message for _, message in found],
                [{"due_in_ms": max(0, round((due - now) * 1000))} for due, _ in found],
            )
        return _messages(await channel.peek(count, _MAX_PEEKED_BYTES))

    def _peeked(self, request: Request) -> int:
        if self._context.options.peek == PEEK_LOOPBACK:
            self._refuse_strangers(request)
        text = request.args.get("n", str(_PEEKED))
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= _MAX_PEEKED):
            raise HttpError(400, "INVALID_ARG_N")
        return int(text)

    def _refuse_strangers(self, request: Request) -> None:
        """Refuse callers on other machines, and web pages of other sites in a browser on this one."""
        if not on_this_machine(request.remote):
            raise HttpError(403, "PEEK_FROM_THIS_MACHINE_ONLY")
        refuse_other_sites(request)
        name = unknown_name(request, own_names(self._context.options.broadcast_address))
        if name is not None:
            raise HttpError(
                403, f"UNKNOWN_HOST: ask localhost, or this nsqd's --broadcast-address, not {name}"
            )

    @property
    def _health(self) -> str:
        health = "draining" if self._context.broker.draining else self._context.storage.health
        return health if health == HEALTHY else f"NOK - {health}"

    def get_setting(self, request: Request) -> Reply:
        return self._shown(request.params["opt"])

    async def put_setting(self, request: Request) -> Reply:
        # As in Go's nsqd, an empty body also counts as too large.
        body = await request.read(_MAX_SETTING, "INVALID_VALUE")
        if not 0 < len(body) <= _MAX_SETTING:
            raise HttpError(413, "INVALID_VALUE")
        name = request.params["opt"]
        try:
            if name == "nsqlookupd_tcp_addresses":
                self._context.registration.set_addresses(_texts(body))
            elif name == "log_level":
                self._context.environment.log.level = body.decode("utf-8", "replace")
            else:
                raise HttpError(400, "INVALID_OPTION")
        except (ValueError, RecursionError):
            raise HttpError(400, "INVALID_VALUE") from None
        return self._shown(name)

    def _shown(self, name: str) -> Reply:
        value = self._setting(name)
        return Reply.text(value) if isinstance(value, str) else Reply.json(value)

    def _setting(self, name: str) -> Any:
        field = self._settings.get(name)
        if field is None:
            raise HttpError(400, "INVALID_OPTION")
        shown = self._shown_otherwise()
        if name in shown:
            return shown[name]
        value = getattr(self._context.options, field.name)
        return _nanoseconds(value) if is_duration(field) else value

    def _shown_otherwise(self) -> dict[str, Any]:
        """Return the settings that can change, and those that Go's nsqd shows differently."""
        context, options = self._context, self._context.options
        tcp_port, http_port = context.ports()
        required = 2 if options.requires_https else 1 if options.requires_tls else 0
        return {
            "nsqlookupd_tcp_addresses": context.registration.addresses,
            "log_level": context.environment.log.level,
            "broadcast_tcp_port": tcp_port,
            "broadcast_http_port": http_port,
            "statsd_prefix": full_prefix(options.statsd_prefix, options.broadcast_address, http_port),
            "tls_required": required,
            "tls_min_version": _TLS_1_0 + TLS_VERSIONS.index(options.tls_min_version),
        }

    def free_memory(self, request: Request) -> Reply:
        """Collect garbage now. Go's nsqd does so too, but then replies 500."""
        gc.collect()
        return OK


def _messages(waiting: Sequence[Waiting], holders: Sequence[Json] = ()) -> Reply:
    """Make the reply of a peek; ``holders`` says more of each message: which client has it in flight, or
    when it is due.
    """
    now = time.time_ns()
    shown = [
        {
            "id": message.id.decode("latin-1"),
            "timestamp": message.timestamp,
            "age_ms": max(0, now - message.timestamp) // 1_000_000,
            "attempts": message.attempts,
            "size": message.size,
            "truncated": len(message.body) < message.size,
            **_body(message.body, message.size),
            **holder,
        }
        for message, holder in zip(waiting, holders or [{}] * len(waiting), strict=True)
    ]
    return Reply.json({"messages": shown})


def _holder(subscriber: Subscriber, seconds: float) -> Json:
    """Describe the client that has a message in flight, as in /stats, and for how long."""
    session = subscriber.sink
    client = {}
    if isinstance(session, Session):
        request = session.request
        client = {"client_id": request.client_id, "hostname": request.hostname}
        client["remote_address"] = session.remote_address
    return {"in_flight_ms": round(seconds * 1000), "client": client}


def _body(body: bytes, size: int) -> Json:
    """Show a body as text, or else in Base64. A truncated body may end in the middle of a character."""
    for cut in range(4 if len(body) < size else 1):
        with suppress(UnicodeDecodeError):
            return {"encoding": "utf-8", "body": body[: len(body) - cut].decode()}
    return {"encoding": "base64", "body": base64.b64encode(body).decode()}


def _texts(body: bytes) -> list[str]:
    values = json.loads(body)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{values!r} is not a list of addresses")
    return values


def _boolean(text: str) -> bool:
    if text in ("", "true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise HttpError(400, "INVALID_REQUEST")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
