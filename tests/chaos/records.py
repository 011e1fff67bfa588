"""Records of the chaos clients: one ``write`` each, so that a kill loses at most the last one.

A record that was written outlives its process, and the clock is the machine's: records of several processes
can be put in order.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: A publisher's: nsqd has confirmed it; it is uncertain, so it is published again.
CONFIRMED, DOUBTED = b"A", b"U"
#: A consumer's: its handler has returned; its connection began or ended; nsqd refused an answer.
HANDLED, CONNECTED, LOST, REFUSED = b"H", b"C", b"D", b"E"

_RECORD = struct.Struct(">cQBHddQ")


class Record(NamedTuple):
    """``since`` is when the message came, ``at`` when this was written; ``nsqd`` is its number, and ``copy``
    what that calls the message: what was published twice has two.
    """

    kind: bytes
    message: int
    nsqd: int
    attempts: int
    since: float
    at: float
    copy: int = 0


class Recorder:
    """Appends to a file; any number of threads, one process."""

    def __init__(self, path: str | Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, records: Iterable[Record]) -> None:
        os.write(self.descriptor, b"".join(_RECORD.pack(*record) for record in records))

    def close(self) -> None:
        os.close(self.descriptor)


def read(path: Path, offset: int = 0) -> Iterator[Record]:
    """The whole records behind ``offset``, which counts records."""
    with path.open("rb") as file:
        file.seek(offset * _RECORD.size)
        data = file.read()
    data = data[: len(data) // _RECORD.size * _RECORD.size]
    yield from map(Record._make, _RECORD.iter_unpack(data))
