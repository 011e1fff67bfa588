"""When deferred messages are due, kept beside a disk queue: records of Go's format have no place for it.

Go's nsqd does not know the file and ignores it; it would deliver those messages at once, as it does its own.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

_ENTRY = struct.Struct(">16sq")
#: A file of which nothing is wanted any more is cut back when it has grown beyond this.
_LARGE = 64 * 1024


def wall_clock_due(due: float) -> int:
    """A monotonic moment as nanoseconds since the epoch, which outlive the process."""
    return time.time_ns() + round((due - time.monotonic()) * 1e9)


def monotonic_due(due_ns: int) -> float:
    return time.monotonic() + (due_ns - time.time_ns()) / 1e9


class DueBook:
    """An append-only file of ids and moments; of a message that is gone or due the entry means nothing."""

    def __init__(self, directory: Path, queue_name: str) -> None:
        self._path = directory / f"{queue_name}.dues.dat"
        self._dues = _load(self._path)
        self._file = -1  # opened when there is something to write

    def get(self, message_id: bytes) -> int:
        return self._dues.get(message_id, 0)

    def add(self, message_id: bytes, due_ns: int) -> None:
        """Raises OSError; a torn entry is ignored by whoever reads the file."""
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            # Entries are found by counting bytes: a torn one must not shift those behind it.
            os.truncate(self._file, os.fstat(self._file).st_size // _ENTRY.size * _ENTRY.size)
        if os.write(self._file, _ENTRY.pack(message_id, due_ns)) != _ENTRY.size:
            os.truncate(self._file, os.fstat(self._file).st_size // _ENTRY.size * _ENTRY.size)
            raise OSError(f"{self._path} took only a part of an entry")
        self._dues[message_id] = due_ns

    def remove(self, message_id: bytes) -> None:
        self._dues.pop(message_id, None)
        if not self._dues and self._file >= 0 and os.fstat(self._file).st_size > _LARGE:
            os.truncate(self._file, 0)

    def sync(self) -> None:
        """In any thread."""
        if self._file >= 0:
            os.fsync(self._file)

    def clear(self) -> None:
        self._dues.clear()
        if self._file >= 0:
            os.truncate(self._file, 0)

    def close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def delete(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._path.unlink(missing_ok=True)


def _load(path: Path) -> dict[bytes, int]:
    """What is still to come. A file without any such entry is removed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    whole = len(content) // _ENTRY.size * _ENTRY.size
    now = time.time_ns()
    dues = {message_id: due for message_id, due in _ENTRY.iter_unpack(content[:whole]) if due > now}
    if not dues:
        path.unlink(missing_ok=True)
    return dues
