"""Locks that end with their process, whichever way it ends: ``flock`` on a file.

They hold on local file systems, and between hosts on NFS with Linux 2.6.12 or later, which turns them into
byte-range locks. Those belong to a process, not to a descriptor: opening and closing a file in the process
that has locked it would unlock it. So this process remembers what it holds and never looks at that again.

A child made by fork (not by exec: the descriptor does not survive that) holds its parent's locks too.
Imports neither pyarrow nor anything about logs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_HELD: set[tuple[int, int, int]] = set()  # process, device, inode
_GUARD = threading.Lock()


class FileLock:
    """Held until ``release``."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._key = _key(os.fstat(descriptor))
        with _GUARD:
            _HELD.add(self._key)

    def release(self) -> None:
        """Twice does no harm."""
        if self.descriptor >= 0:
            with _GUARD:
                _HELD.discard(self._key)
            os.close(self.descriptor)
            self.descriptor = -1


def acquire(path: Path, mode: int = 0o666) -> FileLock | None:
    """Make the file if need be, and lock it; None while somebody else has it."""
    if _held_here(path):
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return FileLock(descriptor)


def is_held(path: Path) -> bool:
    """Whether somebody has locked it. Any number of processes may look at once, but ``acquire`` can fail
    because of one that does.
    """
    with looked_at(path) as free:
        return not free


@contextlib.contextmanager
def looked_at(path: Path) -> Iterator[bool]:
    """True when nobody holds it, and then nobody can take it inside the block. No file, no holder."""
    if _held_here(path):
        yield False
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _shared(descriptor)
    finally:
        os.close(descriptor)


def _shared(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held_here(path: Path) -> bool:
    try:
        key = _key(os.stat(path))
    except FileNotFoundError:
        return False
    with _GUARD:
        return key in _HELD


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino
