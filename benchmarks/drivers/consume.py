"""Consumes a filled topic: ``consume PORT COUNT BODY CONSUMERS``; prints messages per second.

All messages have one size, so their ids are at fixed distances. It answers each by a FIN, those of a chunk in
one write.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time

from benchmarks.drivers import wire

#: For all consumers together. Messages in flight at the end are not counted, so there must be few.
IN_FLIGHT = 2500


class Consumer:
    def __init__(self, connection: socket.socket, size: int) -> None:
        self.connection = connection
        self._frame = wire.MESSAGE_HEAD + size
        self._head = struct.pack(">ii", self._frame - 4, 2)
        self._ids = struct.Struct(f"18x16s{size}x")
        self._held = b""

    def step(self) -> int:
        """Finish all received messages; return their number."""
        chunk = self.connection.recv(1024 * 1024)
        if not chunk:
            raise wire.Refused("the server hung up")
        data = self._held + chunk
        count = len(data) // self._frame
        whole = data[: count * self._frame]
        self._held = data[len(whole) :]
        if count:
            self._check(whole, count)
            ids = [message_id for (message_id,) in self._ids.iter_unpack(whole)]
            self.connection.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")
        return count

    def _check(self, whole: bytes, count: int) -> None:
        for place, byte in enumerate(self._head):
            if whole[place :: self._frame].count(byte) != count:
                raise wire.Refused(f"something else than messages arrived: {whole[:200]!r}")


def drain(consumers: list[Consumer], count: int) -> float:
    """Messages a second, from the first RDY to the last FIN."""
    by_descriptor = {consumer.connection.fileno(): consumer for consumer in consumers}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    left, began = count, time.perf_counter()
    for consumer in consumers:
        consumer.connection.sendall(b"RDY %d\n" % (IN_FLIGHT // len(consumers)))
    while left:
        ready = poll.poll(60_000)
        if not ready:
            raise wire.Refused(f"{left} of {count} messages never came")
        for descriptor, _ in ready:
            left -= by_descriptor[descriptor].step()
    return count / (time.perf_counter() - began)


def main(port: int, count: int, size: int, consumers: int) -> float:
    clients = [wire.subscribe(port, "bench", "work") for _ in range(consumers)]
    return drain([Consumer(client, size) for client in clients], count)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
