"""Pushes statistics to statsd: makes the packets, and sends them over UDP at every interval.

If statsd is unreachable or its name does not resolve, the push is skipped with a line in the log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from nsq.daemons.nsqd import stats
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.stats import Channels, Json, Memory, Topics
from nsq.daemons.serve.listen import TcpAddress, UnixAddress, address_of
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.slices import Slices
from nsq.daemons.serve.worker_thread import in_thread
from nsq.errors import ConfigError
from nsq.wire.names import is_ephemeral

_RESOLVE_WITHIN = 1.0
#: The longest pause between two packets of one push: a burst could overflow statsd's receive buffer.
_PAUSE = 0.01

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

#: A metric's name, its value, and whether it is a counter: statsd then gets the growth since the last push.
_Metric = tuple[str, int, bool]
_Where = tuple[socket.AddressFamily, Any]


def full_prefix(template: str, broadcast_address: str, http_port: int) -> str:
    """Turn ``nsq.%s`` into ``nsq.10_0_0_1_4151.``: Go's name for an nsqd, which nsqadmin's graphs expect."""
    host = f"[{broadcast_address}]" if ":" in broadcast_address else broadcast_address
    name = f"{host}:{http_port}".replace(".", "_").replace(":", "_")
    prefix = template.replace("%s", name)
    return prefix if not prefix or prefix.endswith(".") else prefix + "."


class Report:
    """Makes packets, and remembers the last value of each counter: statsd expects its growth."""

    def __init__(self, prefix: str, packet_size: int, *, exclude_ephemeral: bool = False) -> None:
        self._prefix = prefix
        self._packet_size = packet_size
        self._exclude_ephemeral = exclude_ephemeral
        self._last_figures: dict[str, int] = {}

    def packets(self, topics: Topics, memory: Json | None) -> Generator[None, None, list[bytes]]:
        """Make packets of the current statistics, in short steps."""
        figures: dict[str, int] = {}
        lines = []
        for name, value, total in self._metrics(topics, memory):
            if total:
                figures[name] = value
                value = self._growth(name, value)
            lines.append(f"{self._prefix}{name}:{value}|{'c' if total else 'g'}\n".encode())
            yield
        self._last_figures = figures
        packets = []
        for packet in _packed(lines, self._packet_size):
            packets.append(packet)
            yield
        return packets

    def _growth(self, name: str, value: int) -> int:
        before = self._last_figures.get(name, 0)
        # A topic that was deleted and created again counts from zero.
        return value - before if value >= before else value

    def _metrics(self, topics: Topics, memory: Json | None) -> Iterator[_Metric]:
        for topic, channels in topics:
            if not self._left_out(topic["topic_name"]):
                yield from self._of_topic(topic, channels)
        if memory is not None:
            for name in _MEMORY_GAUGES:
                yield f"mem.{name}", memory[name], False
            yield "mem.gc_runs", memory["gc_total_runs"], True

    def _of_topic(self, topic: Json, channels: Channels) -> Iterator[_Metric]:
        stem = f"topic.{topic['topic_name']}."
        yield stem + "message_count", topic["message_count"], True
        yield stem + "message_bytes", topic["message_bytes"], True
        if "dropped_count" in topic:
            yield stem + "dropped_count", topic["dropped_count"], True
        yield stem + "depth", topic["depth"], False
        yield stem + "backend_depth", topic["backend_depth"], False
        yield from _latencies(stem, topic)
        for channel, _ in channels:
            if not self._left_out(channel["channel_name"]):
                yield from _of_channel(f"{stem}channel.{channel['channel_name']}.", channel)

    def _left_out(self, name: str) -> bool:
        return self._exclude_ephemeral and is_ephemeral(name)


def _of_channel(stem: str, channel: Json) -> Iterator[_Metric]:
    for key in _CHANNEL_COUNTERS:
        yield stem + key, channel[key], True
    if "dropped_count" in channel:
        yield stem + "dropped_count", channel["dropped_count"], True
    for key, name in _CHANNEL_GAUGES.items():
        yield stem + name, channel[key], False
    yield from _latencies(stem, channel)


def _latencies(stem: str, thing: Json) -> Iterator[_Metric]:
    for entry in thing["e2e_processing_latency"]["percentiles"] or ():
        yield f"{stem}e2e_processing_latency_{entry['quantile'] * 100:.0f}", entry["value"], False


def _packed(lines: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Join lines to packets of at most ``size`` bytes; a longer line becomes a packet of its own."""
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > size:
            yield packet
            packet = b""
        packet += line
    if packet:
        yield packet


class StatsdSender:
    """Calls ``packets`` at every interval and sends the result to statsd."""

    def __init__(
        self,
        address: str,
        interval: float,
        packets: Callable[[], Generator[object, None, list[bytes]]],
        log: DaemonLog,
    ) -> None:
        self._address = _udp_address(address)
        self._interval = interval
        self._packets = packets
        self._log = log
        self._slices = Slices()
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._lookup: asyncio.Future[_Where] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._push_until_closed(), name="nsqd-statsd")

    async def close(self) -> None:
        """Push once more, without pauses, and end. A second call does nothing."""
        task, self._task = self._task, None
        if task is not None:
            self._closing.set()
            await asyncio.gather(task, return_exceptions=True)

    async def _push_until_closed(self) -> None:
        last = False
        while not last:
            last = await self._closed_within(self._interval)
            await self._push()

    async def _closed_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        return self._closing.is_set()

    async def _push(self) -> None:
        try:
            async with asyncio.timeout(_RESOLVE_WITHIN):
                family, where = await self._resolved()
        except (OSError, UnicodeError, TimeoutError) as error:
            self._log.error("STATSD: %s cannot be found - %s", self._address, str(error) or "no answer")
            return
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                await self._send(sock, where)
        except OSError as error:
            self._log.error("STATSD: pushing to %s failed - %s", self._address, error)

    async def _send(self, sock: socket.socket, where: Any) -> None:
        packets = await self._slices.result(self._packets())
        self._log.debug("STATSD: pushing %d packets to %s", len(packets), self._address)
        pause = min(_PAUSE, self._interval / (2 * max(1, len(packets))))
        for packet in packets:
            # The socket is not connected: otherwise a missing statsd would make the next send fail.
            sock.sendto(packet, where)
            await self._closed_within(pause)

    async def _resolved(self) -> _Where:
        """Resolve statsd's address at every push, because it may change."""
        host, port = self._address.host or "localhost", self._address.port
        try:
            return _found(socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST))
        except socket.gaierror:
            pass
        if self._lookup is None:
            self._lookup = in_thread(lambda: _resolve(host, port), "nsqd-statsd-lookup")
            self._lookup.add_done_callback(self._looked_up)
        return await asyncio.shield(self._lookup)

    def _looked_up(self, lookup: asyncio.Future[_Where]) -> None:
        self._lookup = None
        if not lookup.cancelled():
            lookup.exception()  # otherwise asyncio logs that the error was never retrieved


def statsd_push(
    options: NsqdOptions, http_port: int, broker: Broker, memory: Memory, log: DaemonLog
) -> StatsdSender | None:
    """Begin to push the broker's statistics; None without --statsd-address."""
    if not options.statsd_address:
        return None
    report = Report(
        full_prefix(options.statsd_prefix, options.broadcast_address, http_port),
        options.statsd_udp_packet_size,
        exclude_ephemeral=options.statsd_exclude_ephemeral,
    )

    def packets() -> Generator[None, None, list[bytes]]:
        topics = stats.topics(broker, stats.Filter(include_clients=False)) or ()
        return report.packets(topics, memory.figures() if options.statsd_mem_stats else None)

    sender = StatsdSender(options.statsd_address, options.statsd_interval, packets, log)
    sender.start()
    return sender


def _udp_address(text: str) -> TcpAddress:
    address = address_of("--statsd-address", text)
    if isinstance(address, UnixAddress):
        raise ConfigError(f"--statsd-address {text!r} is not <addr>:<port>")
    return address


def _resolve(host: str, port: int) -> _Where:
    return _found(socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM))


def _found(infos: list[Any]) -> _Where:
    """Choose like Go: IPv4 if a name has both."""
    family, _, _, _, where = min(infos, key=lambda info: info[0] != socket.AF_INET)
    return family, where
