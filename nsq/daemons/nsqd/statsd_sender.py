"""Pushes nsqd's statistics to statsd over UDP. A statsd that is gone, or a name nobody resolves, costs a line
in the log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nsq.daemons.listen import TcpAddress, UnixAddress, parse_address
from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqd import stats
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.memory import Memory
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.statsd import Report, full_prefix
from nsq.daemons.worker_thread import in_thread
from nsq.errors import ConfigError

_RESOLVE_WITHIN = 1.0
#: Between two packets of one push at most: a burst would be more than statsd's socket holds.
_PAUSE = 0.01

_Where = tuple[socket.AddressFamily, Any]


class StatsdSender:
    """``packets`` is asked for what there is to tell at every push."""

    def __init__(
        self, address: str, interval: float, packets: Callable[[], list[bytes]], log: DaemonLog
    ) -> None:
        self._address = _udp_address(address)
        self._interval = interval
        self._packets = packets
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._lookup: asyncio.Future[_Where] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._push_until_closed(), name="nsqd-statsd")

    async def close(self) -> None:
        """Push once more, without pauses, and end. A second time: nothing."""
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
        packets = self._packets()
        self._log.debug("STATSD: pushing %d packets to %s", len(packets), self._address)
        pause = min(_PAUSE, self._interval / (2 * max(1, len(packets))))
        for packet in packets:
            # Not connected: the system would report a missing statsd by failing the packet after.
            sock.sendto(packet, where)
            await self._closed_within(pause)

    async def _resolved(self) -> _Where:
        """Where statsd is now: asked for again at every push, as names move."""
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
            lookup.exception()  # seen, even if nobody waits for it any more


def statsd_push(
    options: NsqdOptions, http_port: int, broker: Broker, memory: Memory, log: DaemonLog
) -> StatsdSender | None:
    """Begin to push what is known of the broker; None when nobody asked for it."""
    if not options.statsd_address:
        return None
    report = Report(
        full_prefix(options.statsd_prefix, options.broadcast_address, http_port),
        options.statsd_udp_packet_size,
        exclude_ephemeral=options.statsd_exclude_ephemeral,
    )

    def packets() -> list[bytes]:
        topics = stats.topics(broker, stats.Filter(include_clients=False)) or ()
        return report.packets(topics, memory.figures() if options.statsd_mem_stats else None)

    sender = StatsdSender(options.statsd_address, options.statsd_interval, packets, log)
    sender.start()
    return sender


def _udp_address(text: str) -> TcpAddress:
    address = parse_address(text)
    if isinstance(address, UnixAddress):
        raise ConfigError(f"--statsd-address {text!r} is not <addr>:<port>")
    return address


def _resolve(host: str, port: int) -> _Where:
    return _found(socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM))


def _found(infos: list[Any]) -> _Where:
    """Like Go: IPv4 where a name has both."""
    family, _, _, _, where = min(infos, key=lambda info: info[0] != socket.AF_INET)
    return family, where
