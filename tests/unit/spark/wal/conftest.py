"""Batches for logs, and disks that fail on request."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from nsq.spark.wal import records
from nsq.spark.wal.directory import DirectoryWal
from nsq.spark.wal.disk import Disk

Make = Callable[..., pa.RecordBatch]


def made(count: int, start: int = 0, topic: str = "orders", size: int = 20) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return records.stored(
        topic,
        [b"%016x" % number for number in numbers],
        [1_700_000_000_000_000_000 + number for number in numbers],
        [1] * count,
        ["127.0.0.1:4150"] * count,
        [b"%d" % number + b"." * size for number in numbers],
    )


@pytest.fixture
def make() -> Make:
    """``make(3)``: three messages; ``make(2, start=3)``: the next two."""
    return made


@pytest.fixture
def ids() -> Callable[..., list[int]]:
    """The numbers that ``make`` gave to the messages of these segments."""

    def read(wal: DirectoryWal) -> list[int]:
        return [
            int(one, 16)
            for segment in wal.segments()
            for batch in wal.read(segment)
            for one in batch.column("id").to_pylist()
        ]

    return read


class FailingDisk(Disk):
    """Fails in the calls named by ``failing`` (with ENOSPC or EIO), and remembers all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()
        self.calls: list[str] = []
        self.torn = 0  # bytes that a failing write still writes

    def _call(self, name: str, code: int = errno.EIO) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise OSError(code, os.strerror(code))

    def create(self, path: Path, mode: int) -> int:
        self._call("create", errno.ENOSPC)
        return super().create(path, mode)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        if "write" in self.failing:
            super().write(descriptor, data[: self.torn], position)
        self._call("write", errno.ENOSPC)
        return super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        self._call("sync")
        super().sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        self._call("truncate")
        super().truncate(descriptor, size)

    def rename(self, old: Path, new: Path) -> None:
        self._call("rename")
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._call("remove")
        super().remove(path)

    def sync_folder(self, path: Path) -> None:
        self._call("sync_folder")
        super().sync_folder(path)


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def wal(tmp_path: Path, disk: FailingDisk) -> DirectoryWal:
    """A prepared log on that disk."""
    made = DirectoryWal(tmp_path / "wal", disk=disk)
    made.prepare()
    disk.calls.clear()
    return made
