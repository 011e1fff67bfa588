"""One receiver's log in a directory: append, make durable, seal, and what to do when the disk refuses.

The file that is being written is valid up to ``_Open.end``, and everything is written behind that. After a
failed fsync the kernel may call pages clean that never reached the disk, so nothing is ever written behind a
failure: the file is *tainted*, and sealed as far as it was durable before; its name says how far. As long as
not even that succeeds, nothing is appended.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from nsq.errors import WalError
from nsq.spark.wal import names, records
from nsq.spark.wal.ownership import FileLock
from nsq.spark.wal.store import Segment

# The system calls that can fail, one method each; tests put a failing disk in its place


class Disk:
    """``fsync=False`` leaves it to the operating system when bytes reach the disk."""

    def __init__(self, fsync: bool = True) -> None:
        self._fsync = fsync

    def create(self, path: Path, mode: int) -> int:
        """A descriptor to write to; the file must not be there. Programs this one starts do not get it."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        """All of it, at that position; where it ends."""
        rest = data.cast("B")
        while rest:
            written = os.pwrite(descriptor, rest, position)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest, position = rest[written:], position + written
        return position

    def sync(self, descriptor: int) -> None:
        if self._fsync:
            os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        """What it reports is late news about bytes that ``sync`` has answered for."""
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """One that is gone already is fine."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_folder(self, path: Path) -> None:
        """Makes creations and renames in it last."""
        if not self._fsync:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# The log


_logger = logging.getLogger("nsq.spark.wal")


@contextlib.contextmanager
def named(path: Path, what: str) -> Iterator[None]:
    """What the system refuses becomes a WalError that says where."""
    try:
        yield
    except OSError as error:
        raise WalError(f"{path} {what}: {error.strerror or error}") from error


@dataclass
class _Open:
    """The file that is being written. ``end``, ``rows`` and ``bytes`` count what is durable."""

    descriptor: int
    path: Path
    end: int = 0
    rows: int = 0
    bytes: int = 0
    tainted: bool = False


class DirectoryLog:
    """Not for two threads at once. ``folder`` is there, empty but for the lock, which this log then owns."""

    def __init__(self, folder: Path, lock: FileLock, disk: Disk, mode: int) -> None:
        self.receiver = folder.name
        self._folder = folder
        self._lock = lock
        self._disk = disk
        self._mode = mode
        self._open: _Open | None = None
        self._next = 1
        self._written = 0  # bytes of the files that are sealed
        self._unsynced = False  # a seal is in the folder, but the folder perhaps not on the disk
        self._sealed: Segment | None = None  # by the last roll or after a failure; no roll has returned it
        self._closed = False

    @property
    def open_rows(self) -> int:
        """Rows that are durable, but in no segment yet."""
        return self._open.rows if self._open else 0

    @property
    def open_bytes(self) -> int:
        """Of bodies."""
        return self._open.bytes if self._open else 0

    @property
    def written(self) -> int:
        """Bytes of all files that this log has written so far, sealed or not."""
        return self._written + (self._open.end if self._open else 0)

    def append(self, batch: pa.RecordBatch) -> None:
        """Durable on return. Raises WalError, and then holds what it held before."""
        if self._closed:
            raise WalError(f"{self._folder}: this log has been closed")
        if batch.num_rows == 0:
            return
        data = records.encode(batch)
        if self._open is None or self._open.tainted:
            self._seal()  # what a failure has left undone
        current = self._open or self._begin()
        start = records.begin(batch.schema) if current.end == 0 else b""
        current.tainted = True
        with named(current.path, "cannot be written"):
            middle = self._disk.write(current.descriptor, memoryview(start), current.end)
            end = self._disk.write(current.descriptor, memoryview(data), middle)
        with named(current.path, "cannot be made durable"):
            self._disk.sync(current.descriptor)
            if start:
                self._disk.sync_folder(self._folder)
        current.tainted = False
        current.end = end
        current.rows += batch.num_rows
        current.bytes += records.body_bytes(batch)

    def roll(self) -> Segment | None:
        """Seal what was appended since the last time; None when that is nothing."""
        self._seal()
        sealed, self._sealed = self._sealed, None
        return sealed

    def close(self) -> Segment | None:
        """Roll, and give up the lock even if that fails: what is durable is then sealed by ``recover``."""
        if self._closed:
            return None
        self._closed = True
        try:
            return self.roll()
        finally:
            if self._open is not None:
                self._disk.close(self._open.descriptor)
                self._open = None
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> _Open:
        path = self._folder / names.open_file(self._next)
        with named(path, "cannot be created"):
            self._open = _Open(self._disk.create(path, self._mode), path)
        return self._open

    def _seal(self) -> None:
        """Give the open file its final name, if it holds anything. Until then nothing more is appended."""
        current = self._open
        if current is not None and current.rows == 0:
            with named(current.path, "cannot be removed"):
                self._disk.remove(current.path)
            self._disk.close(current.descriptor)
            self._open = None
        elif current is not None:
            if current.tainted:
                with contextlib.suppress(OSError):  # tidy, not needed: the name says how far it is valid
                    self._disk.truncate(current.descriptor, current.end)
            current.tainted = True  # a rename that fails may have happened
            segment = Segment(self.receiver, self._next, current.rows, current.bytes)
            with named(current.path, "cannot be sealed"):
                self._disk.rename(current.path, self._folder / names.sealed_file(segment))
            self._disk.close(current.descriptor)
            self._written += current.end
            self._open, self._sealed = None, segment
            self._next += 1
            self._unsynced = True
        if self._unsynced:
            with named(self._folder, "cannot be made durable"):
                self._disk.sync_folder(self._folder)
            self._unsynced = False
