"""Loops over a bare socket, the limit for a client in Python: ``bare LOAD ARGUMENTS``.

``consume`` parses every message into an object, calls a handler and answers, in one thread and without error
handling. ``latency`` is a publisher and a subscriber at a steady rate. Each has a thread, as clients do; a
single thread would still be awake from the answer when the message arrives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.drivers import wire
from benchmarks.peers import work
from benchmarks.servers.pieces import HEAD

_CHUNK = 64 * 1024


class Message:
    __slots__ = ("attempts", "body", "id", "timestamp")

    def __init__(self, timestamp: int, attempts: int, message_id: bytes, body: bytes) -> None:
        self.timestamp = timestamp
        self.attempts = attempts
        self.id = message_id
        self.body = body


class Over(Exception):
    """Raised when enough is measured."""


def _end() -> None:
    raise Over


def consume(port: int, count: int, max_in_flight: int) -> Sequence[float]:
    connection = wire.subscribe(port, work.TOPIC, work.CHANNEL)
    connection.sendall(b"RDY %d\n" % max_in_flight)
    counter = work.Counter(count, _end)
    held = b""
    try:
        while chunk := connection.recv(_CHUNK):
            answers, held = _handle(held + chunk, counter.tick)
            connection.sendall(b"".join(answers))
    except Over:
        return [counter.rate]
    raise wire.Refused("the server hung up")


def _handle(data: bytes, handler: Callable[[Message], None]) -> tuple[list[bytes], bytes]:
    answers: list[bytes] = []
    position, end, unpack, head = 0, len(data), HEAD.unpack_from, HEAD.size
    while end - position >= head:
        size, kind, timestamp, attempts, message_id = unpack(data, position)
        stop = position + 4 + size
        if stop > end:
            break
        if kind != 2:
            raise wire.Refused(f"received something other than messages: {data[position:stop]!r}")
        message = Message(timestamp, attempts, message_id, data[position + head : stop])
        handler(message)
        answers.append(b"FIN %s\n" % message.id)
        position = stop
    return answers, data[position:]


def latency(port: int, count: int, a_second: int, size: int, max_in_flight: int) -> Sequence[float]:
    over = threading.Event()
    delays = work.Delays(count, size, over.set)
    subscriber = wire.subscribe(port, work.TOPIC, work.CHANNEL)
    subscriber.sendall(b"RDY %d\n" % max_in_flight)
    publisher = wire.open_client(port)

    def subscribe() -> None:
        held = b""
        while chunk := subscriber.recv(_CHUNK):
            answers, held = _handle(held + chunk, lambda message: delays.note(message.body))
            subscriber.sendall(b"".join(answers))

    threading.Thread(target=subscribe, daemon=True).start()
    began = time.perf_counter()
    for due in work.due_times(count, a_second):
        time.sleep(max(0.0, began + due - time.perf_counter()))
        publisher.sendall(wire.pub(work.TOPIC, delays.stamp()))
        wire.expect_ok(publisher)
    over.wait()
    return delays.numbers()


def publish(port: int, count: int, size: int, callers: int = 1) -> Sequence[float]:
    """Publish one by one, each caller over a connection of its own."""
    command = wire.pub(work.TOPIC, b"x" * size)
    return work.calls(count, [_round_trip(port, command) for _ in range(callers)])


def multi_publish(port: int, count: int, size: int, batch: int) -> Sequence[float]:
    """Publish batches one by one; each is packed anew, as real ones are."""
    bodies, pack = [b"x" * size] * batch, wire.SIZE.pack
    connection = wire.open_client(port)
    began = time.perf_counter()
    for _ in range(count // batch):
        packed = pack(len(bodies)) + b"".join([pack(len(body)) + body for body in bodies])
        connection.sendall(f"MPUB {work.TOPIC}\n".encode() + pack(len(packed)) + packed)
        wire.expect_ok(connection)
    return [count // batch * batch / (time.perf_counter() - began)]


def _round_trip(port: int, command: bytes) -> Callable[[], None]:
    connection = wire.open_client(port)

    def call() -> None:
        connection.sendall(command)
        wire.expect_ok(connection)

    return call


if __name__ == "__main__":
    work.main({each.__name__: each for each in (consume, latency, publish, multi_publish)})
