"""The messages of the firehose, encoded beforehand, and a model of the buffer of Go's nsqd. Pure."""

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
    """Messages of one size, encoded once and sent repeatedly. ``count`` is more than fit in flight, so that
    ids in flight are distinct.
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
        """Return this number of messages, in one or two pieces."""
        pieces = []
        while count > 0:
            taken = min(count, self.count - self._next)
            start = self._next * self._frame
            pieces.append(self._frames[start : start + taken * self._frame])
            self._next = (self._next + taken) % self.count
            count -= taken
        return pieces


def _body(number: int, size: int, chance: random.Random) -> bytes:
    """Return a body of random digits and of repeated names, so that compression has work and gains."""
    filler = b'{"order": %d, "customer": "%x", "articles": ["' % (number, chance.getrandbits(160))
    while len(filler) < size:
        filler += b'article-%x", "' % chance.getrandbits(48)
    return filler[:size]


def count_fins(data: bytes) -> int:
    """Count the FINs that ``data`` consists of, up to an incomplete last one; return 0 if there is anything
    else, for the parser.
    """
    count = len(data) // FIN
    ends = data[FIN - 1 : count * FIN : FIN]
    starts = data[0 : count * FIN : FIN]
    return count if ends.count(_NEWLINE) == count == starts.count(b"F") else 0


def is_piece_of_fin(data: bytes) -> bool:
    """Whether the data may be the start of a FIN."""
    return len(data) < FIN and data[:4] == b"FIN "[: len(data)]


def cut_publishes(data: bytes) -> tuple[int, int]:
    """Count the complete PUBs, DPUBs and MPUBs at the start of ``data``, and return where they end."""
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
    """Whether the rest after ``cut_publishes`` is the start of a publish."""
    return any(verb.startswith(data[:4]) for verb in _PUBLISHES)


class Asked(NamedTuple):
    """The buffer settings of a client, from its IDENTIFY."""

    size: int  # 0 for none
    interval: float | None  # seconds between two flushes; None for no flushes

    @staticmethod
    def of(size: int, timeout: int) -> Asked:
        """Read output_buffer_size and output_buffer_timeout: 0 means the default, -1 none."""
        if size == -1:
            return Asked(0, None)
        return Asked(size or 16 * 1024, None if timeout == -1 else (timeout or 250) / 1000)


class Held:
    """One client's buffer. It sends when full; the rest is sent at the next tick. Ticks come even if there is
    nothing to send.
    """

    def __init__(self, asked: Asked, began: float) -> None:
        self._asked = asked
        self._began = began
        self._waiting = bytearray()
        self.due = math.inf

    def add(self, data: bytes, now: float) -> bytes:
        """Add a message; return the bytes to send now."""
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
        """Return all bytes: for an answer, at a tick, or when no more messages fit in flight."""
        out = bytes(self._waiting)
        self._waiting.clear()
        self.due = math.inf
        return out
