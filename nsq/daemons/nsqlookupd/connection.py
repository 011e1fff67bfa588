"""The TCP connection of one nsqd: moves bytes between the event loop and a Session, within limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from nsq.daemons.listen import TcpAddress
from nsq.daemons.nsqlookupd.protocol import LookupSession

# An nsqd introduces itself at once. Whoever has not by then is a port scanner, or gone without a word.
IDENTIFY_SECONDS = 60.0
# Who leaves so much of its answers unread is not read from, and cut off if that lasts.
UNREAD_BYTES = 64 * 1024
UNREAD_SECONDS = 30.0
# How long the last answer may take to leave.
CLOSE_SECONDS = 5.0
# The protocol knows no deadline for an nsqd's pings; that its host has vanished the kernel finds out.
KEEPALIVE_SECONDS = 15
KEEPALIVE_PROBES = 9


class LookupConnection(asyncio.Protocol):
    """Is in ``connected`` for as long as it is."""

    def __init__(
        self,
        make_session: Callable[[str], LookupSession],
        connected: set[LookupConnection],
        clock: Callable[[], float],
    ) -> None:
        self._make_session = make_session
        self._connected = connected
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._gone = self._loop.create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._unread = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES)
        self._session = self._make_session(_remote_address(self._transport))
        self._connected.add(self)
        _keep_alive(self._transport)
        self._abort_in(IDENTIFY_SECONDS)

    def data_received(self, data: bytes) -> None:
        was_identified = self._session.identified
        self._transport.write(self._session.feed(data, self._clock()))
        if self._session.over:
            self.close()
        elif self._session.identified and not was_identified and not self._unread:
            self._abort_in(None)

    def pause_writing(self) -> None:
        self._unread = True
        self._transport.pause_reading()
        self._abort_in(UNREAD_SECONDS)

    def resume_writing(self) -> None:
        self._unread = False
        if not self._transport.is_closing():
            self._abort_in(None if self._session.identified else IDENTIFY_SECONDS)
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._abort_in(None)
        self._connected.discard(self)
        self._session.lost()
        if not self._gone.done():
            self._gone.set_result(None)

    def close(self, within: float = CLOSE_SECONDS) -> None:
        """Send what is written already, then close; who does not read cannot hold that up for longer."""
        if not self._transport.is_closing():
            self._abort_in(within)
            self._transport.close()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._gone)

    def _abort_in(self, seconds: float | None) -> None:
        """There is one deadline, that of the stage the connection is in."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self._transport.abort)


def _remote_address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return str(TcpAddress(peer[0], peer[1])) if isinstance(peer, tuple) else "@"


def _keep_alive(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        # Not every system has every one of them.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
