"""The system calls that can fail, and a file that is replaced atomically. Imports no pyarrow."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from nsq.errors import WalError
from nsq.fsync import sync_path

#: Errors of a full disk.
FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(WalError):
    """The disk has no space left, or this user may use no more of it."""


@contextlib.contextmanager
def named(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into a WalError that names the path."""
    try:
        yield
    except OSError as error:
        text = f"{path} {what}: {error.strerror or error}"
        raise (DiskFull(text) if error.errno in FULL else WalError(text)) from error


class Disk:
    """The system calls that can fail, one method each; tests replace them by a failing disk. With
    ``fsync=False`` the operating system decides when bytes reach the disk.
    """

    def __init__(self, fsync: bool = True) -> None:
        self._fsync = fsync

    def create(self, path: Path, mode: int) -> int:
        """Create a new file and return its descriptor, which child processes do not inherit."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        """Write all of ``data`` at ``position``; return the position behind it."""
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

    def allocate(self, descriptor: int, size: int) -> None:
        """Give the file space on the disk."""
        try:
            os.posix_fallocate(descriptor, 0, size)
        except (AttributeError, OSError) as error:  # macOS and some file systems cannot do that
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            self.write(descriptor, memoryview(bytes(size)), 0)

    def close(self, descriptor: int) -> None:
        """Close the descriptor. Errors are ignored: ``sync`` has reported those that matter."""
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name. Raises FileExistsError when there is a file of that name."""
        os.link(old, new)

    def flock(self, descriptor: int, operation: int) -> None:
        fcntl.flock(descriptor, operation)

    def remove(self, path: Path) -> None:
        """Delete a file; a missing file is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_folder(self, path: Path) -> None:
        """Fsync a folder, which makes creations and renames in it durable."""
        if self._fsync:
            sync_path(path)


def replace_file(disk: Disk, path: Path, data: bytes, mode: int) -> None:
    """Write a file atomically; it is durable on return. Readers ignore the hidden file that a crash may leave
    behind.
    """
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    descriptor = disk.create(draft, mode)
    try:
        disk.write(descriptor, memoryview(data), 0)
        disk.sync(descriptor)
        disk.rename(draft, path)
    finally:
        disk.close(descriptor)
        disk.remove(draft)
    disk.sync_folder(path.parent)
