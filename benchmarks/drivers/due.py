"""Consumes messages that are due at the same time: ``due PORT COUNT BODY BATCH``.

Prints messages per second, from the first message to the last FIN.
"""

from __future__ import annotations

import sys
import time

from benchmarks.drivers import wire
from benchmarks.drivers.consume import IN_FLIGHT, Consumer

#: Deferring all messages must take less than this many microseconds for each, and seconds altogether.
_MICROSECONDS, _SECONDS = 100, 5.0


def main(port: int, count: int, size: int, batch: int) -> float:
    consumer = Consumer(wire.subscribe(port, "due", "work"), size)
    connection, body = wire.open_client(port), b"x" * size
    due = time.time() + _SECONDS + count * _MICROSECONDS / 1e6
    count = count // batch * batch
    for _ in range(count // batch):
        delay = round((due - time.time()) * 1000)
        wire.publish(connection, wire.dpub("due", delay, body) * batch, batch, 1)
    if time.time() > due - 2.0:
        raise wire.Refused("deferring took too long: some messages were due before the last was deferred")
    consumer.connection.sendall(b"RDY %d\n" % IN_FLIGHT)
    left, began = count, 0.0
    while left:
        left -= consumer.step()
        began = began or time.perf_counter()
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
