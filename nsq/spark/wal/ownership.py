"""Locks that end with their process, whichever way it ends, and who reads a directory log under a name: the
process that has locked ``readers/<name>.lock``, which says who it is and whether it is about to leave.

``flock`` holds on local file systems, and between hosts on NFS with Linux 2.6.12 or later, which turns it
into byte-range locks. Those belong to a process, not to a descriptor: opening and closing a file in the
process that has locked it would unlock it. So this process remembers what it holds and never looks at
that again. A child made by fork, not by exec, holds its parent's locks too.

Waiting for a lock has no deadline in POSIX, so ``claim`` asks again ten times a second. Looking at the lock,
as ``nsq-spark wal ls`` does, holds it for an instant: even without patience it is tried for a quarter second.
Imports neither pyarrow nor anything about logs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from nsq.errors import WalOwned

# Locks


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
    """Make the file if need be, and lock it; None while another process has it."""
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
    """Whether it is locked. Any number of processes may look at once, but ``acquire`` can fail
    because of one that does.
    """
    with looked_at(path) as free:
        return not free


@contextlib.contextmanager
def looked_at(path: Path) -> Iterator[bool]:
    """True when it is free, and then no process can take it inside the block. A missing file is free."""
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


class Owner(NamedTuple):
    """What an owner says of itself."""

    description: str
    leaving: bool
    host: str
    pid: int
    since: float  # seconds since the epoch

    def __str__(self) -> str:
        leaving = ", which is leaving" if self.leaving else ""
        return f"{self.description} (process {self.pid} on {self.host}){leaving}"


UNKNOWN_OWNER = Owner("an unknown process", False, "?", 0, 0.0)


def encode(owner: Owner) -> bytes:
    return json.dumps(owner._asdict()).encode() + b"\n"


def decode(text: bytes) -> Owner:
    """Whatever can be read: the text may be half written."""
    try:
        found = json.loads(text)
        return Owner(
            str(found["description"]),
            bool(found["leaving"]),
            str(found["host"]),
            int(found["pid"]),
            float(found["since"]),
        )
    except (ValueError, KeyError, TypeError):
        return UNKNOWN_OWNER


def introduce(description: str, now: float) -> Owner:
    return Owner(description, False, os.uname().nodename, os.getpid(), now)


def told(reader: str, location: str, owner: Owner, waited: float) -> str:
    """Why a reader's name cannot be had, and what to do."""
    return (
        f"{location} is owned by {owner}; waited {waited:.1f} s for it to leave. It reads as {reader!r}: a "
        "second query on one log, or the other side of a self-join, needs a name of its own, option reader"
    )


class FileClaim:
    """The lock on the file, and what stands in it."""

    def __init__(self, lock: FileLock, owner: Owner) -> None:
        self._lock = lock
        self._owner = owner
        self._write()

    def leaving(self) -> None:
        """Announce that it is about to be free: a restart then waits instead of failing."""
        self._owner = self._owner._replace(leaving=True)
        self._write()

    def check(self) -> None:
        """It is ours as long as this process lives."""

    def release(self) -> None:
        self._lock.release()

    def _write(self) -> None:
        """A courtesy, which a full disk may refuse: it is the lock that counts."""
        if self._lock.descriptor < 0:
            return
        text = encode(self._owner)
        with contextlib.suppress(OSError):
            os.pwrite(self._lock.descriptor, text, 0)
            os.ftruncate(self._lock.descriptor, len(text))


def holder(path: Path) -> Owner | None:
    """Who has it now; None when it is free."""
    return _read(path) if is_held(path) else None


def claim(
    path: Path,
    description: str,
    patience: float,
    mode: int,
    clock: Callable[[], float],
    nap: Callable[[float], None],
) -> FileClaim:
    """Raises WalOwned when the owner does not leave in time, and OSError when the file cannot be locked."""
    started = clock()
    patience = max(patience, _LEAST_PATIENCE)
    while True:
        lock = acquire(path, mode)
        if lock is not None:
            return FileClaim(lock, introduce(description, time.time()))
        owner = _read(path)
        waited = clock() - started
        if waited >= (max(patience, LEAVING_PATIENCE) if owner.leaving else patience):
            raise WalOwned(told(path.stem, str(path.parents[1]), owner, waited))
        nap(_NAP)


def _read(path: Path) -> Owner:
    try:
        return decode(path.read_bytes())
    except OSError:
        return UNKNOWN_OWNER
