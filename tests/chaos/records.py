"""Records of the chaos clients: one ``write`` each, so that a kill loses at most the last one.

A record that was written outlives its process, and the clock is the machine's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: nsqd has confirmed a message to a publisher; the handler of a consumer has returned.
CONFIRMED, HANDLED = b"A", b"H"

_RECORD = struct.Struct(">cQBd")


class Record(NamedTuple):
    """``nsqd`` is the number of the nsqd that a handled message came from, ``at`` is when it came."""

    kind: bytes
    message: int
    nsqd: int = 0
    at: float = 0.0


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
