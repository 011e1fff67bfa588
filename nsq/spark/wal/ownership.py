"""File locks, which the kernel releases when their process ends, and the owners of reader names. A process
owns a name while it locks ``readers/<name>.lock``. The file says which process that is, and if it is leaving.
A receiver's lock holds its last report.

``flock`` works on local file systems, and between hosts on NFS with Linux 2.6.12 or later, which turns it
into byte-range locks. Those belong to a process, not to a descriptor: if a process opens and closes a file
that it has locked, the lock is gone. So this module remembers the files that this process has locked, and
never opens them again. A forked child holds its parent's locks until it calls exec.

POSIX has no timeout for locking, so ``claim`` polls ten times a second. Inspecting a lock, as ``nsq-spark wal
ls`` does, holds it for an instant, so ``claim`` tries for at least a quarter of a second.
Imports neither pyarrow nor other modules of the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nsq.errors import WalOwned


class Owner(NamedTuple):
    """The process that owns a reader's name, as described in its file."""

    description: str
    leaving: bool
    host: str
    pid: int

    def __str__(self) -> str:
        leaving = ", which is leaving" if self.leaving else ""
        return f"{self.description} (process {self.pid} on {self.host}){leaving}"


UNKNOWN_OWNER = Owner("an unknown process", False, "?", 0)


def decode(found: Any) -> Owner:
    """Make an Owner from parsed JSON. Raises KeyError or TypeError when fields are missing."""
    return Owner(*(found[name] for name in Owner._fields))


def introduce(description: str) -> Owner:
    return Owner(description, False, os.uname().nodename, os.getpid())


# Locks


#: By process, device and inode: what we have written into the files that we hold.
_HELD: dict[tuple[int, int, int], bytes] = {}
_GUARD = threading.Lock()


class FileLock:
    """A lock held until ``release``. ``write_owner`` writes a description of its owner into the file."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._owner = UNKNOWN_OWNER
        self._key = _key(os.fstat(descriptor))
        with _GUARD:
            _HELD[self._key] = b""

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        if self.descriptor >= 0:
            with _GUARD:
                _HELD.pop(self._key, None)
            os.close(self.descriptor)
            self.descriptor = -1

    def write_owner(self, owner: Owner) -> None:
        """Write who owns the lock."""
        self._owner = owner
        self.write(json.dumps(owner._asdict()).encode() + b"\n")

    def write(self, text: bytes) -> None:
        """Replace the file's text. Errors, such as a full disk, are ignored: it is only informative."""
        if self.descriptor >= 0:
            _HELD[self._key] = text
            with contextlib.suppress(OSError):
                os.pwrite(self.descriptor, text, 0)
                os.ftruncate(self.descriptor, len(text))

    def leaving(self) -> None:
        """Announce that the lock will be free soon, so that a restarted query waits for it."""
        self.write_owner(self._owner._replace(leaving=True))

    def check(self) -> None:
        """Do nothing: a file lock cannot be lost while this process lives."""

    verify = check


def acquire(path: Path, mode: int = 0o666) -> FileLock | None:
    """Create the file if it is missing, and lock it; None when another process holds the lock."""
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


@contextlib.contextmanager
def lock_probe(path: Path) -> Iterator[bool]:
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
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def text_of(path: Path) -> bytes:
    """Return what the holder of the lock has written; the text may be half written. Raises OSError."""
    text = _HELD.get(_key(os.stat(path)))
    return path.read_bytes() if text is None else text


def _held_here(path: Path) -> bool:
    try:
        key = _key(os.stat(path))
    except FileNotFoundError:
        return False
    with _GUARD:
        return key in _HELD


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino


# Owners


LEAVING_PATIENCE = 30.0
_LEAST_PATIENCE = 0.25
_NAP = 0.1


def owned_message(reader: str, location: str, owner: Owner, waited: float) -> str:
    """The message of WalOwned: who owns the reader's name, and what to do."""
    return (
        f"{location} is owned by {owner}; waited {waited:.1f} s for it to leave. It reads as {reader!r}: a "
        "second query on one log, or the other side of a self-join, needs a name of its own, option reader"
    )


def holder(path: Path) -> Owner | None:
    """The owner of the lock; None when it is free."""
    with lock_probe(path) as free:
        return None if free else _read(path)


def claim(
    path: Path,
    description: str,
    patience: float,
    mode: int,
    clock: Callable[[], float],
    nap: Callable[[float], None],
) -> FileLock:
    """Wait for the lock and take it. Raises WalOwned on timeout, OSError when the file cannot be locked."""
    started = clock()
    patience = max(patience, _LEAST_PATIENCE)
    while True:
        lock = acquire(path, mode)
        if lock is not None:
            lock.write_owner(introduce(description))
            return lock
        owner = _read(path)
        waited = clock() - started
        if waited >= (max(patience, LEAVING_PATIENCE) if owner.leaving else patience):
            raise WalOwned(owned_message(path.stem, str(path.parents[1]), owner, waited))
        nap(_NAP)


def _read(path: Path) -> Owner:
    try:
        return decode(json.loads(text_of(path)))
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN_OWNER
