"""Files that are written atomically and durably: the system calls that can fail, and the small files of a log
in a directory. Imports no pyarrow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from nsq.errors import WalError

_PRIVATE = 0o700
_HIDDEN = "."


@contextlib.contextmanager
def named(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into a WalError that names the path."""
    try:
        yield
    except OSError as error:
        raise WalError(f"{path} {what}: {error.strerror or error}") from error


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

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        """Close the descriptor. Errors are ignored: ``sync`` has reported those that matter."""
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """Delete a file; a missing file is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_folder(self, path: Path) -> None:
        """Fsync a folder, which makes creations and renames in it durable."""
        if not self._fsync:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(disk: Disk, path: Path, data: bytes, mode: int, *, once: bool = False) -> None:
    """Write a file atomically; it is durable on return. ``once`` keeps a file that exists, so of several
    concurrent writers the first one wins. Readers ignore the hidden file that a crash may leave behind.
    """
    draft = path.with_name(f"{_HIDDEN}{path.name}-{uuid.uuid4().hex}")
    descriptor = disk.create(draft, mode)
    try:
        disk.write(descriptor, memoryview(data), 0)
        disk.sync(descriptor)
        if once:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        else:
            disk.rename(draft, path)
    finally:
        disk.close(descriptor)
        disk.remove(draft)
    disk.sync_folder(path.parent)


class Directory:
    """The small files of a log, named by their paths below ``root``."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk

    def path(self, name: str) -> Path:
        return self._root / name

    def mode(self) -> int:
        """The mode of new folders in the log; new files get it without the execute bits."""
        return self._root.stat().st_mode & 0o777

    def make_folder(self, name: str) -> None:
        path = self._root / name
        with named(path, "cannot be made"):
            if not name:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(mode=_PRIVATE, exist_ok=True)
            elif not path.is_dir():
                path.mkdir(mode=self.mode(), exist_ok=True)
                self._disk.sync_folder(self._root)

    def names(self, folder: str) -> list[str]:
        """The sorted names directly in a folder."""
        with named(self._root / folder, "cannot be listed"), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self._root / folder))
        return []

    def get(self, name: str) -> bytes | None:
        """The content of a file; None when the file is missing."""
        with named(self._root / name, "cannot be read"), contextlib.suppress(FileNotFoundError):
            return (self._root / name).read_bytes()
        return None

    def put(self, name: str, data: bytes, *, once: bool = False) -> None:
        """Write a file atomically; it is durable on return. ``once`` keeps a file that exists, so of several
        concurrent writers the first one wins.
        """
        path = self._root / name
        with named(path, "cannot be written"):
            replace_file(self._disk, path, data, self.mode() & 0o666, once=once)

    def delete(self, name: str) -> None:
        """Delete a file; a missing file is no error."""
        with named(self._root / name, "cannot be deleted"):
            self._disk.remove(self._root / name)
