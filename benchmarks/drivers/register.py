"""Registers topics at an nsqlookupd: ``register PORT PID COUNT BATCH``.

Prints topics per second, and the CPU time of process PID for each topic in microseconds. Sends a batch,
then waits for its answers; Go's nsqd has batches of 1.
"""

from __future__ import annotations

import socket
import sys
import time

from benchmarks.drivers import wire
from benchmarks.usage import cpu_seconds
from nsq.wire import lookup
from nsq.wire.lookup import PeerInfo

_OK = lookup.reply(lookup.OK)


def main(port: int, pid: int, count: int, batch: int) -> tuple[float, float]:
    nsqd = PeerInfo(broadcast_address="a", hostname="a", http_port=4151, tcp_port=4150, version="1.3.0")
    with wire.connect(port) as connection:
        connection.sendall(lookup.MAGIC + lookup.identify(nsqd))
        if not connection.recv(64 * 1024):
            raise wire.Refused("IDENTIFY was not answered")
        before, began = cpu_seconds(pid), time.perf_counter()
        for start in range(0, count, batch):
            names = (f"topic-{number:06}" for number in range(start, start + batch))
            connection.sendall(b"".join(map(lookup.register, names)))
            if connection.recv(batch * len(_OK), socket.MSG_WAITALL) != _OK * batch:
                raise wire.Refused("REGISTER was not answered by OK")
        took, spent = time.perf_counter() - began, cpu_seconds(pid) - before
        return count / took, 1e6 * spent / count


if __name__ == "__main__":
    print(*main(*map(int, sys.argv[1:])))
