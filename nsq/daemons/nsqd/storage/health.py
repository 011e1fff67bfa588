"""Whether the disk takes messages. A failure counts until a write or a round of syncs shows that it works."""

from __future__ import annotations

import errno
import functools

from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.disk.layout import Log
from nsq.daemons.nsqd.storage.committer import Round
from nsq.daemons.nsqd.storage.directory import DataDirectory
from nsq.daemons.nsqd.storage.queues import Queues

HEALTHY = "OK"

#: The errors of a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT)

#: The shortest time between two searches for removable files, which take long with thousands of queues.
_ROOM_SECONDS = 0.1


class DiskHealth:
    """The last failure of the disk, until it works again."""

    def __init__(self, directory: DataDirectory, queues: Queues, clock: Clock, log: Log) -> None:
        self._directory = directory
        self._queues = queues
        self._clock = clock
        self._log = log
        self._error: Exception | None = None
        self._refused = 0  # the size of a write that the disk refused, if that is the failure
        self._testing: Round | None = None  # the current round, if it tests whether the disk works again
        self._made_room_at = float("-inf")

    def __str__(self) -> str:
        """Return "OK", or the reason why messages are refused now."""
        error = self._error
        if error is None or (_is_full(error) and not self._refuses):
            return HEALTHY
        return str(error) or repr(error)

    @property
    def _refuses(self) -> bool:
        """Whether messages are refused while the disk is full: without --durable, memory may have room."""
        return self._queues.durable or any(not backlog.room for backlog in self._queues.memory_first)

    def failed(self, error: Exception, refused: int) -> None:
        """Note a failure; ``refused`` is the size of the write, if a write has failed, or 0."""
        if self._error is None:
            self._log.error("storage does not work: %s", error)
        self.make_room(error)
        self._error, self._refused = error, refused or self._refused
        self._testing = None

    def make_room(self, error: Exception) -> bool:
        """If the disk is full, remove files without unfinished messages. Returns whether there were any."""
        now = self._clock.now()
        if not _is_full(error) or now < self._made_room_at + _ROOM_SECONDS:
            return False
        self._made_room_at = now
        return self._queues.make_room()

    def test(self, this: Round) -> bool:
        """After a failure, let this round test whether the disk works again. Returns whether it does."""
        self._testing = this if self._error is not None else None
        if self._refused:
            this.probe = functools.partial(self._directory.probe, self._refused)
        return self._testing is not None

    def write_succeeded(self) -> None:
        if self._refused:
            self._mark_healthy()

    def round_succeeded(self) -> bool:
        """Note that a round has succeeded. Returns False if it has found that the disk is still full."""
        if self._testing is None:
            return True
        if self._testing.probe_error is not None or any(each.stuck for each in self._queues.memory_first):
            return False
        self._mark_healthy()
        return True

    def _mark_healthy(self) -> None:
        self._log.info("storage works again")
        self._error, self._refused, self._testing = None, 0, None


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL
