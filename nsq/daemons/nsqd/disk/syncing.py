"""Making things last: fsync, and files replaced by renaming. A ``SyncJob`` may run in any thread.

A job shares nothing with its queue but the file system and a doubt. Whoever removes its temporary file
cancels it, and that and the job's rename cannot both succeed: no lock is needed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .doubt import Check
from .layout import TEMPORARY
from .segments import Position


class SyncJob:
    """Everything written up to ``written`` is on disk once this has been called without an error.

    Call it once, then tell the queue by ``synced(job)``. It can also be dropped uncalled.
    """

    def __init__(
        self,
        directory: Path,
        data: Iterable[str],
        meta: str,
        content: str,
        *,
        numbers: frozenset[int],
        written: Position,
        committed: Position,
        check: Check = lambda: None,
    ) -> None:
        self.check = check
        self.content = content
        self.numbers = numbers
        self.written = written
        self.committed = committed
        self._data = [directory / name for name in data]
        self._meta = directory / meta
        self._temporary = write_temporary(self._meta, content.encode())

    def __call__(self) -> None:
        """Raises OSError when the disk fails; not when the files were deleted in the meantime."""
        for path in self._data:
            _sync_if_there(path)
        self.check()
        if _sync_if_there(self._temporary):
            replace(self._temporary, self._meta)

    def cancel(self) -> None:
        """From now on the job leaves the meta file alone."""
        self._temporary.unlink(missing_ok=True)


class FlushJob:
    """The records written up to ``written`` are on disk once this has been called without an error.

    Less than a SyncJob, and several times as quick: a restart finds the records, and begins with those that
    were committed since the last SyncJob once more.
    """

    def __init__(
        self,
        directory: Path,
        data: Iterable[str],
        *,
        named: bool,
        numbers: frozenset[int],
        written: Position,
        check: Check = lambda: None,
    ) -> None:
        self.check = check
        self.numbers = numbers
        self.written = written
        self._directory = directory
        self._data = [directory / name for name in data]
        self._named = named

    def __call__(self) -> None:
        for path in self._data:
            _sync_if_there(path)
        self.check()
        if not self._named:
            sync_file(self._directory)


def write_temporary(target: Path, content: bytes) -> Path:
    """A file beside ``target`` that can replace it, not synced yet."""
    descriptor, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=TEMPORARY, dir=target.parent)
    path = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def replace(temporary: Path, target: Path) -> None:
    """Does nothing when the temporary file is gone."""
    try:
        os.replace(temporary, target)
    except FileNotFoundError:
        return
    sync_file(target.parent)


def replace_content(target: Path, content: bytes) -> None:
    """After this the file has either its old content or the new one, also across a power cut."""
    temporary = write_temporary(target, content)
    try:
        sync_file(temporary)
        replace(temporary, target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_file(path: Path) -> None:
    """A file, or a directory: the names in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_if_there(path: Path) -> bool:
    try:
        sync_file(path)
    except FileNotFoundError:
        return False
    return True
