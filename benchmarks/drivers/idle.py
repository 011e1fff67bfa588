"""Connects clients that only answer heartbeats: ``idle PORT PID CLIENTS SECONDS``.

They subscribe, are ready, and there is nothing for them. Prints the server's memory for each in kilobytes and
its share of a core in percent, over SECONDS in which each client has one heartbeat.
"""

from __future__ import annotations

import select
import socket
import sys
import time

from benchmarks.drivers import wire
from benchmarks.usage import KILOBYTE, cpu_seconds, resident_memory


def main(port: int, pid: int, count: int, seconds: int) -> tuple[float, float]:
    before = resident_memory(pid)
    clients = [_client(port, seconds) for _ in range(count)]
    _answer_heartbeats(clients, 1.0)
    memory = (resident_memory(pid) - before) / count
    used = cpu_seconds(pid)
    _answer_heartbeats(clients, seconds)
    return memory / KILOBYTE, (cpu_seconds(pid) - used) / seconds * 100


def _client(port: int, heartbeat: int) -> socket.socket:
    client = wire.subscribe(port, "idle", "idle", heartbeat_interval=heartbeat * 1000)
    client.sendall(b"RDY 1\n")
    return client


def _answer_heartbeats(clients: list[socket.socket], seconds: float) -> None:
    by_descriptor = {client.fileno(): client for client in clients}
    poll, until = select.poll(), time.monotonic() + seconds
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            client = by_descriptor[descriptor]
            if not client.recv(4096):
                raise wire.Refused("the server hung up on an idle client")
            client.sendall(b"NOP\n")


if __name__ == "__main__":
    print(*main(*map(int, sys.argv[1:])))
