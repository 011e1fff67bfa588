"""The bare program with the structure of our Producer.

Callers put publishes into a queue. The write loop takes all of them, joins those for one topic into an MPUB,
and sends it. The read loop reads frames and releases the callers. There are no checks, timeouts or
reconnects: an error ends the program.
"""

from __future__ import annotations

import _thread
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence

from benchmarks.drivers import wire
from benchmarks.peers import work

_JOINED_MESSAGES = 1000
_JOINED_BYTES = 512 * 1024
_CHUNK = 64 * 1024
_HEAD = struct.Struct(">ii")

#: Topic, body, and the lock on which the caller waits. ``publish_async`` also has one for each message, as
#: the smallest thing to wait for.
Publish = tuple[str, bytes, _thread.LockType]


class Publisher:
    def __init__(self, port: int) -> None:
        self.answered = 0  # publishes
        self.news = _thread.allocate_lock()  # released when ``answered`` has increased
        self._connection = wire.open_client(port)
        self._waiting: queue.SimpleQueue[Publish] = queue.SimpleQueue()
        self._sent: deque[list[Publish]] = deque()
        self.put = self._waiting.put
        for loop in (self._write, self._read):
            threading.Thread(target=loop, daemon=True).start()

    def publish(self, topic: str, body: bytes) -> None:
        claim = _locked()
        self.put((topic, body, claim))
        claim.acquire()

    def _write(self) -> None:
        get, waiting = self._waiting.get, self._waiting
        while True:
            taken = [get()]
            taken += [get() for _ in range(waiting.qsize())]
            batches = _join(taken)
            self._sent += batches
            self._connection.sendall(b"".join(map(_command, batches)))

    def _read(self) -> None:
        data = b""
        while chunk := self._connection.recv(_CHUNK):
            data += chunk
            position = 0
            while len(data) - position >= _HEAD.size:
                size, kind = _HEAD.unpack_from(data, position)
                end = position + 4 + size
                if end > len(data):
                    break
                answer = data[position + _HEAD.size : end]
                position = end
                if kind or answer != b"OK":
                    raise wire.Refused(f"a publish was answered by {answer!r}")
                self._release(self._sent.popleft())
            data = data[position:]
        raise wire.Refused("the server hung up")

    def _release(self, batch: list[Publish]) -> None:
        for _, _, claim in batch:
            claim.release()
        self.answered += len(batch)
        if self.news.locked():
            self.news.release()


def _locked() -> _thread.LockType:
    claim = _thread.allocate_lock()
    claim.acquire()
    return claim


def _join(taken: list[Publish]) -> list[list[Publish]]:
    batches: list[list[Publish]] = []
    growing: dict[str, tuple[list[Publish], int]] = {}
    for publish in taken:
        topic, size = publish[0], 4 + len(publish[1])
        batch, used = growing.get(topic, ([], 0))
        if not batch or len(batch) >= _JOINED_MESSAGES or used + size > _JOINED_BYTES:
            batch, used = [], 0
            batches.append(batch)
        batch.append(publish)
        growing[topic] = batch, used + size
    return batches


def _command(batch: list[Publish]) -> bytes:
    topic, first, _ = batch[0]
    if len(batch) == 1:
        return wire.pub(topic, first)
    pack = wire.SIZE.pack
    packed = b"".join([pack(len(body)) + body for _, body, _ in batch])
    return b"MPUB %s\n%s%s%s" % (topic.encode(), pack(len(packed) + 4), pack(len(batch)), packed)


def publish(port: int, count: int, size: int, callers: int = 1) -> Sequence[float]:
    publisher, body, over = Publisher(port), b"x" * size, threading.Event()
    counter = work.Counter(count, over.set)

    def call() -> None:
        while not over.is_set():
            publisher.publish(work.TOPIC, body)
            counter.tick()

    for _ in range(callers):
        threading.Thread(target=call, daemon=True).start()
    over.wait()
    return [counter.rate, counter.cpu]


def publish_async(port: int, count: int, size: int, window: int) -> Sequence[float]:
    publisher, body = Publisher(port), b"x" * size
    publisher.publish(work.TOPIC, body)
    began = time.perf_counter()
    for put in range(1, count + 1):
        while put - publisher.answered >= window:
            publisher.news.acquire()
        publisher.put((work.TOPIC, body, _locked()))
    while publisher.answered <= count:
        publisher.news.acquire()
    return [count / (time.perf_counter() - began)]


LOADS = {each.__name__: each for each in (publish, publish_async)}
