"""POSTs to /pub on connections that are kept: ``http_pub PORT COUNT BODY CONNECTIONS``.

Prints requests a second. Each connection has one request at a time.
"""

from __future__ import annotations

import select
import sys
import time

from benchmarks.drivers import wire


def main(port: int, count: int, size: int, connections: int) -> float:
    head = f"POST /pub?topic=bench HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {size}\r\n\r\n"
    request = head.encode() + b"x" * size
    clients = {client.fileno(): client for client in (wire.connect(port) for _ in range(connections))}
    poll, began, sent, answered = select.poll(), time.perf_counter(), 0, 0
    for descriptor, client in clients.items():
        poll.register(descriptor, select.POLLIN)
        client.sendall(request)
        sent += 1
    while answered < count:
        for descriptor, _ in poll.poll(60_000):
            answer = clients[descriptor].recv(64 * 1024)
            # Small answers to single requests: each comes in one piece.
            if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"OK"):
                raise wire.Refused(f"/pub was answered by {answer[:200]!r}")
            answered += 1
            if sent < count:
                clients[descriptor].sendall(request)
                sent += 1
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
