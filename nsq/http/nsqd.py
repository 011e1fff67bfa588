"""nsqd's HTTP API: ``NsqdApi``, which blocks, and the types of its answers.

Seconds come in and go out; nsqd's milliseconds and nanoseconds exist only in here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast
from urllib.parse import quote

from nsq.errors import ApiError, InvalidMessage
from nsq.http.calls import ACCEPT, Call, conform, endpoint, get, json_value, nothing, ok, post
from nsq.http.message import HttpReply, HttpRequest, Url, parse_url
from nsq.http.sending import DEFAULT_TIMEOUT, send
from nsq.transport.base import Transport
from nsq.wire.commands import pack_bodies
from nsq.wire.names import check_channel, check_topic

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

DEFAULT_PORT = 4151


def nsqd_address(text: str) -> Url:
    """``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; a host alone has nsqd's port 4151."""
    return parse_url(text, DEFAULT_PORT)


class NsqdApi:
    """The HTTP API of one nsqd: ``NsqdApi("10.0.0.7:4151").stats(topic="orders")``.

    ``address`` is ``host:port``, ``http://…``, ``https://…`` or ``unix:/path``. A method takes no longer than
    ``timeout`` seconds and raises ApiError when nsqd cannot be asked, ApiRefused when it says no. An nsqd
    that insists on TLS is asked again with TLS. Every call has a connection of its own, so one NsqdApi
    serves any number of threads, and there is nothing to close.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._nsqd = nsqd_address(address)
        self._timeout = timeout
        self._tls = tls
        self._transport = transport

    def __repr__(self) -> str:
        return f"NsqdApi({str(self._nsqd)!r})"

    def _ask(self, call: Call[T]) -> T:
        reply = send(
            call.request, timeout=self._timeout, tls=self._tls, transport=self._transport, upgrade=True
        )
        return call.answer(reply)

    def _get(self, path: str, args: dict[str, str], parse: Callable[[HttpReply], T]) -> T:
        return self._ask(get(self._nsqd, path, args, parse))

    def _post(
        self, path: str, args: dict[str, str], parse: Callable[[HttpReply], None] = nothing, body: bytes = b""
    ) -> None:
        return self._ask(post(self._nsqd, path, args, parse, body))

    # Looking

    def ping(self) -> None:
        """Return when nsqd is well; ApiRefused says what ails it."""
        return self._get("/ping", {}, ok)

    def info(self) -> NsqdInfo:
        return self._get("/info", {}, _parse_info)

    def stats(
        self, topic: str = "", channel: str = "", *, include_clients: bool = True, include_mem: bool = False
    ) -> NsqdStats:
        """Of everything, or of one topic, or one channel of it; nothing of what is not there."""
        args = {"format": "json"} | _named(topic, channel)
        args |= {"include_clients": _boolean(include_clients), "include_mem": _boolean(include_mem)}
        return self._get("/stats", args, _parse_stats)

    # Publishing

    def publish(self, topic: str, body: bytes, *, defer: float = 0.0) -> None:
        """``defer`` holds the message back for so many seconds."""
        args = {"topic": check_topic(topic)}
        if defer:
            args["defer"] = str(_milliseconds(defer))
        return self._post("/pub", args, ok, _checked(body))

    def multi_publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Many messages in one request; they may hold any bytes."""
        checked = [_checked(body) for body in bodies]
        if not checked:
            raise InvalidMessage("there is no message to publish")
        args = {"topic": check_topic(topic), "binary": "true"}
        return self._post("/mpub", args, ok, pack_bodies(checked))

    # Topics and channels

    def create_topic(self, topic: str) -> None:
        return self._post("/topic/create", {"topic": check_topic(topic)})

    def delete_topic(self, topic: str) -> None:
        """With its channels and all messages."""
        return self._post("/topic/delete", _named(topic))

    def empty_topic(self, topic: str) -> None:
        return self._post("/topic/empty", _named(topic))

    def pause_topic(self, topic: str) -> None:
        """Messages stay in the topic and reach no channel."""
        return self._post("/topic/pause", _named(topic))

    def unpause_topic(self, topic: str) -> None:
        return self._post("/topic/unpause", _named(topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """The topic must be there."""
        return self._post("/channel/create", _named(check_topic(topic), check_channel(channel)))

    def delete_channel(self, topic: str, channel: str) -> None:
        """With all its messages."""
        return self._post("/channel/delete", _named(topic, channel))

    def empty_channel(self, topic: str, channel: str) -> None:
        return self._post("/channel/empty", _named(topic, channel))

    def pause_channel(self, topic: str, channel: str) -> None:
        """Messages stay in the channel and reach no consumer."""
        return self._post("/channel/pause", _named(topic, channel))

    def unpause_channel(self, topic: str, channel: str) -> None:
        return self._post("/channel/unpause", _named(topic, channel))

    # Settings

    def get_config(self, option: str) -> Any:
        """One of nsqd's options as it tells it: text, number, boolean or list; a time is in nanoseconds."""
        return self._get(_setting(option), {}, _parse_setting)

    def set_config(self, option: str, value: object) -> Any:
        """Change ``log_level`` (text) or ``nsqlookupd_tcp_addresses`` (a list); gives the new value."""
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        url = endpoint(self._nsqd, _setting(option), {})
        return self._ask(Call(HttpRequest(url, "PUT", ACCEPT, body), _parse_setting))


# What is asked


def _checked(body: object) -> bytes:
    if not isinstance(body, bytes):
        raise InvalidMessage(f"a message is bytes, not {type(body).__name__}")
    if not body:
        raise InvalidMessage("nsqd accepts no empty message")
    return body


def _milliseconds(seconds: float) -> int:
    if not 0.0 <= seconds < math.inf:
        raise InvalidMessage(f"a message cannot be deferred by {seconds} s")
    return round(seconds * 1000)


def _named(topic: str, channel: str = "") -> dict[str, str]:
    # Not checked where names are only looked up: what has a wrong name must be deletable.
    return ({"topic": topic} if topic else {}) | ({"channel": channel} if channel else {})


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _setting(option: str) -> str:
    return f"/config/{quote(option, safe='')}"


# What is answered


@dataclass(frozen=True, kw_only=True)
class NsqdInfo:
    """What /info says. Times are seconds, ``start_time`` since 1970. None is what an old nsqd leaves out."""

    version: str
    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    start_time: int | None = None
    max_heartbeat_interval: float | None = None
    max_output_buffer_size: int | None = None
    max_output_buffer_timeout: float | None = None
    max_deflate_level: int | None = None
    topology_region: str = ""
    topology_zone: str = ""


class _RequiredInfo(TypedDict):
    version: str
    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int


class _NsqdInfo(_RequiredInfo, total=False):
    start_time: int
    max_heartbeat_interval: int
    max_output_buffer_size: int
    max_output_buffer_timeout: int
    max_deflate_level: int
    topology_region: str
    topology_zone: str


def _parse_info(reply: HttpReply) -> NsqdInfo:
    told: dict[str, Any] = conform(json_value(reply), _NsqdInfo)
    known = {name: told[name] for name in NsqdInfo.__dataclass_fields__ if name in told}
    for name in ("max_heartbeat_interval", "max_output_buffer_timeout"):
        if name in known:
            known[name] /= 1_000_000_000
    return NsqdInfo(**known)


def _parse_setting(reply: HttpReply) -> Any:
    # Text comes as it is, anything else as JSON, and only the Content-Type tells "5" from 5.
    if reply.headers.get("content-type", "").startswith("application/json"):
        return json_value(reply)
    try:
        return reply.body.decode("utf-8")
    except UnicodeDecodeError:
        raise ApiError("a setting that is not text") from None


def _parse_stats(reply: HttpReply) -> NsqdStats:
    return cast(NsqdStats, conform(json_value(reply), NsqdStats))


# /stats: only what makes sense of a topic, channel or client is required; the rest came with one version or
# another. Counts are since nsqd started.


class Percentile(TypedDict):
    """``value`` is in nanoseconds."""

    quantile: float
    value: float


class Latency(TypedDict, total=False):
    """Processing time from end to end; without percentiles unless nsqd was told which."""

    count: int
    percentiles: list[Percentile]


class PubCount(TypedDict):
    topic: str
    count: int


class _Client(TypedDict):
    client_id: str
    hostname: str
    remote_address: str


class ClientStats(_Client, total=False):
    """A consumer of a channel, or a producer. ``connect_ts`` is in seconds since 1970."""

    version: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    authed: bool
    auth_identity: str
    auth_identity_url: str
    pub_counts: list[PubCount]
    topology_zone: str
    topology_region: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class _Channel(TypedDict):
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    paused: bool
    clients: list[ClientStats]


class ChannelStats(_Channel, total=False):
    """``clients`` is empty when they were not asked for; ``client_count`` says how many there are."""

    client_count: int
    global_msg_count: int
    e2e_processing_latency: Latency


class _Topic(TypedDict):
    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    paused: bool


class TopicStats(_Topic, total=False):
    message_bytes: int
    e2e_processing_latency: Latency


class MemoryStats(TypedDict, total=False):
    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


class _Stats(TypedDict):
    version: str
    health: str
    topics: list[TopicStats]


class NsqdStats(_Stats, total=False):
    """``start_time`` is in seconds since 1970. ``memory`` is there when it was asked for, ``producers`` with
    the clients.
    """

    start_time: int
    memory: MemoryStats
    producers: list[ClientStats]
