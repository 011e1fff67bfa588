"""Records in a file: four bytes of size, big-endian, and the data, back to back. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

from nsq.errors import UsageError

_SIZE = struct.Struct(">i")

OVERHEAD = _SIZE.size

pack_size = _SIZE.pack


class Bounds(NamedTuple):
    """The sizes a record can have. A file that claims another one is corrupt from there on."""

    smallest: int
    largest: int


def bounds(smallest: int, largest: int) -> Bounds:
    """Checked: a smallest of 0 could not tell records from the zeros a power cut leaves."""
    if not 1 <= smallest <= largest <= 0x7FFF_FFFF:
        raise UsageError(f"records of {smallest} to {largest} bytes: the sizes go from 1 to 2147483647")
    return Bounds(smallest, largest)


def size_at(buffer: bytes, at: int) -> int:
    size: int = _SIZE.unpack_from(buffer, at)[0]
    return size


def cut(buffer: bytes, at: int, limit: int, sizes: Bounds) -> tuple[list[tuple[int, int]], bool]:
    """Where the whole records behind ``at`` begin and end, at most ``limit``, and whether a bad size follows.

    What is cut off at the buffer's end is not a record yet, and not bad either.
    """
    spans: list[tuple[int, int]] = []
    add, unpack = spans.append, _SIZE.unpack_from
    smallest, largest = sizes
    stop = len(buffer)
    for _ in range(limit):
        begin = at + OVERHEAD
        if begin > stop:
            break
        size = unpack(buffer, at)[0]
        if not smallest <= size <= largest:
            return spans, True
        at = begin + size
        if at > stop:
            break
        add((begin, at))
    return spans, False
