"""Publishes without waiting for each answer: ``publish PORT pub|mpub COUNT BODY BATCH``.

Prints messages a second. A batch is what is sent in one piece: so many PUBs, or one MPUB of so many messages.
"""

from __future__ import annotations

import sys
import time

from benchmarks.drivers import wire


def main(port: int, verb: str, count: int, size: int, batch: int) -> float:
    body, chunks = b"x" * size, count // batch
    chunk = wire.mpub("bench", body, batch) if verb == "mpub" else wire.pub("bench", body) * batch
    connection = wire.open_client(port)
    began = time.perf_counter()
    wire.publish(connection, chunk, 1 if verb == "mpub" else batch, chunks)
    return chunks * batch / (time.perf_counter() - began)


if __name__ == "__main__":
    port, verb, *numbers = sys.argv[1:]
    print(main(int(port), verb, *map(int, numbers)))
