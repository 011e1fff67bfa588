"""Publishes: ``publish PORT pub|mpub COUNT BODY BATCH [WINDOW]``. Prints messages per second.

Sends BATCH messages in one write, as PUBs or as one MPUB. Up to WINDOW writes may be unanswered; with 0 each
write waits for the answers to the one before.
"""

from __future__ import annotations

import sys
import time

from benchmarks.drivers import wire


def main(port: int, verb: str, count: int, size: int, batch: int, window: int = 8) -> float:
    body, chunks = b"x" * size, count // batch
    chunk = wire.mpub("bench", body, batch) if verb == "mpub" else wire.pub("bench", body) * batch
    connection = wire.open_client(port)
    began = time.perf_counter()
    wire.publish(connection, chunk, 1 if verb == "mpub" else batch, chunks, window)
    return chunks * batch / (time.perf_counter() - began)


if __name__ == "__main__":
    port, verb, *numbers = sys.argv[1:]
    print(main(int(port), verb, *map(int, numbers)))
