"""Blocking protocol clients for tests: send bytes, receive frames, every wait with a deadline.

    with V2Client(nsqd.tcp_address) as client:
        client.identify(client_id="me")
        client.send(commands.pub("orders", b"body"))
        client.expect_ok()

They return everything that a daemon sends, and reply to nothing themselves: heartbeats are frames like any
other. Built on ``nsq.wire`` alone; must not import the real client, whose bugs they would share.
"""

from __future__ import annotations

import json
import select
import ssl
import struct
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

from nsq.errors import NsqError
from nsq.wire import commands
from nsq.wire.frames import FRAME_ERROR, FRAME_MESSAGE, FRAME_RESPONSE
from nsq.wire.layers import Deflate, Layer, Snappy, Stack, Tls

from .daemons.addresses import dial

TIMEOUT = 20.0
MAGIC_V1 = b"  V1"
_CHUNK = 65536
_SIZE = struct.Struct(">i")
_MESSAGE = struct.Struct(">qH16s")


class PeerClosed(NsqError):
    """The daemon closed the connection unexpectedly."""


class Frame(NamedTuple):
    """One frame: its type (0 response, 1 error, 2 message) and its data."""

    type: int
    data: bytes

    @property
    def message(self) -> Message:
        timestamp, attempts, message_id = _MESSAGE.unpack_from(self.data)
        return Message(timestamp, attempts, message_id, self.data[_MESSAGE.size :])


class Message(NamedTuple):
    timestamp: int  # nanoseconds since the epoch
    attempts: int
    id: bytes
    body: bytes


class _Connection:
    """A connection that sends and receives bytes through a stack of layers, for both protocols."""

    def __init__(self, address: str, *, magic: bytes, timeout: float = TIMEOUT) -> None:
        self.address = address
        self._timeout = timeout
        self._socket = dial(address, timeout)
        self._layers = Stack()
        self._received = bytearray()
        try:
            self.send(magic)
        except PeerClosed:
            self.close()
            raise

    def send(self, data: bytes) -> None:
        """Send through the current layers. Raises PeerClosed if the peer has closed."""
        try:
            self._socket.sendall(self._layers.wrap(data))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PeerClosed(f"{self.address} has closed the connection") from error

    def read(self, size: int, timeout: float | None = None) -> bytes:
        """Return exactly ``size`` plain bytes. Raises TimeoutError or PeerClosed if they do not arrive."""
        deadline = self._deadline(timeout)
        while len(self._received) < size:
            self._receive(deadline)
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def expect_silence(self, seconds: float) -> None:
        """Assert that nothing arrives for ``seconds`` and the connection stays open."""
        deadline = time.monotonic() + seconds
        try:
            while not self._received:
                self._receive(deadline)
        except TimeoutError:
            return
        raise AssertionError(f"expected silence, {self.address} sent {bytes(self._received)!r}")

    def expect_closed(self, timeout: float | None = None) -> None:
        """Assert that the daemon closes the connection without sending anything."""
        deadline = self._deadline(timeout)
        try:
            while not self._received:
                self._receive(deadline)
        except PeerClosed:
            return
        raise AssertionError(
            f"expected the end of the connection, {self.address} sent {bytes(self._received)!r}"
        )

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _push(self, layer: Layer) -> None:
        early = bytes(self._received)  # the daemon has already sent these through the new layer
        self._received = bytearray(layer.unwrap(early) if early else b"")
        self._layers.push(layer)

    def _receive(self, deadline: float) -> None:
        poll = select.poll()  # select knows no descriptor above 1,023
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"{self.address} sent nothing more in time; held: {bytes(self._received)!r}")
        try:
            data = self._socket.recv(_CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            raise PeerClosed(f"{self.address} closed the connection; held: {bytes(self._received)!r}")
        self._received += self._layers.unwrap(data)
        while self._layers.more:
            self._received += self._layers.unwrap(b"")
        if self._layers.has_pending:
            self._socket.sendall(self._layers.pending())

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else timeout)


class V2Client(_Connection):
    """A connection to nsqd."""

    def __init__(self, address: str, *, magic: bytes = commands.MAGIC_V2, timeout: float = TIMEOUT) -> None:
        super().__init__(address, magic=magic, timeout=timeout)

    def frame(self, timeout: float | None = None) -> Frame:
        """Return the next frame, a heartbeat too."""
        deadline = self._deadline(timeout)
        (size,) = _SIZE.unpack(self.read(4, timeout))
        data = self.read(size, max(0.0, deadline - time.monotonic()))
        return Frame(_SIZE.unpack_from(data)[0], data[4:])

    def expect(self, frame_type: int, data: bytes | None = None, timeout: float | None = None) -> Frame:
        """Return the next frame; assert that it has this type and, if given, this data."""
        frame = self.frame(timeout)
        if frame.type != frame_type or (data is not None and frame.data != data):
            raise AssertionError(
                f"expected a frame {(frame_type, data)!r}, {self.address} sent {tuple(frame)!r}"
            )
        return frame

    def expect_ok(self, timeout: float | None = None) -> None:
        self.expect(FRAME_RESPONSE, b"OK", timeout)

    def expect_error(self, code: str, timeout: float | None = None) -> Frame:
        """Return the next frame; assert that it is an error with this code, for example ``E_BAD_TOPIC``."""
        frame = self.expect(FRAME_ERROR, timeout=timeout)
        if frame.data.split(b" ", 1)[0] != code.encode():
            raise AssertionError(f"expected {code}, {self.address} sent {frame.data!r}")
        return frame

    def expect_message(self, timeout: float | None = None) -> Message:
        return self.expect(FRAME_MESSAGE, timeout=timeout).message

    def identify(self, **fields: object) -> dict[str, Any]:
        """IDENTIFY with ``feature_negotiation``; return nsqd's reply. The caller starts negotiated layers."""
        self.send(commands.identify(json.dumps({"feature_negotiation": True, **fields}).encode()))
        granted: dict[str, Any] = json.loads(self.expect(FRAME_RESPONSE).data)
        return granted

    def start_tls(self, context: ssl.SSLContext, server_hostname: str | None = None) -> Tls:
        """Do the TLS handshake, and read the OK that comes through it."""
        layer = Tls(context, server_side=False, server_hostname=server_hostname)
        self._push(layer)
        deadline = self._deadline(None)
        self._socket.sendall(layer.pending())
        while not layer.handshake_done:
            self._receive(deadline)
        self.expect_ok()
        return layer

    def start_snappy(self) -> None:
        """Start Snappy, which ``identify`` has negotiated, and read the OK that comes through it."""
        self._push(Snappy())
        self.expect_ok()

    def start_deflate(self, level: int = 6) -> None:
        """Start Deflate, which ``identify`` has negotiated, and read the OK that comes through it."""
        self._push(Deflate(level))
        self.expect_ok()


class V1Client(_Connection):
    """A connection to nsqlookupd, as nsqd makes it; replies have a size and no type."""

    def __init__(self, address: str, *, magic: bytes = MAGIC_V1, timeout: float = TIMEOUT) -> None:
        super().__init__(address, magic=magic, timeout=timeout)

    def answer(self, timeout: float | None = None) -> bytes:
        """Return the next reply."""
        deadline = self._deadline(timeout)
        (size,) = _SIZE.unpack(self.read(4, timeout))
        return self.read(size, max(0.0, deadline - time.monotonic()))

    def expect_ok(self, timeout: float | None = None) -> None:
        answer = self.answer(timeout)
        if answer != b"OK":
            raise AssertionError(f"expected OK, {self.address} sent {answer!r}")

    def identify(self, **fields: object) -> dict[str, Any]:
        """IDENTIFY; return nsqlookupd's reply, its own addresses and version."""
        self.send(commands.identify(json.dumps(fields).encode()))
        reply: dict[str, Any] = json.loads(self.answer())
        return reply

    def register(self, topic: str, channel: str = "") -> None:
        """Register a topic, or a channel with its topic; expect OK."""
        self.send(f"REGISTER {topic} {channel}".rstrip().encode() + b"\n")
        self.expect_ok()
