"""One nsqd's connection to nsqlookupd: its commands, their replies, and its limits.

``LookupSession`` executes commands: bytes in, bytes out, changing the registry. It knows no socket, and time
is an argument. ``LookupConnection`` moves the bytes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import cast

from nsq.daemons.nsqlookupd.registry import Peer, Registry
from nsq.daemons.serve.listen import TcpAddress
from nsq.daemons.serve.logs import DaemonLog
from nsq.errors import WireError
from nsq.wire import lookup
from nsq.wire.lookup import Body, LookupCommandParser, PeerInfo, Violation
from nsq.wire.names import valid_channel, valid_topic

# The time for IDENTIFY. An nsqd sends it at once; a client that does not is a port scanner, or dead.
IDENTIFY_SECONDS = 60.0
# With this many unread bytes of replies a client is not read from; after this time it is disconnected.
UNREAD_BYTES = 64 * 1024
UNREAD_SECONDS = 30.0
# Bytes of commands that are executed before the event loop serves others.
PORTION = 16 * 1024
# How long sending the last reply may take.
CLOSE_SECONDS = 5.0
# The protocol has no deadline for an nsqd's pings; TCP keepalive detects a dead host.
KEEPALIVE_SECONDS = 15
KEEPALIVE_PROBES = 9

_OK = lookup.reply(lookup.OK)


class _Refusal(Exception):
    """An error reply. The connection is closed after it, as after every error."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class LookupSession:
    """Executes the commands of one nsqd."""

    def __init__(
        self,
        registry: Registry,
        remote_address: str,
        own_info: Callable[[], PeerInfo],
        log: DaemonLog,
    ) -> None:
        self._registry = registry
        self._remote_address = remote_address
        self._own_info = own_info
        self._log = log
        self._parser = LookupCommandParser()
        self._peer: Peer | None = None
        self.over = False

    @property
    def identified(self) -> bool:
        return self._peer is not None

    def feed(self, data: bytes, now: float) -> bytes:
        """Return the replies to what arrived. If ``over`` is set then, close the connection after them."""
        if self.over:
            return b""
        answers = []
        try:
            for event in self._parser.feed(data):
                answers.append(self._answer(event, now))  # noqa: PERF401 - kept if a refusal follows
        except _Refusal as refusal:
            self.over = True
            self._log.info("client(%s): refused: %r", self._remote_address, refusal.answer)
            answers.append(lookup.reply(refusal.answer))
        return b"".join(answers)

    def lost(self) -> Iterator[None]:
        """After the connection has ended, hide its nsqd; the returned iterator removes its registrations."""
        self.over = True
        peer, self._peer = self._peer, None
        if peer is None:
            return iter(())
        self._log.info("client(%s): gone, its registrations are removed", self._remote_address)
        return self._registry.disconnect(peer)

    def _answer(self, event: lookup.Event, now: float) -> bytes:
        if isinstance(event, Body):
            return self._identify(event.data, now)
        if isinstance(event, Violation):
            raise _Refusal(event.reply)
        name, params = event
        if name == b"REGISTER":
            return self._register(*self._subject(name, params))
        if name == b"UNREGISTER":
            return self._unregister(*self._subject(name, params))
        if name == b"PING":
            if self._peer is not None:
                self._peer.last_update = now
            return _OK
        if name == b"IDENTIFY":
            if self._peer is not None:
                raise _Refusal(b"E_INVALID cannot IDENTIFY again")
            return b""  # its body follows
        raise _Refusal(b"E_INVALID invalid command " + name)

    def _identify(self, body: bytes, now: float) -> bytes:
        try:
            info = lookup.parse_peer_info(body)
        except WireError:
            raise _Refusal(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not info.complete:
            raise _Refusal(b"E_BAD_BODY IDENTIFY missing fields")
        self._peer = Peer(info, self._remote_address, now)
        self._registry.connect(self._peer)
        self._log.info(
            "client(%s): IDENTIFY %r, TCP port %d, HTTP port %d, version %r",
            self._remote_address,
            info.broadcast_address,
            info.tcp_port,
            info.http_port,
            info.version,
        )
        return lookup.reply(lookup.identify_reply(self._own_info()))

    def _subject(self, command: bytes, params: tuple[bytes, ...]) -> tuple[Peer, str, str | None]:
        if self._peer is None:
            raise _Refusal(b"E_INVALID client must IDENTIFY")
        if not params:
            raise _Refusal(b"E_INVALID %b insufficient number of params" % command)
        topic, channel = params[0], params[1] if len(params) > 1 else b""
        if not valid_topic(topic):
            raise _Refusal(b"E_BAD_TOPIC %b topic name '%b' is not valid" % (command, topic))
        if channel and not valid_channel(channel):
            raise _Refusal(b"E_BAD_CHANNEL %b channel name '%b' is not valid" % (command, channel))
        return self._peer, topic.decode("ascii"), channel.decode("ascii") or None

    def _register(self, peer: Peer, topic: str, channel: str | None) -> bytes:
        if channel is None:
            self._registry.register_topic(peer, topic)
        else:
            self._registry.register_channel(peer, topic, channel)
        self._log.debug("client(%s): REGISTER %s %s", self._remote_address, topic, channel or "")
        return _OK

    def _unregister(self, peer: Peer, topic: str, channel: str | None) -> bytes:
        if channel is None:
            self._registry.unregister_topic(peer, topic)
        else:
            self._registry.unregister_channel(peer, topic, channel)
        self._log.debug("client(%s): UNREGISTER %s %s", self._remote_address, topic, channel or "")
        return _OK


class LookupConnection(asyncio.Protocol):
    """Adds itself to ``connected`` while it is open. ``work_off`` runs the iterator that ``lost`` returns."""

    def __init__(
        self,
        make_session: Callable[[str], LookupSession],
        connected: set[LookupConnection],
        clock: Callable[[], float],
        work_off: Callable[[Iterator[None]], object],
    ) -> None:
        self._make_session = make_session
        self._connected = connected
        self._clock = clock
        self._work_off = work_off
        self._loop = asyncio.get_running_loop()
        self._gone = self._loop.create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._unread = False
        self._waiting = b""  # received commands beyond one PORTION, for the next round of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES)
        self._session = self._make_session(_remote_address(self._transport))
        self._connected.add(self)
        _keep_alive(self._transport)
        self._abort_in(IDENTIFY_SECONDS)

    def data_received(self, data: bytes) -> None:
        portion, self._waiting = data[:PORTION], data[PORTION:]
        was_identified = self._session.identified
        self._transport.write(self._session.feed(portion, self._clock()))
        if self._session.over:
            self.close()
        elif self._session.identified and not was_identified and not self._unread:
            self._abort_in(None)
        if len(portion) == PORTION and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._waiting and not self._unread:
            self.data_received(self._waiting)
        if not (self._waiting or self._unread or self._transport.is_closing()):
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._unread = True
        self._transport.pause_reading()
        self._abort_in(UNREAD_SECONDS)

    def resume_writing(self) -> None:
        self._unread = False
        if not self._transport.is_closing():
            self._abort_in(None if self._session.identified else IDENTIFY_SECONDS)
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._abort_in(None)
        self._connected.discard(self)
        self._work_off(self._session.lost())
        if not self._gone.done():
            self._gone.set_result(None)

    def close(self, within: float = CLOSE_SECONDS) -> None:
        """Send what is written already, then close; abort after ``within`` seconds."""
        if not self._transport.is_closing():
            self._abort_in(within)
            self._transport.close()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._gone)

    def _abort_in(self, seconds: float | None) -> None:
        """Replace the deadline, after which the connection is aborted; None removes it."""
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
        # Some systems lack some of these options.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
