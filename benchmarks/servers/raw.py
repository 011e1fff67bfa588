"""No nsqd, only a loop of recv and send: ``raw.py PORT pub|mpub|consume PIECE WINDOW COUNT``.

It receives at most PIECE bytes, finds each message or FIN in them, and sends all answers at once. It has no
names, ids, queue or event loop. It knows one load, and answers the handshake without reading it. Consumers
get WINDOW messages each at first, and COUNT in total. With a PIECE of one request it is the simplest loop;
with a large one it measures only the splitting of messages.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable

OK = struct.pack(">ii2s", 6, 0, b"OK")
SIZE = struct.Struct(">i")
MESSAGE = struct.Struct(">iiqH16s")

_OPENING = 4096  # more bytes than a command of the handshake


class Client(ABC):
    """Serve a connection: answer a number of opening commands with OK, then run the load."""

    openings = 1  # IDENTIFY

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.held = b""

    def answer(self, data: bytes) -> bytes:
        if self.openings:
            self.openings -= 1
            return OK
        data = self.held + data
        used, answers = self.cut(data)
        self.held = data[used:]
        return answers

    @abstractmethod
    def cut(self, data: bytes) -> tuple[int, bytes]:
        """Find complete messages; return where they end, and the answers."""


class Pub(Client):
    def cut(self, data: bytes) -> tuple[int, bytes]:
        bodies: list[bytes] = []
        position, end = 0, len(data)
        while (newline := data.find(b"\n", position)) >= 0 and newline + 5 <= end:
            stop = newline + 5 + SIZE.unpack_from(data, newline + 1)[0]
            if stop > end:
                break
            bodies.append(data[newline + 5 : stop])
            position = stop
        return position, OK * len(bodies)


class Mpub(Client):
    def cut(self, data: bytes) -> tuple[int, bytes]:
        position, end, count = 0, len(data), 0
        while (newline := data.find(b"\n", position)) >= 0 and newline + 5 <= end:
            stop = newline + 5 + SIZE.unpack_from(data, newline + 1)[0]
            if stop > end:
                break
            bodies: list[bytes] = []
            cut = newline + 9
            while cut < stop:
                after = cut + 4 + SIZE.unpack_from(data, cut)[0]
                bodies.append(data[cut + 4 : after])
                cut = after
            position = stop
            count += 1
        return position, OK * count


class Consume(Client):
    openings = 2  # IDENTIFY and SUB
    body = b"x" * 200
    window = left = 0

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.opened = False

    def cut(self, data: bytes) -> tuple[int, bytes]:
        if not self.opened:
            self.opened = True
            return len(data), self.messages([b"0" * 16] * Consume.window)
        ids: list[bytes] = []
        position = 0
        while (newline := data.find(b"\n", position)) >= 0:
            ids.append(data[position + 4 : newline])
            position = newline + 1
        return position, self.messages(ids)

    def messages(self, ids: list[bytes]) -> bytes:
        ids = ids[: Consume.left]
        Consume.left -= len(ids)
        body, pack = self.body, MESSAGE.pack
        return b"".join([pack(len(body) + 30, 2, 0, 1, message_id) + body for message_id in ids])


def serve(port: int, kind: Callable[[socket.socket], Client], piece: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    poll, clients = select.poll(), {}
    poll.register(listener, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                connection = listener.accept()[0]
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[connection.fileno()] = kind(connection)
                poll.register(connection, select.POLLIN)
                continue
            client = clients[descriptor]
            if data := client.connection.recv(_OPENING if client.openings else piece):
                client.connection.sendall(client.answer(data))
            else:
                poll.unregister(descriptor)
                clients.pop(descriptor).connection.close()


if __name__ == "__main__":
    load = sys.argv[2]
    port, piece, Consume.window, Consume.left = map(int, (sys.argv[1], *sys.argv[3:]))
    kinds: dict[str, Callable[[socket.socket], Client]] = {"pub": Pub, "mpub": Mpub, "consume": Consume}
    serve(port, kinds[load], piece)
