"""What a directory log does to files, one method per system call that can fail; tests put a failing disk in
its place. Knows nothing of Arrow or of names.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


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
