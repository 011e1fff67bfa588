"""Batches for logs, and disks that fail on request."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nsq.spark.wal import records
from nsq.spark.wal.disk import Disk
from nsq.spark.wal.folder import Folder
from nsq.spark.wal.log import Wal
from nsq.spark.wal.receiver_log import ReceiverLog
from tests.integration.patience import eventually

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

    def read(wal: Wal) -> list[int]:
        return [
            int(one, 16) for segment in wal.segments() for one in wal.read(segment).column("id").to_pylist()
        ]

    return read


@contextmanager
def log_of(wal: Wal, receiver: str = "one") -> Iterator[ReceiverLog]:
    log = wal.log(receiver)
    try:
        yield log
    finally:
        log.close()


def put_all(log: ReceiverLog, make: Make, *counts: int, start: int = 0) -> None:
    """Put segments of so many rows, one after the other, and wait until they are named."""
    named: list[int] = []
    for count in counts:
        log.put(make(count, start=start), lambda start=start: named.append(start))  # type: ignore[misc]
        start += count
    eventually(lambda: len(named), lambda length: length == len(counts), 60.0)
    assert named == sorted(named)


def failing(name: str, code: int = errno.EIO) -> Any:
    """A method of ``Disk`` that notes its calls, and fails on request."""

    def call(disk: FailingDisk, *arguments: Any) -> Any:
        disk.calls.append(name)
        if name in disk.failing:
            raise OSError(code, os.strerror(code))
        return getattr(Disk, name)(disk, *arguments)

    return call


class FailingDisk(Disk):
    """Fails in the calls named by ``failing`` (with ENOSPC or EIO), and remembers all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()
        self.calls: list[str] = []
        self.torn = 0  # bytes that a failing write still writes

    create, allocate = failing("create", errno.ENOSPC), failing("allocate", errno.ENOSPC)
    _write = failing("write", errno.ENOSPC)
    sync, sync_folder, rename, remove = (
        failing(name) for name in ("sync", "sync_folder", "rename", "remove")
    )
    link, flock = failing("link"), failing("flock", errno.ENOLCK)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        if "write" in self.failing:
            super().write(descriptor, data[: self.torn], position)
        return self._write(descriptor, data, position)


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def wal(tmp_path: Path, disk: FailingDisk) -> Wal:
    """A prepared log in a directory on that disk."""
    made = Wal(Folder(tmp_path / "wal", disk=disk), str(tmp_path / "wal"))
    made.prepare()
    disk.calls.clear()
    return made
