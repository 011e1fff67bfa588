"""Publishes at a steady rate and consumes: ``latency PORT COUNT A_SECOND BODY``.

Prints p50 and p99 in milliseconds. One process does both, so that both times come from one clock; RDY is 100.
"""

from __future__ import annotations

import select
import statistics
import struct
import sys
import time

from benchmarks.drivers import wire

_SENT = struct.Struct(">d")
_ID = slice(18, 34)


def main(port: int, count: int, a_second: int, size: int) -> tuple[float, float]:
    consumer = wire.subscribe(port, "bench", "work")
    consumer.sendall(b"RDY 100\n")
    producer = wire.open_client(port)
    head = wire.pub("bench", bytes(size))[:-size]
    poll = select.poll()
    poll.register(consumer, select.POLLIN)
    took: list[float] = []
    frame, began, sent, held = wire.MESSAGE_HEAD + size, time.perf_counter(), 0, b""
    while len(took) < count:
        due = began + sent / a_second
        now = time.perf_counter()
        if sent < count and now >= due:
            producer.sendall(head + _SENT.pack(time.perf_counter()).ljust(size, b"x"))
            wire.expect_ok(producer)
            sent += 1
        elif poll.poll(None if sent == count else (due - now) * 1000):
            held += consumer.recv(64 * 1024)
            arrived = time.perf_counter()
            while len(held) >= frame:
                took.append(arrived - _SENT.unpack_from(held, wire.MESSAGE_HEAD)[0])
                consumer.sendall(b"FIN " + held[_ID] + b"\n")
                held = held[frame:]
    hundredths = statistics.quantiles(took, n=100)
    return hundredths[49] * 1000, hundredths[98] * 1000


if __name__ == "__main__":
    print(*main(*map(int, sys.argv[1:])))
