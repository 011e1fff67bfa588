"""File locks, which the kernel releases when their process ends, and the owners of readers' names.

``flock`` works on local file systems, and between hosts on NFS with Linux 2.6.12 or later, which turns it
into byte-range locks. Those belong to a process, not to a descriptor: if a process opens and closes a file
that it has locked, the lock is gone. So this module remembers the files that this process has locked, and
never opens them again. A forked child holds its parent's locks until it calls exec.
Imports no pyarrow.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nsq.spark.wal.disk import Disk


class Owner(NamedTuple):
    """The process that owns a reader's name, as the reader's object describes it."""

    description: str
    leaving: bool
    host: str
    pid: int

    def __str__(self) -> str:
        leaving = ", which is leaving" if self.leaving else ""
        return f"{self.description} (process {self.pid} on {self.host}){leaving}"


def decode(found: Any) -> Owner:
    """Make an Owner from parsed JSON. Raises KeyError or TypeError when fields are missing."""
    return Owner(*(found[name] for name in Owner._fields))


def introduce(description: str) -> Owner:
    return Owner(description, False, os.uname().nodename, os.getpid())


# Locks


#: The files that are locked here, by process, device and inode.
_HELD: set[tuple[int, int, int]] = set()
_GUARD = threading.Lock()


class FileLock:
    """A lock held until ``release``, or until the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._key = _key(os.fstat(descriptor))
        with _GUARD:
            _HELD.add(self._key)

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        if self._descriptor >= 0:
            with _GUARD:
                _HELD.discard(self._key)
            os.close(self._descriptor)
            self._descriptor = -1


def acquire(path: Path, mode: int, disk: Disk) -> FileLock | None:
    """Create the file if it is missing, and lock it; None when another process holds the lock, or looks at
    it."""
    if _held_here(path):
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        disk.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _key(os.fstat(descriptor)) == _key(os.stat(path)):
            return FileLock(descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)  # it is locked, or was removed just before we had the lock
    return None


@contextlib.contextmanager
def lock_probe(path: Path, disk: Disk) -> Iterator[bool]:
    """Yield whether the lock is free; while True, no process can take it inside the block. A missing file is
    free. Many processes may look at once, but ``acquire`` fails while one of them does.
    """
    if _held_here(path):
        yield False
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        free = True
        try:
            disk.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def _held_here(path: Path) -> bool:
    try:
        key = _key(os.stat(path))
    except FileNotFoundError:
        return False
    with _GUARD:
        return key in _HELD


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino
