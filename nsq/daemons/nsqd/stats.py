"""Collects the statistics for /stats and /metrics: as JSON, as text, and for Prometheus.

An nsqd can have thousands of topics, channels and clients. So everything here is lazy, and the output is made
piece by piece, so that the event loop can serve other clients between two pieces.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import ANYWHERE, REGION_LOCAL, ZONE_LOCAL, Channel
from nsq.daemons.nsqd.core.deferred import DueRange
from nsq.daemons.nsqd.core.latency import MeasuredChannel, quantiles
from nsq.daemons.nsqd.core.topic import Topic
from nsq.daemons.nsqd.session.session import Session
from nsq.daemons.serve.routes import go_json
from nsq.options import format_duration

Json = dict[str, Any]
#: A channel's figures and those of its clients, which are None if the request excludes clients.
Channels = Iterable[tuple[Json, Iterable[Json] | None]]
#: A topic's figures and its channels.
Topics = Iterable[tuple[Json, Channels]]

_DELIVERED = (
    ("zone_local_msg_count", ZONE_LOCAL),
    ("region_local_msg_count", REGION_LOCAL),
    ("global_msg_count", ANYWHERE),
)


#: How many pauses are kept, as in Go's runtime.
_PAUSES = 256


@dataclass(frozen=True)
class Filter:
    """The requested part of the figures. An empty name means all."""

    topic: str = ""
    channel: str = ""
    include_clients: bool = True


@dataclass(frozen=True)
class Snapshot:
    """Everything that /stats shows. ``topics`` is None if the requested topic does not exist."""

    version: str
    health: str
    start_time: int
    topics: Topics | None
    memory: Json | None
    producers: Iterable[Json]


# Figures, in the order of nsqd's JSON.


def topics(broker: Broker, wanted: Filter) -> Topics | None:
    """Return topics sorted by name; only those with the requested channel. None for an unknown topic."""
    if wanted.topic:
        topic = broker.topics.get(wanted.topic)
        if topic is None:
            return None
        chosen = [topic]
    else:
        chosen = sorted(broker.topics.values(), key=lambda topic: topic.name)
    bounded = broker.bound is not None  # Go's nsqd does not count drops
    return (
        (_topic(topic, bounded), _channels(topic, wanted, bounded))
        for topic in chosen
        if not wanted.channel or wanted.channel in topic.channels
    )


def _topic(topic: Topic, bounded: bool) -> Json:
    return {
        "topic_name": topic.name,
        "channels": None,
        "depth": topic.depth,
        "backend_depth": topic.backlog.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.channels.values()),
        **({"dropped_count": topic.dropped_count} if bounded else {}),
    }


def _channels(topic: Topic, wanted: Filter, bounded: bool) -> Channels:
    for channel in sorted(topic.channels.values(), key=lambda channel: channel.name):
        if not wanted.channel or wanted.channel == channel.name:
            figures = _channel(channel)
            if bounded:
                figures["dropped_count"] = channel.dropped_count
            if wanted.channel and channel.deferred_count:
                figures["deferred_due"] = due_within(channel.deferred.due_ranges(), channel.now())
            yield figures, _clients(channel) if wanted.include_clients else None


def _channel(channel: Channel) -> Json:
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backlog.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        **{key: count for key, place in _DELIVERED if (count := channel.delivered[place])},
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.subscribers),
        "clients": None,
        "paused": channel.paused,
        "e2e_processing_latency": _latency([channel]),
        **_deferred(channel),
    }


def _deferred(channel: Channel) -> Json:
    """Return more about deferred messages, if there are any; Go's nsqd has none of these figures."""
    if not channel.deferred_count:
        return {}
    seconds = max(0.0, channel.deferred.next_due() - channel.now())
    return {"deferred_on_disk": channel.deferred.on_disk, "next_deferred_ms": round(seconds * 1000)}


#: The bounds of ``due_within``: a minute, ten minutes, an hour, six hours, a day, a week, a month.
DUE_WITHIN = (60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)


def due_within(ranges: Iterable[DueRange], now: float) -> list[Json]:
    """Return how many messages are due within each bound and not within the one before; those on disk count
    as spread evenly over the time of their file. The last entry counts the rest.
    """
    totals = [0.0] * (len(DUE_WITHIN) + 1)
    for first, last, messages in ranges:
        for place, bound in enumerate(DUE_WITHIN):
            if last - now <= bound:
                totals[place] += messages
            elif first - now < bound:
                totals[place] += messages * (now + bound - first) / (last - first)
        totals[-1] += messages
    counts = [round(total) for total in totals]
    return [
        {"within": bound, "count": count - before}
        for bound, count, before in zip([*DUE_WITHIN, None], counts, [0, *counts], strict=False)
    ]


def _clients(channel: Channel) -> Iterator[Json]:
    sinks = [subscriber.sink for subscriber in channel.subscribers]
    return (client(sink) for sink in sinks if isinstance(sink, Session))


def _latency(channels: Iterable[Channel]) -> Json:
    """Merge the latencies of all channels. Without measurements the percentiles are None."""
    windows = [channel.latency for channel in channels if isinstance(channel, MeasuredChannel)]
    if not windows:
        return {"count": 0, "percentiles": None}
    wanted = windows[0].quantiles
    count, values = quantiles(windows, wanted)
    shown = [
        {"quantile": int(each) if each == 1 else each, "value": value}
        for each, value in zip(wanted, values, strict=True)
    ]
    return {"count": count, "percentiles": shown}


def client(session: Session, published_to: str = "") -> Json:
    """Describe a connection; with ``published_to``, only its publishes to that topic."""
    request, subscriber, tls = session.request, session.subscriber, session.tls
    return {
        "client_id": request.client_id,
        "hostname": request.hostname,
        "version": "V2",
        "remote_address": session.remote_address,
        "state": session.state,
        "ready_count": subscriber.rdy if subscriber else 0,
        "in_flight_count": len(subscriber.in_flight) if subscriber else 0,
        "message_count": subscriber.message_count if subscriber else 0,
        "finish_count": subscriber.finish_count if subscriber else 0,
        "requeue_count": subscriber.requeue_count if subscriber else 0,
        "connect_ts": session.connected_at,
        "sample_rate": session.agreement.sample_rate,
        "deflate": session.agreement.deflate,
        "snappy": session.agreement.snappy,
        "user_agent": request.user_agent,
        **_authentication(session),
        **_publications(session, published_to),
        "topology_zone": request.topology_zone,
        "topology_region": request.topology_region,
        "tls": tls is not None,
        "tls_cipher_suite": (tls.cipher or "") if tls else "",
        "tls_version": (tls.version or "").replace("TLSv", "TLS") if tls else "",
        "tls_negotiated_protocol": (tls.selected_alpn or "") if tls else "",
        "tls_negotiated_protocol_is_mutual": bool(tls and tls.selected_alpn),
    }


def _authentication(session: Session) -> Json:
    grant = session.grant
    if grant is None:
        return {}
    shown = {"authed": True, "auth_identity": grant.identity, "auth_identity_url": grant.identity_url}
    return {key: value for key, value in shown.items() if value}


def _publications(session: Session, wanted: str) -> Json:
    counts = [
        {"topic": topic, "count": count}
        for topic, count in session.pub_counts.items()
        if not wanted or topic == wanted
    ]
    return {"pub_counts": counts} if counts else {}


def producers(sessions: Iterable[Session], wanted: Filter) -> Iterable[Json]:
    """Describe the clients that have published to the requested topic."""
    chosen = [
        session
        for session in sessions
        if session.pub_counts and (not wanted.topic or wanted.topic in session.pub_counts)
    ]
    return (client(session, wanted.topic) for session in chosen)


# As JSON.


def as_json(snapshot: Snapshot) -> Iterator[bytes]:
    shown = {"version": snapshot.version, "health": snapshot.health, "start_time": snapshot.start_time}
    yield go_json(shown)[:-1] + b',"topics":'
    if snapshot.topics is None:
        yield b"null"
    else:
        yield from _list(_topic_json(*topic) for topic in snapshot.topics)
    if snapshot.memory is not None:
        yield b',"memory":' + go_json(snapshot.memory)
    yield b',"producers":'
    # Go's nsqd writes null if no client has published.
    yield from _list(((go_json(producer),) for producer in snapshot.producers), empty=b"null")
    yield b"}"


def _topic_json(figures: Json, channels: Channels) -> Iterator[bytes]:
    return _around(figures, "channels", (_channel_json(*channel) for channel in channels))


def _channel_json(figures: Json, clients: Iterable[Json] | None) -> Iterator[bytes]:
    if clients is None:
        return iter((go_json(figures),))
    return _around(figures, "clients", ((go_json(client),) for client in clients))


def _around(figures: Json, key: str, items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the figures with ``key``'s null replaced by a list. Names never contain quotation marks."""
    before, _, after = go_json(figures).partition(b'"%s":null' % key.encode())
    yield before + b'"%s":' % key.encode()
    yield from _list(items)
    yield after


def _list(items: Iterable[Iterable[bytes]], empty: bytes = b"[]") -> Iterator[bytes]:
    opening = b"["
    for item in items:
        yield opening
        yield from item
        opening = b","
    yield empty if opening == b"[" else b"]"


# As text for people.


def as_text(snapshot: Snapshot, now: float) -> Iterator[bytes]:
    return (line.encode("utf-8", "replace") + b"\n" for line in _lines(snapshot, now))


def _lines(snapshot: Snapshot, now: float) -> Iterator[str]:
    yield f"nsqd v{snapshot.version} (built w/{platform.python_implementation()} {platform.python_version()})"
    yield f"start_time {_rfc3339(snapshot.start_time)}"
    yield f"uptime {format_duration(max(0.0, now - snapshot.start_time))}"
    yield ""
    yield f"Health: {snapshot.health}"
    if snapshot.memory is not None:
        yield ""
        yield "Memory:"
        for name, value in snapshot.memory.items():
            yield f"   {name:<25}\t{value}"
    yield ""
    heading = "Topics:"
    for topic, channels in snapshot.topics or ():
        yield heading
        yield from _topic_lines(topic, channels, now)
        heading = ""
    if heading:
        yield "Topics: None"
    yield ""
    heading = "Producers:"
    for producer in snapshot.producers:
        if heading:
            yield heading
        yield f"   {_producer(producer, now)}"
        heading = ""
    if heading:
        yield "Producers: None"


def _topic_lines(topic: Json, channels: Channels, now: float) -> Iterator[str]:
    yield (
        f"{_paused(topic, '   ')}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
        f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: "
        f"{_latency_text(topic)}"
    )
    for channel, clients in channels:
        yield (
            f"{_paused(channel, '      ')}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} e2e%: "
            f"{_latency_text(channel)}"
        )
        for client in clients or ():
            yield f"        {_consumer(client, now)}"


def _latency_text(thing: Json) -> str:
    percentiles = thing["e2e_processing_latency"]["percentiles"]
    return ", ".join(_rough_duration(entry["value"]) for entry in percentiles or ())


def _rough_duration(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds > size:
            return f"{nanoseconds / size:.1f}{unit}"
    return f"{nanoseconds:.1f}ns"


def _paused(thing: Json, margin: str) -> str:
    return margin[:-3] + "*P " if thing["paused"] else margin


def _consumer(client: Json, now: float) -> str:
    return (
        f"{_name(client)} state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} "
        f"re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8} "
        f"connected: {_since(client, now)}"
    )


def _producer(client: Json, now: float) -> str:
    counts = client["pub_counts"]
    total = sum(entry["count"] for entry in counts)
    topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in counts)
    return f"{_name(client)} msgs: {total:<8} topics: {topics} connected: {_since(client, now)}"


def _name(client: Json) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    return f"[{client['version']} {name:<21}]"


def _since(client: Json, now: float) -> str:
    return format_duration(max(0, int(now) - client["connect_ts"]))


def _rfc3339(seconds: int) -> str:
    text = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))
    return text[:-5] + "Z" if text.endswith("+0000") else f"{text[:-2]}:{text[-2:]}"


# In Prometheus' text format.


PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

#: A name of ``METRICS``, its labels as written in the output, and its value.
Sample = tuple[str, str, float]

_GAUGE, _COUNTER = "gauge", "counter"

#: All metrics in the order of the output: kind and help text.
METRICS = {
    "nsqd_info": (_GAUGE, "Always 1; the label has the version of nsqd."),
    "nsqd_healthy": (_GAUGE, "1 while nsqd's /ping answers OK, else 0."),
    "nsqd_connections": (_GAUGE, "TCP connections of clients."),
    "nsqd_producers": (_GAUGE, "TCP connections of clients that have published."),
    "nsqd_pending_body_bytes": (_GAUGE, "Bytes of incomplete message bodies in memory."),
    "nsqd_errors_total": (
        _COUNTER,
        "Commands and requests that nsqd has refused, by protocol and error code.",
    ),
    "nsqd_topics": (_GAUGE, "Number of topics."),
    "nsqd_channels": (_GAUGE, "Number of channels of all topics."),
    "nsqd_series_left_out": (
        _GAUGE,
        "Series of topics and channels left out because of --metrics-max-series.",
    ),
    "nsqd_topic_depth": (_GAUGE, "Messages waiting in the topic."),
    "nsqd_topic_backend_depth": (_GAUGE, "Messages waiting in the topic that are only on disk."),
    "nsqd_topic_messages_total": (_COUNTER, "Messages published to the topic."),
    "nsqd_topic_message_bytes_total": (_COUNTER, "Bytes of the bodies of messages published to the topic."),
    "nsqd_topic_dropped_total": (_COUNTER, "Messages that the topic has dropped, with --max-channel-depth."),
    "nsqd_topic_paused": (_GAUGE, "1 while the topic is paused."),
    "nsqd_topic_e2e_latency_seconds": (
        _GAUGE,
        "Seconds from publication to FIN, over all channels of the topic, by percentile.",
    ),
    "nsqd_channel_depth": (_GAUGE, "Messages waiting in the channel."),
    "nsqd_channel_backend_depth": (_GAUGE, "Messages waiting in the channel that are only on disk."),
    "nsqd_channel_in_flight": (_GAUGE, "Messages of the channel sent to a client and not answered yet."),
    "nsqd_channel_deferred": (_GAUGE, "Messages of the channel held back until their delay is over."),
    "nsqd_channel_deferred_on_disk": (_GAUGE, "Deferred messages of the channel that are only on disk."),
    "nsqd_channel_next_deferred_seconds": (
        _GAUGE,
        "Seconds until the next deferred message of the channel is due.",
    ),
    "nsqd_channel_messages_total": (_COUNTER, "Messages that the channel has received from its topic."),
    "nsqd_channel_requeued_total": (_COUNTER, "Messages of the channel that clients have requeued."),
    "nsqd_channel_timed_out_total": (
        _COUNTER,
        "Messages of the channel that were not answered before their timeout.",
    ),
    "nsqd_channel_dropped_total": (
        _COUNTER,
        "Messages that the channel has dropped, with --max-channel-depth.",
    ),
    "nsqd_channel_clients": (_GAUGE, "Consumers of the channel."),
    "nsqd_channel_paused": (_GAUGE, "1 while the channel is paused."),
    "nsqd_channel_e2e_latency_seconds": (
        _GAUGE,
        "Seconds from publication to FIN in the channel, by percentile.",
    ),
    "process_cpu_seconds_total": (_COUNTER, "Seconds of processor time that the process has used."),
    "process_resident_memory_bytes": (_GAUGE, "Bytes of physical memory that the process uses."),
    "process_open_fds": (_GAUGE, "Open files and sockets of the process."),
    "process_max_fds": (_GAUGE, "Maximum open files and sockets of the process."),
    "process_start_time_seconds": (_GAUGE, "Start time of nsqd, in seconds since 1970."),
}

_OF_TOPIC = {
    "nsqd_topic_depth": "depth",
    "nsqd_topic_backend_depth": "backend_depth",
    "nsqd_topic_messages_total": "message_count",
    "nsqd_topic_message_bytes_total": "message_bytes",
    "nsqd_topic_paused": "paused",
}
_OF_CHANNEL = {
    "nsqd_channel_depth": "depth",
    "nsqd_channel_backend_depth": "backend_depth",
    "nsqd_channel_in_flight": "in_flight_count",
    "nsqd_channel_deferred": "deferred_count",
    "nsqd_channel_messages_total": "message_count",
    "nsqd_channel_requeued_total": "requeue_count",
    "nsqd_channel_timed_out_total": "timeout_count",
    "nsqd_channel_clients": "client_count",
    "nsqd_channel_paused": "paused",
}
#: Lines of one metric that one piece holds.
_METRIC_STEP = 200


def as_prometheus(samples: Iterable[Sample], topics: Topics, max_series: int) -> Iterator[bytes]:
    """Yield the samples and at most ``max_series`` samples of topics and channels, sorted by name.

    The values of a metric must be consecutive, so the pieces are empty until all values are collected.
    """
    lines: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in samples:
        lines[name].append(_sample_line(name, labels, value))
    topic_count = channel_count = shown = left_out = 0
    for thing, labels in _labelled(topics):
        topic_count += not labels.count(",")
        channel_count += labels.count(",")
        found = list(_samples_of(thing, labels))
        if shown + len(found) > max_series:
            left_out += len(found)
        else:
            shown += len(found)
            for name, labels, value in found:
                lines[name].append(_sample_line(name, labels, value))
        yield b""
    counts = {"nsqd_topics": topic_count, "nsqd_channels": channel_count, "nsqd_series_left_out": left_out}
    for name, value in counts.items():
        lines[name].append(_sample_line(name, "", value))
    for name, (kind, meaning) in METRICS.items():
        if lines[name]:
            yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n".encode()
            for start in range(0, len(lines[name]), _METRIC_STEP):
                yield "".join(lines[name][start : start + _METRIC_STEP]).encode()


def _labelled(topics: Topics) -> Iterator[tuple[Json, str]]:
    """Yield every topic and channel with its labels, in which no name needs escaping."""
    for topic, channels in topics:
        labels = f'topic="{topic["topic_name"]}"'
        yield topic, labels
        for channel, _ in channels:
            yield channel, f'{labels},channel="{channel["channel_name"]}"'


def _samples_of(thing: Json, labels: str) -> Iterator[Sample]:
    kind, figures = ("channel", _OF_CHANNEL) if "channel_name" in thing else ("topic", _OF_TOPIC)
    for name, key in figures.items():
        yield name, labels, thing[key]
    if "dropped_count" in thing:
        yield f"nsqd_{kind}_dropped_total", labels, thing["dropped_count"]
    if "next_deferred_ms" in thing:
        yield "nsqd_channel_deferred_on_disk", labels, thing["deferred_on_disk"]
        yield "nsqd_channel_next_deferred_seconds", labels, thing["next_deferred_ms"] / 1000
    for entry in thing["e2e_processing_latency"]["percentiles"] or ():
        quantile = f'{labels},quantile="{entry["quantile"]:g}"'
        yield f"nsqd_{kind}_e2e_latency_seconds", quantile, entry["value"] / 1e9


def _sample_line(name: str, labels: str, value: float) -> str:
    shown = str(int(value)) if value == int(value) else repr(float(value))
    return f"{name}{{{labels}}} {shown}\n" if labels else f"{name} {shown}\n"


def error_samples(protocol: str, counts: Mapping[str, int]) -> Iterator[Sample]:
    for code, count in sorted(counts.items()):
        yield "nsqd_errors_total", f'protocol="{protocol}",code="{code}"', count


def process_samples(start_time: int) -> Iterator[Sample]:
    """Yield figures of the process, under the names of Prometheus' own libraries."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield "process_cpu_seconds_total", "", used.ru_utime + used.ru_stime
    yield "process_resident_memory_bytes", "", resident_bytes()
    with suppress(OSError):  # there is no /proc everywhere
        yield "process_open_fds", "", len(os.listdir("/proc/self/fd"))
    yield "process_max_fds", "", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield "process_start_time_seconds", "", start_time


# Memory, under Go's names: the nearest figure that CPython has, or 0.


class Memory:
    """Memory figures; between ``start`` and ``stop`` it also times collections of older generations."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = 0.0
        self._pauses: deque[float] = deque(maxlen=_PAUSES)

    def start(self) -> None:
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        with suppress(ValueError):
            gc.callbacks.remove(self._collecting)

    def figures(self) -> dict[str, int]:
        pauses = sorted(self._pauses)
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": 0,
            "heap_in_use_bytes": resident_bytes(),
            "heap_released_bytes": 0,
            "gc_pause_usec_100": _microseconds(pauses, 100),
            "gc_pause_usec_99": _microseconds(pauses, 99),
            "gc_pause_usec_95": _microseconds(pauses, 95),
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
        }

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        # The youngest generation is collected hundreds of times a second, in negligible time.
        if info["generation"] == 0:
            return
        if phase == "start":
            self._began = self._now()
        else:
            self._pauses.append(self._now() - self._began)


def _microseconds(ascending: list[float], percentile: int) -> int:
    if not ascending:
        return 0
    place = min(len(ascending) * percentile // 100, len(ascending) - 1)
    return round(ascending[place] * 1_000_000)


def resident_bytes() -> int:
    """Return the physical memory of the process; its peak on systems without /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)
