"""Disk queues for tests: small sizes, a log that remembers, disks that fill up."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from nsq.daemons.nsqd.disk.queue import DiskQueue

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "diskqueue"


class Lines:
    """A log as a list of lines."""

    def __init__(self) -> None:
        self.informed: list[str] = []
        self.complaints: list[str] = []

    def info(self, message: str, *args: object) -> None:
        self.informed.append(message % args)

    def warning(self, message: str, *args: object) -> None:
        self.complaints.append(message % args)

    error = warning


def open_queue(
    directory: Path,
    name: str = "q",
    *,
    max_bytes_per_file: int = 100,
    min_record: int = 1,
    max_record: int = 60,
    log: Lines | None = None,
) -> DiskQueue:
    return DiskQueue(
        directory,
        name,
        max_bytes_per_file=max_bytes_per_file,
        min_record=min_record,
        max_record=max_record,
        log=log or Lines(),
    )


def records(queue: DiskQueue, limit: int = 10_000) -> list[bytes]:
    return [record for _, record in queue.read(limit)]


def drain(queue: DiskQueue, limit: int = 10_000) -> list[bytes]:
    """Read and commit, as an nsqd does that keeps nothing in mind."""
    found = queue.read(limit)
    if found:
        queue.commit(found[-1][0])
    return [record for _, record in found]


def data(directory: Path, number: int, name: str = "q") -> Path:
    return directory / f"{name}.diskqueue.{number:06d}.dat"


def meta(directory: Path, name: str = "q") -> Path:
    return directory / f"{name}.diskqueue.meta.dat"


def meta_positions(directory: Path, name: str = "q") -> str:
    """The depth, read and write position of the meta file, as Go's nsqd reads them."""
    return "".join(f"{each}\n" for each in meta(directory, name).read_text().split()[:3])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@contextmanager
def room_for(size: int, *, truncates: bool = True) -> Iterator[None]:
    """A disk with room for so many more bytes; ``truncates`` is whether it can at least shorten files."""
    write, truncate = os.pwrite, os.ftruncate
    left = size

    def limited(descriptor: int, content: bytes, offset: int) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # Short writes on the way: no write is ever complete at once.
        written = write(descriptor, content[: min(left, max(1, len(content) // 2))], offset)
        left -= written
        return written

    def shorten(descriptor: int, length: int) -> None:
        if not truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        truncate(descriptor, length)

    with patch("os.pwrite", limited), patch("os.ftruncate", shorten):
        yield
