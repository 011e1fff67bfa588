"""A minimal nsqd: topics in memory, PUB, MPUB, SUB, RDY and FIN. ``minimal_nsqd.py PORT``

It trusts its clients, checks no name or size, has no timeouts, and never delivers again. It is fast plain
Python: on uvloop if installed, all commands of a chunk in one loop, one write for all replies to a chunk. A
topic is one queue for all channels.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import struct
import sys
import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import cast

OK = struct.pack(">ii2s", 6, 0, b"OK")
MESSAGE = struct.Struct(">iiqH16s")
SIZE = struct.Struct(">i")
SHARE = 64

ids = itertools.count(1)


class Topic:
    def __init__(self) -> None:
        self.waiting: deque[tuple[bytes, int, bytes]] = deque()
        self.consumers: deque[Client] = deque()

    def deliver(self) -> None:
        """Serve the consumers in turns, each with one write."""
        waiting, consumers = self.waiting, self.consumers
        served: defaultdict[Client, list[bytes]] = defaultdict(list)
        busy = 0
        while waiting and busy < len(consumers):
            client = consumers[0]
            consumers.rotate(-1)
            in_flight, frames = client.in_flight, served[client]
            room = min(client.rdy - len(in_flight), SHARE, len(waiting))
            busy = busy + 1 if room <= 0 else 0
            for _ in range(room):
                message = waiting.popleft()
                message_id, timestamp, body = message
                in_flight[message_id] = message
                frames.append(MESSAGE.pack(len(body) + 30, 2, timestamp, 1, message_id) + body)
        for client, frames in served.items():
            if frames:
                client.transport.write(b"".join(frames))


topics: defaultdict[bytes, Topic] = defaultdict(Topic)


class Client(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.held = b""
        self.topic = Topic()
        self.rdy = 0
        self.in_flight: dict[bytes, tuple[bytes, int, bytes]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, fault: Exception | None) -> None:
        with suppress(ValueError):
            self.topic.consumers.remove(self)

    def data_received(self, data: bytes) -> None:
        data = self.held + data
        touched: set[Topic] = set()
        used, answers = self.execute(data, touched)
        self.held = data[used:]
        if answers:
            self.transport.write(OK * answers)
        for topic in touched:
            topic.deliver()

    def execute(self, data: bytes, touched: set[Topic]) -> tuple[int, int]:
        """Execute complete commands; return where they end and how many OKs to send."""
        position, answers, now, end, in_flight = 0, 0, time.time_ns(), len(data), self.in_flight
        while (newline := data.find(b"\n", position)) >= 0:
            verb, stop = data[position : position + 4], newline + 1
            if verb == b"FIN ":
                in_flight.pop(data[position + 4 : newline], None)
                touched.add(self.topic)
            elif verb in (b"PUB ", b"MPUB", b"IDEN"):
                if end < stop + 4 or end < (stop := stop + 4 + SIZE.unpack_from(data, stop)[0]):
                    break
                answers += 1
                if verb == b"PUB ":
                    topic = topics[data[position + 4 : newline]]
                    topic.waiting.append((b"%016x" % next(ids), now, data[newline + 5 : stop]))
                    touched.add(topic)
                elif verb == b"MPUB":
                    topic, cut = topics[data[position + 5 : newline]], newline + 9
                    while cut < stop:
                        after = cut + 4 + SIZE.unpack_from(data, cut)[0]
                        topic.waiting.append((b"%016x" % next(ids), now, data[cut + 4 : after]))
                        cut = after
                    touched.add(topic)
            elif verb == b"RDY ":
                self.rdy = int(data[position + 4 : newline])
                touched.add(self.topic)
            elif verb == b"SUB ":
                self.topic = topics[data[position:newline].split()[1]]
                self.topic.consumers.append(self)
                answers += 1
            elif verb == b"  V2":
                stop = position + 4
            position = stop
        return position, answers


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    gc.disable()  # this program makes no reference cycles
    loop_factory = None
    with suppress(ImportError):
        loop_factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serve(int(sys.argv[1])))
