"""The bare program with the structure of our Consumer.

The read loop makes a message of each frame, records it as in flight and puts it into the inbox. The handler
thread takes it, checks its deadline, calls the handler and puts the message into the queue of the write loop,
which joins all waiting FINs. There are no checks, timeouts or reconnects: an error ends the program.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from benchmarks.drivers import wire
from benchmarks.peers import work
from benchmarks.servers.pieces import HEAD

_CHUNK = 64 * 1024
_TIMEOUT = 60.0


class Message:
    __slots__ = ("attempts", "body", "expires_at", "id", "timestamp")

    def __init__(
        self, expires_at: float, timestamp: int, attempts: int, message_id: bytes, body: bytes
    ) -> None:
        self.expires_at = expires_at
        self.timestamp = timestamp
        self.attempts = attempts
        self.id = message_id
        self.body = body


class Consumer:
    def __init__(self, port: int, max_in_flight: int, handler: Callable[[Message], None]) -> None:
        self._handler = handler
        self._in_flight: dict[bytes, Message] = {}
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._answers: deque[Message] = deque()
        self._wakeup: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False
        self._connection = wire.subscribe(port, work.TOPIC, work.CHANNEL)
        self._connection.sendall(b"RDY %d\n" % max_in_flight)
        for loop in (self._write, self._handle, self._read):
            threading.Thread(target=loop, daemon=True).start()

    def _read(self) -> None:
        unpack, head = HEAD.unpack_from, HEAD.size
        held = b""
        while chunk := self._connection.recv(_CHUNK):
            data = held + chunk
            position, end, expires_at = 0, len(data), time.monotonic() + _TIMEOUT
            while end - position >= head:
                size, kind, timestamp, attempts, message_id = unpack(data, position)
                stop = position + 4 + size
                if stop > end:
                    break
                if kind != 2:
                    raise wire.Refused(f"received something other than messages: {data[position:stop]!r}")
                message = Message(expires_at, timestamp, attempts, message_id, data[position + head : stop])
                self._in_flight[message_id] = message
                self._inbox.put(message)
                position = stop
            held = data[position:]

    def _handle(self) -> None:
        while True:
            message = self._inbox.get()
            if message.expires_at <= time.monotonic():
                continue
            self._handler(message)
            if message.expires_at > time.monotonic() and self._in_flight.pop(message.id, None) is message:
                self._answers.append(message)
                if self._asleep and self._wakeup.empty():
                    self._wakeup.put(None)

    def _write(self) -> None:
        answers = self._answers
        while True:
            if not answers:
                self._asleep = True
                if not answers:
                    self._wakeup.get()
                self._asleep = False
            ids = [answers.popleft().id for _ in range(len(answers))]
            if ids:
                self._connection.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")


def consume(port: int, count: int, max_in_flight: int) -> Sequence[float]:
    over = threading.Event()
    counter = work.Counter(count, over.set)
    Consumer(port, max_in_flight, lambda _: counter.tick())
    over.wait()
    return [counter.rate]


LOADS = {"consume": consume}
