"""Who reads and deletes in a directory log: the process that has locked the file ``owner``, which says who it
is and whether it is about to leave.

Waiting for a lock has no deadline in POSIX, so ``own`` asks again ten times a second. Looking at the lock, as
``nsq-spark wal ls`` does, holds it for an instant: even without patience it is tried for a quarter second.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nsq.errors import WalOwned
from nsq.spark.wal import locks

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


NOBODY_KNOWN = Owner("somebody who has not said who", False, "?", 0, 0.0)


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
        return NOBODY_KNOWN


def introduce(description: str, now: float) -> Owner:
    return Owner(description, False, os.uname().nodename, os.getpid(), now)


class FileClaim:
    """The lock on the file, and what stands in it."""

    def __init__(self, lock: locks.FileLock, owner: Owner) -> None:
        self._lock = lock
        self._owner = owner
        self._write()

    def leaving(self) -> None:
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
    """Who has it now; None when nobody has."""
    return _read(path) if locks.is_held(path) else None


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
        lock = locks.acquire(path, mode)
        if lock is not None:
            return FileClaim(lock, introduce(description, time.time()))
        owner = _read(path)
        waited = clock() - started
        if waited >= (max(patience, LEAVING_PATIENCE) if owner.leaving else patience):
            raise WalOwned(f"{path.parent} is owned by {owner}; waited {waited:.1f} s for it to leave")
        nap(_NAP)


def _read(path: Path) -> Owner:
    try:
        return decode(path.read_bytes())
    except OSError:
        return NOBODY_KNOWN
