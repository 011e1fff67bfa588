"""Defers messages: ``defer PORT COUNT BODY BATCH``, due at random times of the coming day.

Prints messages per second. Sends BATCH DPUBs in one write, to a topic with one channel.
"""

from __future__ import annotations

import random
import sys
import time

from benchmarks.drivers import wire

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


def main(port: int, count: int, size: int, batch: int) -> float:
    wire.subscribe(port, "deferred", "channel").close()
    chance, body = random.Random(1), b"x" * size
    connection = wire.open_client(port)
    chunks = [
        b"".join(wire.dpub("deferred", chance.randint(_HOUR_MS, _DAY_MS), body) for _ in range(batch))
        for _ in range(100)
    ]
    began = time.perf_counter()
    for number in range(count // batch):
        wire.publish(connection, chunks[number % len(chunks)], batch, 1)
    return count // batch * batch / (time.perf_counter() - began)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
