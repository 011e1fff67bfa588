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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nsq.errors import WalOwned


class Owner(NamedTuple):
    """What an owner says of itself."""

    description: str
    leaving: bool
    host: str
    pid: int

    def __str__(self) -> str:
        leaving = ", which is leaving" if self.leaving else ""
        return f"{self.description} (process {self.pid} on {self.host}){leaving}"


UNKNOWN_OWNER = Owner("an unknown process", False, "?", 0)


def decode(found: Any) -> Owner:
    """From what stood in JSON. Raises KeyError or TypeError for anything else."""
    return Owner(*(found[name] for name in Owner._fields))


def introduce(description: str) -> Owner:
    return Owner(description, False, os.uname().nodename, os.getpid())


# Locks


_HELD: set[tuple[int, int, int]] = set()  # process, device, inode
_GUARD = threading.Lock()


class FileLock:
    """Held until ``release``. Who holds it may write into the file who that is."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._owner = UNKNOWN_OWNER
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

    def tell(self, owner: Owner) -> None:
        """A courtesy, which a full disk may refuse: it is the lock that counts."""
        self._owner = owner
        if self.descriptor >= 0:
            text = json.dumps(owner._asdict()).encode() + b"\n"
            with contextlib.suppress(OSError):
                os.pwrite(self.descriptor, text, 0)
                os.ftruncate(self.descriptor, len(text))

    def leaving(self) -> None:
        """Announce that it is about to be free: a restart then waits instead of failing."""
        self.tell(self._owner._replace(leaving=True))

    def check(self) -> None:
        """It is ours as long as this process lives."""


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


@contextlib.contextmanager
def looked_at(path: Path) -> Iterator[bool]:
    """True when it is free, and then no process can take it inside the block. A missing file is free. Any
    number of processes may look at once, but ``acquire`` can fail because of one that does.
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


def told(reader: str, location: str, owner: Owner, waited: float) -> str:
    """Why a reader's name cannot be had, and what to do."""
    return (
        f"{location} is owned by {owner}; waited {waited:.1f} s for it to leave. It reads as {reader!r}: a "
        "second query on one log, or the other side of a self-join, needs a name of its own, option reader"
    )


def holder(path: Path) -> Owner | None:
    """Who has it now; None when it is free."""
    with looked_at(path) as free:
        return None if free else _read(path)


def claim(
    path: Path,
    description: str,
    patience: float,
    mode: int,
    clock: Callable[[], float],
    nap: Callable[[float], None],
) -> FileLock:
    """Raises WalOwned when the owner does not leave in time, and OSError when the file cannot be locked."""
    started = clock()
    patience = max(patience, _LEAST_PATIENCE)
    while True:
        lock = acquire(path, mode)
        if lock is not None:
            lock.tell(introduce(description))
            return lock
        owner = _read(path)
        waited = clock() - started
        if waited >= (max(patience, LEAVING_PATIENCE) if owner.leaving else patience):
            raise WalOwned(told(path.stem, str(path.parents[1]), owner, waited))
        nap(_NAP)


def _read(path: Path) -> Owner:
    try:
        return decode(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):  # the text may be half written
        return UNKNOWN_OWNER
