"""One receiver's log in a directory: append, make durable, seal, and what to do when the disk refuses.

The file that is being written is valid up to ``_Open.end``, and everything is written behind that. A failed
write is cut off again. After a failed fsync the kernel may call pages clean that never reached the disk, so
nothing is ever written behind it: the file is *tainted*, and sealed as far as it was durable before; its name
says how far. As long as not even that succeeds, nothing is appended.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from nsq.errors import WalError
from nsq.spark.wal import names, records, streams
from nsq.spark.wal.disk import Disk
from nsq.spark.wal.locks import FileLock
from nsq.spark.wal.store import Segment

_logger = logging.getLogger("nsq.spark.wal")


@dataclass
class _Open:
    """The file that is being written. ``end``, ``rows`` and ``bytes`` count what is durable."""

    descriptor: int
    path: Path
    number: int
    schema: pa.Schema
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
        self._unsynced = False  # a seal is in the folder, but the folder perhaps not on the disk
        self._sealed: Segment | None = None  # by the last roll or by a failure since; no roll has returned it
        self._closed = False

    @property
    def open_rows(self) -> int:
        return self._open.rows if self._open else 0

    @property
    def open_bytes(self) -> int:
        """Of bodies."""
        return self._open.bytes if self._open else 0

    def append(self, batch: pa.RecordBatch) -> None:
        self._refuse_foreign(batch)
        if batch.num_rows == 0:
            return
        data = streams.encode(batch)
        self._settle()
        current = self._open or self._begin(batch.schema)
        start = streams.begin(batch.schema) if current.end == 0 else b""
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
        self._settle()
        if self._open is not None:
            if self._open.rows:
                self._close_stream(self._open)
            self._seal(self._open)
        sealed, self._sealed = self._sealed, None
        return sealed

    def close(self) -> Segment | None:
        """Gives up the lock even if the roll fails: what is durable is then sealed by ``recover``."""
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

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_foreign(self, batch: pa.RecordBatch) -> None:
        if self._closed:
            raise WalError(f"{self._folder}: this log has been closed")
        if not batch.schema.equals(records.STORED):
            raise WalError(f"{self._folder}: not a batch of records.stored(): {batch.schema.names}")
        if self._open is not None and not batch.schema.equals(self._open.schema, check_metadata=True):
            here, there = records.topic_of(self._open.schema), records.topic_of(batch.schema)
            raise WalError(f"{self._open.path} holds topic {here!r}, and cannot take {there!r} too")

    def _begin(self, schema: pa.Schema) -> _Open:
        path = self._folder / names.open_file(self._next)
        try:
            descriptor = self._disk.create(path, self._mode)
        except OSError as error:
            raise self._failed(path, "cannot be created", error) from error
        self._open = _Open(descriptor, path, self._next, schema)
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
            self._disk.write(current.descriptor, memoryview(streams.END), current.end)
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
