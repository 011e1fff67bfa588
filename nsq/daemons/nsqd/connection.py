"""A client's TCP or Unix connection on the event loop: moves bytes between a transport and a ``Session``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from nsq.daemons.nsqd.session.session import Environment, Session
from nsq.daemons.serve.listen import TcpAddress
from nsq.wire.frames import encode_error

TOO_MANY = "E_TOO_MANY_CONNECTIONS"
#: After a chunk this large the loop serves other clients first: uvloop would read 32 such chunks in a row.
_LARGE = 128 * 1024
#: How long a client may take to read its last bytes and close before the connection is aborted.
_LINGER = 1.0
#: Bytes of replies that a client which does not read may still cause before its commands wait.
_UNREAD_REPLIES = 64 * 1024


class Connection(asyncio.Protocol):
    """Bounds unsent output. While the client does not read, nsqd writes no messages to it. It still reads the
    client's answers (FIN, REQ, TOUCH), or handled messages would time out. It stops when many replies are
    unread too.
    """

    def __init__(
        self,
        environment: Environment,
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
    ) -> None:
        self._environment = environment
        self._opened = opened
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._holds = 0
        self._finishing = False
        self._cut_off: asyncio.TimerHandle | None = None
        self.session: Session | None = None
        self.full = self.congested = False
        self._unread = 0  # bytes written since it is full

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by isinstance: uvloop's transports are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        peer = self._transport.get_extra_info("peername")
        address = str(TcpAddress(peer[0], peer[1])) if isinstance(peer, tuple) else "@"
        if self._refused_as_too_many(address):
            return
        self.session = Session(self._environment, self, address)
        self._environment.log.info("TCP: new client(%s)", address)
        self._opened(self)

    def _refused_as_too_many(self, address: str) -> bool:
        environment, most = self._environment, self._environment.options.max_connections
        if not most or environment.connections < most:
            environment.connections += 1
            return False
        environment.log.warning("client(%s) refused: --max-connections is %d", address, most)
        environment.errors[TOO_MANY] += 1
        reason = f"{TOO_MANY} nsqd has as many clients as --max-connections allows ({most})"
        self.write(encode_error(reason.encode()))
        self.finish()
        return True

    def data_received(self, data: bytes) -> None:
        if self._finishing or self.session is None:
            return
        try:
            self.session.receive(data)
        except Exception as error:
            # A bug in nsqd costs this client its connection, and no other client.
            self._environment.log.error("client(%s) dropped", self.session.remote_address, exc=error)
            self.abort()
        if len(data) >= _LARGE:
            self.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._finishing:
            self.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
        if self.session is not None:
            self._environment.connections -= 1
            self.session.lost()
            self._environment.log.info("client(%s) disconnected", self.session.remote_address)
        self._closed(self)
        # Break the reference cycle, so that memory is freed without a garbage collection.
        self.session = self._transport = None

    def pause_writing(self) -> None:
        self.full, self._unread = True, 0

    def resume_writing(self) -> None:
        self.full = False
        if self.congested:
            self.congested = False
            self.resume_reading()
        if self.session is not None:
            self.session.writable()

    # The session's side.

    def write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.full:
            self._unread += len(data)
            if self._unread > _UNREAD_REPLIES and not self.congested:
                self.congested = True
                self.pause_reading()
        self._transport.write(data)

    def pause_reading(self) -> None:
        self._holds += 1
        if self._holds == 1 and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._holds -= 1
        if self._holds == 0 and self._transport is not None:
            self._transport.resume_reading()

    def finish(self) -> None:
        """Half-close, and wait for the client to do the same.

        A close with unread input would make TCP reset the connection, and the client could lose the error
        frame that says why.
        """
        transport = self._transport
        if transport is None or self._finishing:
            return
        self._finishing = True
        self._cut_off = asyncio.get_running_loop().call_later(_LINGER, self.abort)
        if not transport.is_closing():
            if self._holds:
                self._holds = 0
                transport.resume_reading()
            try:
                transport.write_eof()
            except OSError:
                self.abort()  # the client has reset the connection

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
