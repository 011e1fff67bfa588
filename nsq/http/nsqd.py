"""nsqd's HTTP API: ``NsqdApi``, which blocks, and the types of its answers.

Times in arguments and in NsqdInfo are seconds; other answers keep nsqd's units, as they say.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NotRequired, Required, TypedDict
from urllib.parse import quote

from nsq.errors import ApiError, InvalidMessage
from nsq.http.calls import Api, conform, endpoint, json_value, ok, read, read_key
from nsq.http.message import HttpReply
from nsq.wire.names import check_channel, check_topic


class NsqdApi(Api):
    """The HTTP API of one nsqd: ``NsqdApi("10.0.0.7:4151").stats(topic="orders")``.

    ``address`` is ``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; a host alone gets nsqd's port
    4151. A method takes no longer than ``timeout`` seconds. It raises ApiRefused when nsqd answers with an
    error, ApiError when there is no usable answer. If nsqd insists on TLS, it repeats the call with TLS. Each
    call opens its own connection: any number of threads may share one NsqdApi, which needs no closing.

    ``secret`` is that of a login (--http-logins). Say ``told=True`` if an nsqlookupd told the address: then
    the secret goes there only over TLS with authorities of your own (``tls``), or on this machine.
    """

    _default_port = 4151
    _upgrade = True

    # Reading

    def ping(self) -> None:
        """Return if nsqd is healthy; else raise ApiRefused with the reason."""
        return self._get("/ping", {}, ok)

    def info(self) -> NsqdInfo:
        """Return its version, addresses and limits."""
        return self._get("/info", {}, parse_info)

    def stats(
        self, topic: str = "", channel: str = "", *, include_clients: bool = True, include_mem: bool = False
    ) -> NsqdStats:
        """Return statistics of all topics, of one topic, or of one channel; empty for unknown names. A
        partitioned nsqd lists each partition that it leads as a topic.
        """
        args = stats_args(topic, channel, include_clients=include_clients, include_mem=include_mem)
        return self._get("/stats", args, _parse_stats)

    def peek(
        self, topic: str, channel: str = "", *, n: int = 10, deferred: bool = False
    ) -> list[PeekedMessage]:
        """Return the first ``n`` messages, 100 at most, that wait in the topic or in its channel; with
        ``deferred``, those of the channel that are due next.

        This consumes, counts and reorders nothing. Only our nsqd has it; its --peek sets who may call it.
        """
        path = "/channel/peek" if channel else "/topic/peek"
        args = {**_named(topic, channel), "n": str(n)}
        if deferred:
            args["deferred"] = "true"
        return self._get(path, args, _parse_peeked)

    # Publishing

    def publish(self, topic: str, body: bytes, *, defer: float = 0.0) -> None:
        """Publish a message, which nsqd delivers after ``defer`` seconds."""
        args = {"topic": check_topic(topic)}
        if defer:
            args["defer"] = str(_milliseconds(defer))
        return self._post("/pub", args, ok, _checked(body))

    def multi_publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish many messages in one request; they may hold any bytes."""
        checked = [_checked(body) for body in bodies]
        if not checked:
            raise InvalidMessage("there is no message to publish")
        args = {"topic": check_topic(topic), "binary": "true"}
        from nsq.wire.commands import pack_bodies

        return self._post("/mpub", args, ok, pack_bodies(checked))

    # Topics and channels

    def create_topic(self, topic: str) -> None:
        """Create a topic; an existing one stays as it is."""
        return self._post("/topic/create", {"topic": check_topic(topic)})

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and all messages."""
        return self._post("/topic/delete", _named(topic))

    def empty_topic(self, topic: str) -> None:
        """Throw away the messages that no channel has yet."""
        return self._post("/topic/empty", _named(topic))

    def pause_topic(self, topic: str) -> None:
        """Pause a topic: its messages stay in it and reach no channel."""
        return self._post("/topic/pause", _named(topic))

    def unpause_topic(self, topic: str) -> None:
        """Let a paused topic fill its channels again."""
        return self._post("/topic/unpause", _named(topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel of an existing topic."""
        return self._post("/channel/create", _named(check_topic(topic), check_channel(channel)))

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with all its messages."""
        return self._post("/channel/delete", _named(topic, channel))

    def empty_channel(self, topic: str, channel: str) -> None:
        """Throw away all messages of a channel, deferred ones and those in flight too."""
        return self._post("/channel/empty", _named(topic, channel))

    def pause_channel(self, topic: str, channel: str) -> None:
        """Pause a channel: its messages stay in it and reach no consumer."""
        return self._post("/channel/pause", _named(topic, channel))

    def unpause_channel(self, topic: str, channel: str) -> None:
        """Let a paused channel deliver again."""
        return self._post("/channel/unpause", _named(topic, channel))

    # Settings

    def get_config(self, option: str) -> Any:
        """Return an option of nsqd as nsqd tells it: text, number, boolean or list; times in nanoseconds."""
        return self._get(_setting(option), {}, _parse_setting)

    def set_config(self, option: str, value: object) -> Any:
        """Set ``log_level`` (text) or ``nsqlookupd_tcp_addresses`` (a list); return the new value."""
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        return self._ask("PUT", endpoint(self._base, _setting(option), {}), _parse_setting, body)


# Requests


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
    # Unchecked names, unless a call creates them: one must be able to delete a topic with a bad name.
    return ({"topic": topic} if topic else {}) | ({"channel": channel} if channel else {})


def stats_args(
    topic: str = "", channel: str = "", *, include_clients: bool = False, include_mem: bool = False
) -> dict[str, str]:
    """Return the query of /stats."""
    included = {"include_clients": include_clients, "include_mem": include_mem}
    shown = {name: "true" if value else "false" for name, value in included.items()}
    return {"format": "json"} | _named(topic, channel) | shown


def _setting(option: str) -> str:
    return f"/config/{quote(option, safe='')}"


# Answers


@dataclass(frozen=True, kw_only=True)
class NsqdInfo:
    """The answer of /info. Times are seconds, ``start_time`` since 1970. Old nsqds leave fields None."""

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


def parse_info(reply: HttpReply) -> NsqdInfo:
    info = read(reply, NsqdInfo)
    times = {name: getattr(info, name) for name in ("max_heartbeat_interval", "max_output_buffer_timeout")}
    known = {name: value / 1_000_000_000 for name, value in times.items() if value is not None}
    return dataclasses.replace(info, **known)


def _parse_setting(reply: HttpReply) -> Any:
    # nsqd sends text as it is and other values as JSON; only the Content-Type tells "5" from 5.
    if reply.headers.get("content-type", "").startswith("application/json"):
        return json_value(reply)
    try:
        return reply.body.decode("utf-8")
    except UnicodeDecodeError:
        raise ApiError("a setting that is not text") from None


@dataclass(frozen=True, kw_only=True)
class PeekedMessage:
    """A waiting message. ``size`` is that of the whole body; ``body`` may be only its beginning."""

    id: str
    timestamp: int  # nanoseconds since 1970
    age: float  # seconds
    attempts: int
    size: int
    body: bytes
    truncated: bool
    due_in: float | None = None  # seconds, if it is deferred


class _Peeked(TypedDict):
    id: str
    timestamp: int
    age_ms: int
    attempts: int
    size: int
    truncated: bool
    encoding: str
    body: str
    due_in_ms: NotRequired[int]


def _parse_peeked(reply: HttpReply) -> list[PeekedMessage]:
    messages = []
    for each in read_key(reply, "messages", list[_Peeked]):
        text = each["encoding"] == "utf-8"
        body = each["body"].encode("utf-8", "replace") if text else _unpacked(each["body"])
        messages.append(
            PeekedMessage(
                id=each["id"],
                timestamp=each["timestamp"],
                age=each["age_ms"] / 1000,
                attempts=each["attempts"],
                size=each["size"],
                body=body,
                truncated=each["truncated"],
                due_in=each["due_in_ms"] / 1000 if "due_in_ms" in each else None,
            )
        )
    return messages


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ApiError("a body that is not Base64") from None


# /stats: only the essential fields of a topic, channel or client are required; versions differ in the others.
# Counts are since nsqd started.


def _parse_stats(reply: HttpReply) -> NsqdStats:
    found: NsqdStats = conform(plain_stats(json_value(reply)), NsqdStats)
    return found


def plain_stats(stats: Any) -> Any:
    """Put the /stats of a partitioned nsqd into the terms of an original one, which stay as they are.

    A partitioned nsqd lists a topic once for each partition, with its bytes as the depth: these become
    ``stored_bytes``. In the topic itself no message waits: its channels read the partition. Replicas are left
    out, because their leaders count the same messages.
    """
    topics = stats.get("topics") if isinstance(stats, dict) else None
    if not isinstance(topics, list) or not any(map(_is_partition, topics)):
        return stats
    led = [each for each in topics if not _is_partition(each) or each.get("is_leader") is not False]
    return {**stats, "topics": [_plain_topic(each) if _is_partition(each) else each for each in led]}


def _is_partition(topic: Any) -> bool:
    return isinstance(topic, dict) and "topic_partition" in topic and "stored_bytes" not in topic


def _plain_topic(topic: dict[str, Any]) -> dict[str, Any]:
    channels = topic.get("channels")
    if isinstance(channels, list):
        channels = [
            {**each, "client_count": each["client_num"]}
            if isinstance(each, dict) and "client_num" in each
            else each
            for each in channels
        ]
    plain = {"stored_bytes": topic.get("depth"), "depth": 0, "backend_depth": 0, "paused": False}
    return {**topic, **plain, "channels": channels}


class Percentile(TypedDict):
    """A percentile. ``value`` is in nanoseconds."""

    quantile: float
    value: float


class Latency(TypedDict, total=False):
    """Processing time from end to end; has percentiles only if nsqd's options name some."""

    count: int
    percentiles: list[Percentile]


class PubCount(TypedDict):
    topic: str
    count: int


class ClientStats(TypedDict, total=False):
    """A consumer of a channel, or a producer. ``connect_ts`` is in seconds since 1970."""

    client_id: Required[str]
    hostname: Required[str]
    remote_address: Required[str]
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


class DueCount(TypedDict):
    """``count`` messages are due within so many seconds; None for any later time."""

    within: int | None
    count: int


class ChannelStats(TypedDict):
    """A channel. ``clients`` is empty if the request left them out; ``client_count`` is their number."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    deferred_on_disk: NotRequired[int]
    next_deferred_ms: NotRequired[int]
    deferred_due: NotRequired[list[DueCount]]
    message_count: int
    requeue_count: int
    timeout_count: int
    dropped_count: NotRequired[int]
    paused: bool
    clients: list[ClientStats]
    client_count: NotRequired[int]
    global_msg_count: NotRequired[int]
    e2e_processing_latency: NotRequired[Latency]


class TopicStats(TypedDict):
    """A topic. A partitioned nsqd has one for each partition that it leads, with ``topic_partition`` and
    ``stored_bytes``.
    """

    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    paused: bool
    message_bytes: NotRequired[int]
    dropped_count: NotRequired[int]
    topic_partition: NotRequired[str]
    stored_bytes: NotRequired[int]
    e2e_processing_latency: NotRequired[Latency]


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


class NsqdStats(TypedDict):
    """The answer of /stats. ``start_time`` is in seconds since 1970. ``memory`` and ``producers`` are present
    if the request included memory and clients.
    """

    version: str
    health: str
    topics: list[TopicStats]
    start_time: NotRequired[int]
    memory: NotRequired[MemoryStats]
    producers: NotRequired[list[ClientStats]]
