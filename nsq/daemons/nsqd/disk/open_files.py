"""How many files of queues are open at a time: with thousands of queues not all of them can be."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

#: However low the limit of the process: an append needs one, a read another.
_LEAST = 8

#: Nobody gains by more.
_MOST = 100_000


def share_of_limit() -> int:
    """Half of what the process may open: the rest is for clients."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // 2))


class OpenFiles:
    """Opens files, and has the one that was used the longest time ago closed when that makes too many.

    Owners open again what they need again. What holds unsynced data is closed last: its owner must sync it
    first, as nobody would be told of a write that fails after the close.
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
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
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
