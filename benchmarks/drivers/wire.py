"""The part of the protocol that drivers need, over blocking sockets."""

from __future__ import annotations

import json
import socket
import struct

OK = struct.pack(">ii2s", 6, 0, b"OK")
SIZE = struct.Struct(">i")

#: The head of a message frame: size, type, time, attempts and id.
MESSAGE_HEAD = 4 + 4 + 8 + 2 + 16

_RECEIVE_BUFFER = 4 * 1024 * 1024
_DEADLINE = 60.0


class Refused(Exception):
    """Raised for an unexpected answer."""


def connect(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(_DEADLINE)
    connection.connect(("127.0.0.1", port))
    return connection


def open_client(port: int, **identity: object) -> socket.socket:
    """Connect and IDENTIFY, with the longest heartbeat interval that nsqd allows."""
    connection = connect(port)
    body = json.dumps({"heartbeat_interval": 60_000, **identity}).encode()
    connection.sendall(b"  V2IDENTIFY\n" + SIZE.pack(len(body)) + body)
    expect_ok(connection)
    return connection


def subscribe(port: int, topic: str, channel: str, **identity: object) -> socket.socket:
    connection = open_client(port, **identity)
    connection.sendall(f"SUB {topic} {channel}\n".encode())
    expect_ok(connection)
    return connection


def expect_ok(connection: socket.socket) -> None:
    answer = receive_exactly(connection, len(OK))
    if answer != OK:
        raise Refused(repr(answer))


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    pieces = b""
    while len(pieces) < size:
        piece = connection.recv(size - len(pieces))
        if not piece:
            raise Refused(f"the server hung up after {pieces!r}")
        pieces += piece
    return pieces


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + SIZE.pack(len(body)) + body


def dpub(topic: str, milliseconds: int, body: bytes) -> bytes:
    return f"DPUB {topic} {milliseconds}\n".encode() + SIZE.pack(len(body)) + body


def mpub(topic: str, body: bytes, count: int) -> bytes:
    packed = SIZE.pack(count) + (SIZE.pack(len(body)) + body) * count
    return f"MPUB {topic}\n".encode() + SIZE.pack(len(packed)) + packed


def publish(connection: socket.socket, chunk: bytes, answers: int, chunks: int, window: int = 8) -> None:
    """Send a chunk repeatedly; each gets a number of OKs. Up to ``window`` chunks may be unanswered."""
    owed = 0
    for _ in range(chunks):
        connection.sendall(chunk)
        owed += answers * len(OK)
        while owed > window * answers * len(OK):
            owed -= _count_oks(connection)
    while owed:
        owed -= _count_oks(connection)


def _count_oks(connection: socket.socket) -> int:
    answers = connection.recv(256 * 1024)
    if not answers or b"E_" in answers:
        raise Refused(f"a publish was answered by {answers[:200]!r}")
    return len(answers)
