"""What the firehose sends, and when: messages made beforehand, and a Go nsqd's buffer. Pure."""

from __future__ import annotations

import math
import random
import struct
from typing import NamedTuple

HEAD = struct.Struct(">iiqH16s")

FIN = len(b"FIN \n") + 16

_NEWLINE = b"\n"[0]
_PUBLISHES = (b"PUB ", b"DPUB", b"MPUB")
_SIZE = struct.Struct(">i")


class Ring:
    """Messages of one size, encoded once and sent over and over; ``count`` are more than fit in flight, so
    that ids in flight are distinct.
    """

    def __init__(self, size: int, count: int = 8192) -> None:
        self.count = count
        self._frame = HEAD.size + size
        self._next = 0
        chance = random.Random(0)
        self._frames = memoryview(
            b"".join(
                HEAD.pack(size + 30, 2, 1_600_000_000_000_000_000 + number, 1, b"%016x" % number)
                + _body(number, size, chance)
                for number in range(count)
            )
        )

    def take(self, count: int) -> list[memoryview]:
        """So many messages, in one or two pieces."""
        pieces = []
        while count > 0:
            taken = min(count, self.count - self._next)
            start = self._next * self._frame
            pieces.append(self._frames[start : start + taken * self._frame])
            self._next = (self._next + taken) % self.count
            count -= taken
        return pieces


def _body(number: int, size: int, chance: random.Random) -> bytes:
    """Half digits nobody can guess, half names: compression has something to do, and something to gain."""
    filler = b'{"order": %d, "customer": "%x", "articles": ["' % (number, chance.getrandbits(160))
    while len(filler) < size:
        filler += b'article-%x", "' % chance.getrandbits(48)
    return filler[:size]


def count_fins(data: bytes) -> int:
    """How many FINs ``data`` begins with, when it has nothing else up to a last piece; 0 otherwise, which is
    for a parser to look into.
    """
    count = len(data) // FIN
    ends = data[FIN - 1 : count * FIN : FIN]
    starts = data[0 : count * FIN : FIN]
    return count if ends.count(_NEWLINE) == count == starts.count(b"F") else 0


def is_piece_of_fin(data: bytes) -> bool:
    """Whether it may become one with what comes next."""
    return len(data) < FIN and data[:4] == b"FIN "[: len(data)]


def cut_publishes(data: bytes) -> tuple[int, int]:
    """How many whole PUBs, DPUBs and MPUBs ``data`` begins with, and where they end; none is looked into."""
    count, position = 0, 0
    while data[position : position + 4] in _PUBLISHES:
        newline = data.find(b"\n", position)
        if newline < 0 or newline + 5 > len(data):
            break
        stop = newline + 5 + int(_SIZE.unpack_from(data, newline + 1)[0])
        if stop > len(data):
            break
        count, position = count + 1, stop
    return count, position


def is_piece_of_publish(data: bytes) -> bool:
    """Whether it is one that is not whole, if ``cut_publishes`` has left it over."""
    return any(verb.startswith(data[:4]) for verb in _PUBLISHES)


class Asked(NamedTuple):
    """What a client's IDENTIFY makes of the buffer."""

    size: int  # 0 for none
    interval: float | None  # seconds between two looks at what is held; None for never

    @staticmethod
    def of(size: int, timeout: int) -> Asked:
        """From output_buffer_size and output_buffer_timeout: 0 stands for the default, -1 for none."""
        if size == -1:
            return Asked(0, None)
        return Asked(size or 16 * 1024, None if timeout == -1 else (timeout or 250) / 1000)


class Held:
    """One client's buffer: what fills it goes out at once, the rest when the ticker, which runs on whether or
    not there is something to send, comes round.
    """

    def __init__(self, asked: Asked, began: float) -> None:
        self._asked = asked
        self._began = began
        self._waiting = bytearray()
        self.due = math.inf

    def add(self, data: bytes, now: float) -> bytes:
        """What has to be sent now."""
        size, interval = self._asked
        waiting = self._waiting
        waiting += data
        full = len(waiting) // size * size if size else len(waiting)
        out = bytes(waiting[:full])
        del waiting[:full]
        if not waiting:
            self.due = math.inf
        elif interval is not None and (out or self.due == math.inf):
            self.due = self._began + (math.floor((now - self._began) / interval) + 1) * interval
        return out

    def flush(self) -> bytes:
        """All of it: an answer goes out, the ticker has come round, or no more fits in flight."""
        out = bytes(self._waiting)
        self._waiting.clear()
        self.due = math.inf
        return out
