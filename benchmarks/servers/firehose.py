"""Sends messages as fast as clients take them: ``firehose PORT [--size N] [--relay] [--hold] [--certificate C
K]``.

It implements the part of V2 that clients need: IDENTIFY with TLS, snappy and deflate, SUB, RDY, FIN, PUB,
DPUB, MPUB and CLS. Subscribers get messages encoded beforehand, as many as RDY allows. It counts FINs, and
answers publishes with OK and drops them. So the client is measured, and not a queue.

``--relay``: subscribers get the published messages. ``--hold``: messages wait in a buffer per client, as in
Go's nsqd. One thread with blocking sockets: a client that does not read stops it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable

from benchmarks.servers.pieces import (
    FIN,
    HEAD,
    Asked,
    Held,
    Ring,
    count_fins,
    cut_publishes,
    is_piece_of_fin,
    is_piece_of_publish,
)
from nsq.wire.commands import BadCommand, CommandParser, Limits
from nsq.wire.frames import CLOSE_WAIT, OK, encode_error, encode_response
from nsq.wire.identify import IdentifyReply, IdentifyRequest
from nsq.wire.layers import Deflate, Layer, Snappy, Stack, Tls

_MAGIC = b"  V2"
_OK = encode_response(OK)
_CHUNK = 1024 * 1024
_SEND_BUFFER = 4 * 1024 * 1024
_PATIENCE = struct.pack("@ll", 60, 0)
_MAX_RDY = 2500


class Gone(Exception):
    """The client has disconnected, or must be disconnected."""


class Hose:
    """State shared by all clients."""

    def __init__(self, ring: Ring | None, hold: bool, context: ssl.SSLContext | None) -> None:
        self.ring = ring  # None to relay
        self.hold = hold
        self.context = context
        self.subscribers: list[Client] = []
        self._numbers = itertools.count(1)

    def relay(self, bodies: Iterable[bytes]) -> None:
        """Send to the subscriber with the most room; without subscribers drop it."""
        for body in bodies if self.subscribers else ():
            frame = HEAD.pack(len(body) + 30, 2, time.time_ns(), 1, b"%016x" % next(self._numbers)) + body
            client = max(self.subscribers, key=lambda client: client.room)
            client.waiting.append(frame)
        for client in self.subscribers:
            client.push()


class Client:
    """One connection."""

    def __init__(self, connection: socket.socket, hose: Hose) -> None:
        self.connection = connection
        self.waiting: list[bytes] = []
        self._hose = hose
        self._stack = Stack()
        self._parser = CommandParser(Limits())
        self._unread = b""
        self._magic = False
        self._rdy = 0
        self._in_flight = 0
        self._asked = Asked.of(0, 0)
        self._held: Held | None = None

    @property
    def room(self) -> int:
        return self._rdy - self._in_flight

    @property
    def due(self) -> float:
        return self._held.due if self._held else math.inf

    # Reading.

    def receive(self) -> None:
        data = self.connection.recv(_CHUNK)
        if not data:
            raise Gone
        if not self._stack.layers:
            self._take(data)
            return
        self._take(self._stack.unwrap(data))
        while self._stack.more:
            self._take(self._stack.unwrap(b""))

    def _take(self, data: bytes) -> None:
        if self._unread:
            data = self._unread + data
        if not self._magic:
            if len(data) < len(_MAGIC):
                self._unread = data
                return
            self._magic, data = True, data[len(_MAGIC) :]
        finished = count_fins(data)
        self._in_flight -= finished
        rest = data[finished * FIN :]
        if self._hose.ring is not None:
            rest = self._confirm(rest)
        # An incomplete FIN or publish waits here, not in the parser: the next chunk is appended to it.
        self._unread = rest if is_piece_of_fin(rest) or self._counts(rest) else b""
        if rest and not self._unread:
            self._execute(rest)
        self.push()

    def _confirm(self, data: bytes) -> bytes:
        """Answer the publishes at the start of the data; return the rest."""
        count, end = cut_publishes(data)
        if count:
            self._answer(_OK * count)
        return data[end:]

    def _counts(self, data: bytes) -> bool:
        return self._hose.ring is not None and is_piece_of_publish(data)

    def _execute(self, data: bytes) -> None:
        answers, published = 0, list[bytes]()
        for verb, params, body in self._parser.feed(data):
            if verb in (b"PUB", b"DPUB", b"MPUB"):
                answers += 1
                published += [body or b""] if isinstance(body, bytes | None) else body[0 : len(body)]
            elif verb in (b"FIN", b"REQ"):
                self._in_flight -= len(body or [b""])
            elif verb == b"RDY":
                self._rdy = int(params[0])
            elif verb == b"IDENTIFY" and isinstance(body, bytes):
                self._identify(IdentifyRequest.decode(body))
                return
            elif verb == b"SUB":
                self._hose.subscribers.append(self)
                answers += 1
            elif verb == b"CLS":
                self._rdy = 0
                self._answer(encode_response(CLOSE_WAIT))
        if answers:
            self._answer(_OK * answers)
        if self._hose.ring is None and published:
            self._hose.relay(published)
        if isinstance(self._parser.error, BadCommand):
            self._answer(encode_error(bytes(self._parser.error)))
            raise Gone

    # Writing.

    def push(self) -> None:
        """Send as many messages as there is room for."""
        room = self.room
        if room <= 0:
            return
        if self._hose.ring is not None:
            pieces: list[bytes | memoryview] = [*self._hose.ring.take(room)]
            self._in_flight += room
        else:
            pieces = [*self.waiting[:room]]
            del self.waiting[:room]
            self._in_flight += len(pieces)
        if not pieces:
            return
        if self._held is None:
            self._send(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            return
        self._send(self._held.add(b"".join(pieces), time.monotonic()))
        if self.room <= 0:
            self.flush()

    def flush(self) -> None:
        if self._held is not None:
            self._send(self._held.flush())

    def _answer(self, data: bytes) -> None:
        """Send an answer, after all held messages."""
        self.flush()
        self._send(data)

    def _send(self, data: bytes | memoryview) -> None:
        if data:
            self.connection.sendall(self._stack.wrap(bytes(data)) if self._stack.layers else data)

    # The handshake.

    def _identify(self, request: IdentifyRequest) -> None:
        self._asked = Asked.of(request.output_buffer_size, request.output_buffer_timeout)
        if self._hose.hold:
            self._held = Held(self._asked, time.monotonic())
        if not request.feature_negotiation:
            self._send(_OK)
            self._resume()
            return
        reply = IdentifyReply(
            max_rdy_count=_MAX_RDY,
            version="firehose",
            max_msg_timeout=900_000,
            msg_timeout=request.msg_timeout or 60_000,
            tls_v1=request.tls_v1 and self._hose.context is not None,
            deflate=request.deflate,
            deflate_level=request.deflate_level or 6,
            max_deflate_level=6,
            snappy=request.snappy,
            output_buffer_size=self._asked.size,
            output_buffer_timeout=round((self._asked.interval or 0) * 1000),
        )
        self._send(encode_response(reply.encode()))
        if reply.tls_v1 and self._hose.context is not None:
            self._shake_hands(Tls(self._hose.context, server_side=True, server_hostname=None))
        if reply.snappy:
            self._push_layer(Snappy())
        elif reply.deflate:
            self._push_layer(Deflate(min(reply.deflate_level, 6)))
        self._resume()

    def _resume(self) -> None:
        """Continue after IDENTIFY."""
        self._take(self._parser.take_rest())

    def _push_layer(self, layer: Layer) -> None:
        self._stack.push(layer)
        self._send(_OK)

    def _shake_hands(self, tls: Tls) -> None:
        data = self._parser.take_rest()
        early = b""
        while not tls.handshake_done:
            early += tls.unwrap(data)
            self.connection.sendall(tls.pending())
            if not tls.handshake_done and not (data := self.connection.recv(_CHUNK)):
                raise Gone
        self._push_layer(tls)
        self._unread += early


def serve(port: int, hose: Hose) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    poll = select.poll()
    clients: dict[int, Client] = {}
    poll.register(listener, select.POLLIN)
    while True:
        due = min((client.due for client in clients.values()), default=math.inf)
        patience = None if due == math.inf else max(0.0, due - time.monotonic()) * 1000
        for descriptor, _ in poll.poll(patience):
            if descriptor == listener.fileno():
                client = Client(_accepted(listener), hose)
                clients[client.connection.fileno()] = client
                poll.register(client.connection, select.POLLIN)
                continue
            try:
                clients[descriptor].receive()
            except (Gone, OSError):
                poll.unregister(descriptor)
                _forget(clients.pop(descriptor), hose)
        now = time.monotonic()
        for client in clients.values():
            if client.due <= now:
                client.flush()


def _accepted(listener: socket.socket) -> socket.socket:
    connection = listener.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    # Disconnect a client that stops reading; clients of the benchmarks are never idle for so long.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
    return connection


def _forget(client: Client, hose: Hose) -> None:
    client.connection.close()
    if client in hose.subscribers:
        hose.subscribers.remove(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--certificate", nargs=2)
    asked = parser.parse_args()
    context = None
    if asked.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*asked.certificate)
    serve(asked.port, Hose(None if asked.relay else Ring(asked.size), asked.hold, context))


if __name__ == "__main__":
    main()
