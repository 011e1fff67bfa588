"""Which message ids an nsqd may make: none that an earlier run can have used.

A run that is killed may leave records with any of its ids, and a durable queue takes a second record with the
same id for a copy. So ids are reserved on disk before they are made, ten minutes of them at a time. The next
run begins after them, even if the clock has been set back meanwhile.
"""

from __future__ import annotations

import re
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import MessageIds
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.disk.layout import Log
from nsq.daemons.nsqd.disk.syncing import Replacement, SyncJob, read_regular
from nsq.daemons.nsqd.storage.committer import Round

_NAME = "nsqd.ids.dat"
_TICK = re.compile(rb"([0-9]{1,13})\n").fullmatch

#: How far ahead ids are reserved: ten minutes, in ticks of 2²⁰ ns.
_AHEAD = 600 * 10**9 >> 20


class ReservedIds:
    """Knows the last tick whose ids may be used, according to the disk."""

    def __init__(self, directory: Path, clock: Clock, log: Log) -> None:
        self._path = directory / _NAME
        self._clock = clock
        self._log = log
        self._ids: MessageIds | None = None
        self._last = -1

    def start(self, ids: MessageIds) -> None:
        """Let ``ids`` begin after the last run's, and reserve the first ones."""
        last = self._read()
        ids.start_after(last)
        self._ids = ids
        self._last = max(last, self._clock.time_ns() >> 20) + _AHEAD
        try:
            self._job(self._last)()
        except OSError as error:
            self._log.warning("%s cannot be written (%s): new ids may repeat old ones", _NAME, error)
            self._last = last

    def _read(self) -> int:
        """Return the last tick whose ids an earlier run may have used; -1 if that is unknown."""
        try:
            content = read_regular(self._path)
        except FileNotFoundError:
            return -1
        except OSError as error:
            self._log.warning("%s cannot be read (%s): new ids may repeat old ones", _NAME, error)
            return -1
        if (match := _TICK(content)) is None:
            self._log.warning("%s is damaged: new ids may repeat old ones", _NAME)
            return -1
        return int(match[1])

    def reserve(self, this: Round) -> None:
        """Add a job to the round that reserves more ids, if half of them are used."""
        if self._ids is None or (used := self._ids.tick) + _AHEAD // 2 <= self._last:
            return

        def reserved(_: SyncJob) -> None:
            self._last = used + _AHEAD

        this.add(self._job(used + _AHEAD), reserved)

    def last_jobs(self) -> list[SyncJob]:
        """Return the jobs that, at a stop, give back the ids that are reserved and not used."""
        return [self._job(self._ids.tick)] if self._ids is not None and self._ids.tick >= 0 else []

    def _job(self, tick: int) -> SyncJob:
        return SyncJob(self._path.parent, {}, replacement=Replacement(self._path, b"%d\n" % tick))
