"""Making things last: fsync, and files replaced by renaming.

A ``SyncJob`` says what one queue needs; ``run_together`` makes many of them last at the price of a few, in
any thread: files are synced at the same time, which the file system does in one go, and the directory once.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import TEMPORARY

#: Files that are synced at the same time. Beyond it a file system gains nothing more.
_AT_ONCE = 16

_numbers = itertools.count()


class Replacement:
    """The content that a file is to have, and the temporary file that takes its name.

    ``cancel`` may be called in another thread at any moment: afterwards the file is left alone. Both sides
    change something first and look at the other's change then, so no lock is needed.
    """

    def __init__(self, target: Path, content: bytes) -> None:
        self.target = target
        self.temporary = target.with_name(f"{target.name}.{os.getpid()}-{next(_numbers)}{TEMPORARY}")
        self._content = content
        self._cancelled = False

    def write(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(self.temporary, flags, 0o600), "wb") as file:
            file.write(self._content)
        if self._cancelled:
            self.temporary.unlink(missing_ok=True)

    def rename(self) -> None:
        with suppress(FileNotFoundError):  # it was cancelled
            os.replace(self.temporary, self.target)

    def cancel(self) -> None:
        self._cancelled = True
        self.temporary.unlink(missing_ok=True)


class SyncJob:
    """``files`` and the replaced file are on disk once this has been called without an error.

    ``new_names`` is whether the directory has to be synced even if nothing is replaced. ``check`` raises what
    went wrong with these files earlier. It can be called once, or dropped uncalled.
    """

    def __init__(
        self,
        directory: Path,
        files: Iterable[Path],
        *,
        replacement: Replacement | None = None,
        new_names: bool = False,
        check: Check = lambda: None,
    ) -> None:
        self.directory = directory
        self.files = list(files)
        self.replacement = replacement
        self.new_names = new_names
        self.check = check

    def __call__(self) -> None:
        """Raises OSError when the disk fails; not when the files were deleted in the meantime."""
        run_together([self])

    def cancel(self) -> None:
        """Keep the job from replacing its file."""
        if self.replacement is not None:
            self.replacement.cancel()


def run_together(jobs: Sequence[SyncJob]) -> None:
    """All of ``jobs`` are on disk when this returns. Raises OSError if it may be otherwise for some of them.

    No file gets its new content before the files of all jobs are on disk.
    """
    replacements = [job.replacement for job in jobs if job.replacement is not None]
    try:
        for replacement in replacements:
            replacement.write()
        temporary = [replacement.temporary for replacement in replacements]
        sync_files([*(path for job in jobs for path in job.files), *temporary])
        for job in jobs:
            job.check()
        for replacement in replacements:
            replacement.rename()
    except OSError:
        for replacement in replacements:
            replacement.cancel()
        raise
    for directory in {job.directory for job in jobs if job.replacement is not None or job.new_names}:
        sync_file(directory)


def replace_content(target: Path, content: bytes) -> None:
    """After this the file has either its old content or the new one, also across a power cut."""
    run_together([SyncJob(target.parent, (), replacement=Replacement(target, content))])


def sync_files(paths: Sequence[Path]) -> None:
    """Sync the files that are there. Raises what went wrong first."""
    at_once = min(_AT_ONCE, share_of_limit() // 16, len(paths))  # each is opened for that
    if len(paths) <= 2 or at_once <= 1:
        for path in paths:
            _sync_if_there(path)
        return
    name = f"{threading.current_thread().name}-fsync"
    with ThreadPoolExecutor(at_once, thread_name_prefix=name) as threads:
        for _ in threads.map(_sync_if_there, paths):
            pass


def sync_file(path: Path) -> None:
    """A file, or a directory: the names in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_if_there(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync_file(path)


#: However low the limit of the process: an append needs one, a read another.
_LEAST = 8

#: More than this gains nothing.
_MOST = 100_000


def share_of_limit() -> int:
    """Half of what the process may open: the rest is for clients."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // 2))


def open_regular(path: Path, flags: int) -> int:
    """Open a file, for its owner only if it is new. Raises OSError for a FIFO or a device."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return descriptor


def read_regular(path: Path) -> bytes:
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


class OpenFiles:
    """Opens files, and has the one that was used the longest time ago closed when that makes too many.

    Owners open a file again when they need it again. Files with unsynced data are closed last: their owner
    must sync them first, since a write that fails after the close goes unnoticed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # What closes each, by descriptor, the least recently used first.
        self._idle: dict[int, Callable[[], None]] = {}
        self._dirty: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._dirty)

    def open(self, path: Path, flags: int, give_up: Callable[[], None]) -> int:
        """``give_up`` is told when the file must go: it has to ``close`` it and may raise nothing."""
        while len(self) >= self._limit:
            self._give_one_up()
        while True:
            try:
                descriptor = open_regular(path, flags)
                break
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not len(self):
                    raise
                self._give_one_up()  # clients have more than their half
        self._idle[descriptor] = give_up
        return descriptor

    def used(self, descriptor: int) -> None:
        for files in (self._idle, self._dirty):
            if descriptor in files:
                files[descriptor] = files.pop(descriptor)

    def wrote(self, descriptor: int) -> None:
        """Used, and holds data now that is not synced."""
        give_up = self._idle.pop(descriptor, None) or self._dirty.pop(descriptor)
        self._dirty[descriptor] = give_up

    def synced(self, descriptor: int) -> None:
        if (give_up := self._dirty.pop(descriptor, None)) is not None:
            self._idle[descriptor] = give_up

    def is_dirty(self, descriptor: int) -> bool:
        return descriptor in self._dirty

    def close(self, descriptor: int) -> None:
        if self._idle.pop(descriptor, None) is None:
            del self._dirty[descriptor]
        os.close(descriptor)

    def _give_one_up(self) -> None:
        files = self._idle or self._dirty
        next(iter(files.values()))()


Check = Callable[[], None]


class SyncFailure:
    """Remembers that a sync outside a round has failed: no publisher may be told that its message is on disk.

    A file is synced before it is closed early. When that fails, the system has reported it and will not do so
    again: the next sync of the file works, whatever was lost. So the error is kept until a round that began
    afterwards has failed with it, and answered all who had written before.
    """

    def __init__(self) -> None:
        self._fault: OSError | None = None
        self._told = False

    def arose(self, fault: OSError) -> None:
        self._fault, self._told = fault, False

    def check(self) -> Check:
        """Returns a check for a job that is made now; any thread may call it. It raises the error."""
        if self._told:
            self._fault, self._told = None, False
        known = self._fault

        def insist() -> None:
            fault = self._fault
            if fault is None:
                return
            if fault is known:
                self._told = True
            raise OSError(fault.errno, fault.strerror) from fault

        return insist
