"""Syncs files, and replaces files by renaming.

A ``SyncJob`` describes what one queue needs; ``run_together`` runs many jobs at the cost of a few, in any
thread: it syncs the files concurrently, which the file system combines, and the directory once.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import TEMPORARY
from nsq.fsync import sync_path

#: Files that are synced concurrently. A higher number gains nothing.
_AT_ONCE = 16

#: Bytes of a file that are written again at a time.
_COPIED_AT_ONCE = 1 << 20

_numbers = itertools.count()


class Replacement:
    """Replaces a file's content: writes a temporary file and renames it.

    Another thread may call ``change`` and ``cancel`` at any time; after ``cancel`` the file is not replaced.
    Each side first makes its own change and then checks for the other's, so no lock is needed.
    """

    def __init__(self, target: Path, content: bytes) -> None:
        self.target = target
        self.temporary = target.with_name(f"{target.name}.{os.getpid()}-{next(_numbers)}{TEMPORARY}")
        self._content = content
        self._cancelled = False
        #: Of the temporary file; so it tells whether the target has been replaced.
        self.inode: int | None = None

    def write(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(open_regular(self.temporary, flags), "wb") as file:
            self.inode = os.fstat(file.fileno()).st_ino
            content = None
            while content is not self._content:  # it was changed meanwhile
                content = self._content
                file.seek(0)
                file.write(content)
                file.flush()
        if self._cancelled:
            self.cancel()

    def change(self, content: bytes) -> None:
        """Change the content to another one of the same size. If the target has been replaced already, it
        keeps the former one.
        """
        self._content = content
        try:
            descriptor = open_regular(self.temporary, os.O_WRONLY)
        except FileNotFoundError:  # ``write`` comes later, or the file was renamed
            return
        try:
            write_at(descriptor, content, 0)
        finally:
            os.close(descriptor)

    def rename(self) -> None:
        with suppress(FileNotFoundError):  # it was cancelled a moment ago
            if not self._cancelled:
                os.replace(self.temporary, self.target)

    def cancel(self) -> None:
        self._cancelled = True
        with suppress(OSError):  # then the next start removes it
            self.temporary.unlink(missing_ok=True)


class SyncJob:
    """Syncs ``files`` and the replaced file when called; with a replacement, call it once at most. ``files``
    has the size of each: the owner changes nothing before it, but may append while the job runs.

    With ``new_names`` the directory is synced even if no file is replaced. ``failed`` are files whose last
    fsync failed: the job writes them again before it syncs them, and adds those that fail. The owner of the
    files passes the same set to each of its jobs, and adds files that it could not sync itself.
    """

    def __init__(
        self,
        directory: Path,
        files: Mapping[Path, int],
        *,
        replacement: Replacement | None = None,
        new_names: bool = False,
        failed: set[Path] | None = None,
    ) -> None:
        self.directory = directory
        self.files = files
        self.replacement = replacement
        self.new_names = new_names
        self.failed = set() if failed is None else failed
        #: After the run: those ``files`` that did not exist.
        self.missing: set[Path] = set()

    def __call__(self) -> None:
        """Sync. Raises OSError if the disk fails, but not for files that are ``missing`` meanwhile."""
        run_together([self])

    def check(self) -> None:
        """Raise OSError if an fsync of one of the files has failed since the job has run."""
        for path in self.failed.intersection(self.files):
            raise OSError(errno.EIO, "an fsync before it was closed has failed", str(path))

    def cancel(self) -> None:
        """Stop the job from replacing its file."""
        if self.replacement is not None:
            self.replacement.cancel()


def run_together(jobs: Sequence[SyncJob]) -> None:
    """Run all jobs. If this raises OSError, the files of some jobs may not be synced.

    No file is replaced before the files of all jobs are synced.
    """
    replacements = [job.replacement for job in jobs if job.replacement is not None]
    try:
        for job in jobs:
            for path in job.failed.intersection(job.files):
                job.failed.discard(path)  # first: meanwhile the owner can add it again
                try:
                    _write_again(path, job.files[path])
                except OSError:
                    job.failed.add(path)
                    raise
        for replacement in replacements:
            replacement.write()
        temporary = [replacement.temporary for replacement in replacements]
        errors = sync_files([*(path for job in jobs for path in job.files), *temporary])
        for job in jobs:
            job.missing = {path for path in job.files if isinstance(errors.get(path), FileNotFoundError)}
            job.failed.update(path for path in job.files if path in errors and path not in job.missing)
        for error in errors.values():
            if not isinstance(error, FileNotFoundError):
                raise error
        for replacement in replacements:
            replacement.rename()
    except OSError:
        for replacement in replacements:
            replacement.cancel()
        raise
    for directory in {job.directory for job in jobs if job.replacement is not None or job.new_names}:
        sync_path(directory)


def replace_content(target: Path, content: bytes) -> None:
    """Replace a file's content. After a power cut it has either the old content or the new one."""
    run_together([SyncJob(target.parent, {}, replacement=Replacement(target, content))])


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write the whole content at an offset."""
    unwritten = memoryview(content)
    while unwritten:
        written = os.pwrite(descriptor, unwritten, offset)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        offset += written
        unwritten = unwritten[written:]


def sync_files(paths: Sequence[Path]) -> dict[Path, OSError]:
    """Sync all files; return the errors."""
    at_once = min(_AT_ONCE, share_of_limit() // 16, len(paths))  # each sync opens its file
    if len(paths) <= 2 or at_once <= 1:
        results = list(map(_try_to_sync, paths))
    else:
        name = f"{threading.current_thread().name}-fsync"
        with ThreadPoolExecutor(at_once, thread_name_prefix=name) as threads:
            results = list(threads.map(_try_to_sync, paths))
    return {path: error for path, error in zip(paths, results, strict=True) if error is not None}


def _try_to_sync(path: Path) -> OSError | None:
    try:
        sync_path(path)
    except OSError as error:
        return error
    return None


def _write_again(path: Path, size: int) -> None:
    """Write the first ``size`` bytes of a file again: Linux does not write pages again that an fsync could
    not write, and the next fsync succeeds all the same.

    The content is still in the system's cache, unless memory is so short that it has dropped these pages.
    Then this writes what is on the disk. That has all that was ever confirmed in this file: an earlier fsync
    wrote it, the committer confirms nothing that was written before the failure, and later records are in new
    files. Not covered: a message that a topic has just handed to this channel and that is only in such
    pages.
    """
    try:
        descriptor = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while content := _read_if_possible(descriptor, min(size - offset, _COPIED_AT_ONCE), offset):
            offset += os.pwrite(descriptor, content, offset)
    finally:
        os.close(descriptor)


def _read_if_possible(descriptor: int, size: int, offset: int) -> bytes:
    try:
        return os.pread(descriptor, size, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""  # given up: reading the queue logs the damage and keeps the file


def rename_to_temporary(path: Path) -> Path:
    """Rename a file that is not needed any more, and return its new path. If nsqd ends before it has removed
    the file, the next start does so (``DataDirectory.lock``).
    """
    target = path.with_name(f"nsqd.{os.getpid()}-{next(_numbers)}{TEMPORARY}")
    os.rename(path, target)
    return target


def remove_in_thread(paths: Sequence[Path]) -> None:
    """Remove the files in a thread, whose end the process waits for: Go's nsqd would never remove them."""

    def remove() -> None:
        for path in paths:
            with suppress(OSError):
                path.unlink()

    try:
        threading.Thread(target=remove, name="nsqd-remove", daemon=False).start()
    except RuntimeError:  # the process has as many threads as it may have
        remove()


#: The minimum, however low the limit of the process is: an append needs one file, a read another.
_LEAST = 8

#: The maximum: more open files gain nothing.
_MOST = 100_000


def share_of_limit() -> int:
    """Return half of the number of files that the process may open; the rest is for clients."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // 2))


def open_regular(path: Path, flags: int) -> int:
    """Open a file; a new one gets mode 0600. Raises OSError for a FIFO or a device, and for a link unless the
    file is only read: a link would let nsqd overwrite a file outside of its directory.
    """
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if writes else 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if writes and path.is_symlink():
            text = "is a link, through which nsqd does not write: put the file in its place"
            raise OSError(errno.ELOOP, text, str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return descriptor


def truncate_regular(path: Path, size: int) -> None:
    descriptor = open_regular(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def replace_link(path: Path) -> None:
    """Replace a link by a copy of the file that it leads to, as nsqd is going to write to it. If that fails,
    nsqd refuses to write to it.
    """
    with suppress(OSError):
        if path.is_symlink():
            replace_content(path, path.read_bytes())


def read_regular(path: Path) -> bytes:
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


class OpenFiles:
    """Limits the number of open files: above the limit, the owner of the least recently used file closes it.

    The owner opens the file again when it is needed. Files with unsynced data are closed last: their owner
    must sync them first, since a write that fails after the close goes unnoticed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The functions that close each file, by descriptor, least recently used first.
        self._idle: dict[int, Callable[[], None]] = {}
        self._dirty: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._dirty)

    def open(self, path: Path, flags: int, close_early: Callable[[], None]) -> int:
        """Open a file. ``close_early`` is called when it must be closed; it calls ``close``, never raises."""
        while len(self) >= self._limit:
            self._close_one()
        descriptor = self.open_briefly(path, flags)
        self._idle[descriptor] = close_early
        return descriptor

    def open_briefly(self, path: Path, flags: int) -> int:
        """Open a file that the caller closes at once; so it does not count."""
        while True:
            try:
                return open_regular(path, flags)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not len(self):
                    raise
                self._close_one()  # clients use more than their half of the limit

    def used(self, descriptor: int) -> None:
        for files in (self._idle, self._dirty):
            if descriptor in files:
                files[descriptor] = files.pop(descriptor)

    def wrote(self, descriptor: int) -> None:
        """Note that the file was used and has unsynced data now."""
        close_early = self._idle.pop(descriptor, None) or self._dirty.pop(descriptor)
        self._dirty[descriptor] = close_early

    def synced(self, descriptor: int) -> None:
        if (close_early := self._dirty.pop(descriptor, None)) is not None:
            self._idle[descriptor] = close_early

    def is_dirty(self, descriptor: int) -> bool:
        return descriptor in self._dirty

    def close(self, descriptor: int) -> None:
        if self._idle.pop(descriptor, None) is None:
            del self._dirty[descriptor]
        os.close(descriptor)

    def _close_one(self) -> None:
        files = self._idle or self._dirty
        next(iter(files.values()))()
