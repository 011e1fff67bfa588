"""One receiver's log in a directory: append, make durable, seal, and what to do when the disk refuses.

The file that is being written is valid up to ``_Open.end``, and everything is written behind that. A failed
write is cut off again. After a failed fsync the kernel may call pages clean that never reached the disk, so
nothing is ever written behind it: the file is *tainted*, and sealed as far as it was durable before; its name
says how far. As long as not even that succeeds, nothing is appended.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
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


@dataclass
class _Open:
    """The file that is being written. ``end``, ``rows`` and ``bytes`` count what is durable."""

    descriptor: int
    path: Path
    number: int
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
        self._sealed: Segment | None = None  # by the last roll or by a failure since; no roll has returned it
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
        self._settle()
        current = self._open or self._begin()
        start = records.begin(batch.schema) if current.end == 0 else b""
        try:
            middle = self._disk.write(current.descriptor, memoryview(start), current.end)
            end = self._disk.write(current.descriptor, memoryview(data), middle)
        except OSError as error:
            self._cut(current)
            raise self._failed(current.path, "cannot be written", error) from error
        try:
            self._disk.sync(current.descriptor)
            if start:
                self._disk.sync_folder(self._folder)
        except OSError as error:
            current.tainted = True
            self._try_to_settle()
            raise self._failed(current.path, "cannot be made durable", error) from error
        current.end = end
        current.rows += batch.num_rows
        current.bytes += records.body_bytes(batch)

    def roll(self) -> Segment | None:
        """Seal what was appended since the last time; None when that is nothing."""
        self._settle()
        if self._open is not None:
            if self._open.rows:
                self._close_stream(self._open)
            self._seal(self._open)
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
        try:
            descriptor = self._disk.create(path, self._mode)
        except OSError as error:
            raise self._failed(path, "cannot be created", error) from error
        self._open = _Open(descriptor, path, self._next)
        return self._open

    def _cut(self, current: _Open) -> None:
        """Back to what was durable."""
        try:
            self._disk.truncate(current.descriptor, current.end)
        except OSError:
            current.tainted = True
            self._try_to_settle()

    def _close_stream(self, current: _Open) -> None:
        """The mark is for other readers of such streams; ours know from the name where it ends."""
        try:
            self._disk.write(current.descriptor, memoryview(records.END), current.end)
            self._disk.sync(current.descriptor)
        except OSError as error:
            _logger.warning("%s is sealed without an end mark: %s", current.path, error)
            current.tainted = True

    def _settle(self) -> None:
        """Finish what a failure has left undone; raises WalError while that fails."""
        if self._open is not None and self._open.tainted:
            self._seal(self._open)
        elif self._unsynced:
            self._sync_folder()

    def _try_to_settle(self) -> None:
        try:
            self._settle()
        except WalError as error:
            _logger.warning("%s", error)

    def _seal(self, current: _Open) -> None:
        """Under its final name, if it holds anything. Until then it is the open file: try again."""
        if current.rows == 0:
            self._discard(current)
            return
        segment = Segment(self.receiver, current.number, current.rows, current.bytes)
        if current.tainted:
            with contextlib.suppress(OSError):  # tidy, not needed: the name says how far it is valid
                self._disk.truncate(current.descriptor, current.end)
        try:
            self._disk.rename(current.path, self._folder / names.sealed_file(segment))
        except OSError as error:
            current.tainted = True  # it may end with the mark already
            raise self._failed(current.path, "cannot be sealed", error) from error
        self._disk.close(current.descriptor)
        self._written += current.end
        self._open, self._sealed = None, segment
        self._next += 1
        self._unsynced = True
        self._sync_folder()

    def _discard(self, current: _Open) -> None:
        try:
            self._disk.remove(current.path)
        except OSError as error:
            current.tainted = True
            raise self._failed(current.path, "cannot be removed", error) from error
        self._disk.close(current.descriptor)
        self._open = None

    def _sync_folder(self) -> None:
        try:
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise self._failed(self._folder, "cannot be made durable", error) from error
        self._unsynced = False

    def _failed(self, path: Path, what: str, fault: OSError) -> WalError:
        return WalError(f"{path} {what}: {fault.strerror or fault}")
