"""What a stop does with messages: writes all of them to disk, and says what is left while that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.disk.layout import Log
from nsq.daemons.nsqd.disk.syncing import SyncJob, run_together
from nsq.daemons.nsqd.storage.deferred import DeferredOnDisk
from nsq.daemons.nsqd.storage.queues import OnDisk

#: Queues that are written and synced together, which bounds the number of open files.
_QUEUES_AT_ONCE = 200

#: How often a long stop logs its progress.
_PROGRESS_SECONDS = 1.0


class WriteDown:
    """Writes queues to disk, each with the messages that were taken from it and not finished."""

    def __init__(
        self,
        queues: list[tuple[OnDisk, list[Message]]],
        deferred: Mapping[str, DeferredOnDisk],
        clock: Clock,
    ) -> None:
        self._left = queues
        self._deferred = deferred
        self._clock = clock
        self._since = clock.now()

    def run(self, lists: Sequence[SyncJob]) -> list[StorageFailed]:
        """Write and sync the queues in groups, then ``lists``; return the errors. For a thread.

        Groups are faster than one by one, with few files open.
        """
        errors: list[StorageFailed] = []
        while self._left:
            errors += persist(self._left[:_QUEUES_AT_ONCE], self._deferred)
            self._left = self._left[_QUEUES_AT_ONCE:]
        try:
            run_together(lists)
        except OSError as error:
            errors.append(StorageFailed(f"cannot write the list of topics: {error}"))
        return errors

    async def report(self, log: Log) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            log.info("nsqd: %s", self.progress)

    @property
    def progress(self) -> str:
        """What is not on disk yet."""
        left = self._left
        # A queue that is being written may have more on disk by now than it has counted.
        in_memory = sum(max(0, len(taken) + len(backlog) - backlog.backend_depth) for backlog, taken in left)
        took = self._clock.now() - self._since
        queues = f"{len(left)} queue{'s'[: len(left) != 1]} with {in_memory} messages in memory"
        what = queues if left else "the list of topics"
        return f"still writing {what} to disk, for {took:.1f} s"


def persist(
    left: Sequence[tuple[OnDisk, list[Message]]], deferred: Mapping[str, DeferredOnDisk]
) -> list[StorageFailed]:
    """Write all messages of these backlogs to disk, each with those taken and not finished and those that are
    ``deferred``, by the queue's name; sync and close the files. Returns the errors.
    """
    errors: dict[OnDisk, StorageFailed] = {}
    backlogs = [backlog for backlog, _ in left]
    stores = {backlog: deferred[backlog.disk.name] for backlog in backlogs if backlog.disk.name in deferred}
    jobs: dict[OnDisk, list[SyncJob]] = {}
    for backlog, taken in left:
        try:
            backlog.persist(taken)
        except StorageFailed as error:
            errors[backlog] = error
        try:
            if backlog in stores:
                jobs[backlog] = stores[backlog].persist()
        except StorageFailed as error:
            errors.setdefault(backlog, error)
    _sync(jobs, jobs.__getitem__, errors)
    for backlog in jobs:
        try:
            stores[backlog].files.join(synced=backlog not in errors)
        except StorageFailed as error:
            errors.setdefault(backlog, error)
    _sync(backlogs, lambda backlog: backlog.sync_jobs(), errors, make_room=True)
    for backlog in backlogs:
        if backlog not in errors and backlog in stores:
            stores[backlog].files.remove_rewritten()
        backlog.release()
    return [errors[backlog] for backlog in backlogs if backlog in errors]


def _sync(
    backlogs: Iterable[OnDisk],
    jobs: Callable[[OnDisk], list[SyncJob]],
    errors: dict[OnDisk, StorageFailed],
    *,
    make_room: bool = False,
) -> None:
    try:
        if together := [job for backlog in backlogs for job in jobs(backlog)]:
            run_together(together)
    except OSError:
        for backlog in backlogs:  # one by one, to find those that cannot be synced
            try:
                if make_room:
                    backlog.make_room()
                run_together(jobs(backlog))
            except OSError as error:
                errors.setdefault(backlog, backlog.not_synced(error))
