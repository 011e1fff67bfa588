"""What nsqd tells statsd, as packets: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nsq.daemons.nsqd.stats import Json
from nsq.wire.names import is_ephemeral

_CHANNEL_GAUGES = {
    "depth": "depth",
    "backend_depth": "backend_depth",
    "in_flight_count": "in_flight_count",
    "deferred_count": "deferred_count",
    "client_count": "clients",
}
_CHANNEL_COUNTERS = ("message_count", "requeue_count", "timeout_count")
_MEMORY_GAUGES = (
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
)

#: A metric's name, its value, and whether that is a total since the start, told as what came since last time.
_Metric = tuple[str, int, bool]


def full_prefix(template: str, broadcast_address: str, http_port: int) -> str:
    """``nsq.%s`` becomes ``nsq.10_0_0_1_4151.``: Go's name for an nsqd, which nsqadmin's graphs expect."""
    host = f"[{broadcast_address}]" if ":" in broadcast_address else broadcast_address
    name = f"{host}:{http_port}".replace(".", "_").replace(":", "_")
    prefix = template.replace("%s", name)
    return prefix if not prefix or prefix.endswith(".") else prefix + "."


class Report:
    """Remembers what it has told: statsd wants to know of counters how much they have grown."""

    def __init__(self, prefix: str, packet_size: int, *, exclude_ephemeral: bool = False) -> None:
        self._prefix = prefix
        self._packet_size = packet_size
        self._exclude_ephemeral = exclude_ephemeral
        self._told: dict[str, int] = {}

    def packets(self, topics: Iterable[Json], memory: Json | None) -> list[bytes]:
        """The statistics of now, as ``stats.topics`` and ``stats.memory`` give them."""
        told: dict[str, int] = {}
        lines = []
        for name, value, total in self._metrics(topics, memory):
            if total:
                told[name] = value
                value = self._growth(name, value)
            lines.append(f"{self._prefix}{name}:{value}|{'c' if total else 'g'}\n".encode())
        self._told = told
        return list(_packed(lines, self._packet_size))

    def _growth(self, name: str, value: int) -> int:
        before = self._told.get(name, 0)
        # A topic that was deleted and has come again counts from zero.
        return value - before if value >= before else value

    def _metrics(self, topics: Iterable[Json], memory: Json | None) -> Iterator[_Metric]:
        for topic in topics:
            if not self._left_out(topic["topic_name"]):
                yield from self._of_topic(topic)
        if memory is not None:
            for name in _MEMORY_GAUGES:
                yield f"mem.{name}", memory[name], False
            yield "mem.gc_runs", memory["gc_total_runs"], True

    def _of_topic(self, topic: Json) -> Iterator[_Metric]:
        stem = f"topic.{topic['topic_name']}."
        yield stem + "message_count", topic["message_count"], True
        yield stem + "message_bytes", topic["message_bytes"], True
        yield stem + "depth", topic["depth"], False
        yield stem + "backend_depth", topic["backend_depth"], False
        yield from _latencies(stem, topic)
        for channel in topic["channels"]:
            if not self._left_out(channel["channel_name"]):
                yield from _of_channel(f"{stem}channel.{channel['channel_name']}.", channel)

    def _left_out(self, name: str) -> bool:
        return self._exclude_ephemeral and is_ephemeral(name)


def _of_channel(stem: str, channel: Json) -> Iterator[_Metric]:
    for key in _CHANNEL_COUNTERS:
        yield stem + key, channel[key], True
    for key, name in _CHANNEL_GAUGES.items():
        yield stem + name, channel[key], False
    yield from _latencies(stem, channel)


def _latencies(stem: str, thing: Json) -> Iterator[_Metric]:
    for entry in thing["e2e_processing_latency"]["percentiles"] or ():
        yield f"{stem}e2e_processing_latency_{entry['quantile'] * 100:.0f}", entry["value"], False


def _packed(lines: Iterable[bytes], size: int) -> Iterator[bytes]:
    """As many whole lines together as a packet takes; one that is too long alone goes alone."""
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > size:
            yield packet
            packet = b""
        packet += line
    if packet:
        yield packet
