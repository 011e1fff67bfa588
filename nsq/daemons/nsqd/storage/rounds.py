"""What each round of syncs covers: all writes that are confirmed by it, and now and then all queues."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.storage.committer import Round
from nsq.daemons.nsqd.storage.durable import DurableBacklog
from nsq.daemons.nsqd.storage.queues import OnDisk, Queues

#: The most queues whose commit points one round of syncs writes.
_POSITIONS_PER_ROUND = 50

#: How soon failed storage is tried again.
_RETRY_SECONDS = 1.0


class ToSync:
    """The queues that must be synced. ``ask`` requests a round."""

    def __init__(self, queues: Queues, sync_every: int, ask: Callable[[], None]) -> None:
        self._queues = queues
        self._sync_every = sync_every
        self._ask = ask
        self._count = 0  # messages written since the last sync that they requested
        self._written: set[str] = set()  # names of durable queues written since the last round
        self._all = True  # whether the next round must sync all queues
        self._left: deque[str] = deque()  # names of the queues that are left of that

    def wrote(self, messages: int) -> None:
        """Note a write without --durable, which no publisher waits for."""
        self._count += messages
        if self._count >= self._sync_every:
            self._count = 0
            self._ask()

    def wrote_durably(self, name: str) -> None:
        self._written.add(name)
        self._ask()

    def finished_many(self, name: str) -> None:
        """Write this queue's commit point soon."""
        self._left.appendleft(name)
        self._ask()

    def all_queues(self) -> None:
        """Sync all queues, once those are done that are left of the last time."""
        self._all = True
        self._ask()

    def all_queues_again(self) -> None:
        """Sync all queues from the first one on, with the next round: one has failed."""
        self._all = True
        self._left.clear()

    def add_to(self, this: Round) -> None:
        """Add all writes since the last round and, if that was requested, all queues' commit points.

        Channels come before topics: a topic's commit point may pass only messages that its channels have
        fsynced.
        """
        written, self._written = self._written, set()
        for name in written:
            self._add_records(this, name)
        if self._all and not self._left:
            self._all = not self._queues.durable
            self._left.extend(sorted(self._queues.backlogs, key=lambda name: ":" not in name))
        self._add_positions(this)

    def _add_records(self, this: Round, name: str) -> None:
        """Add a queue's records, whose sync publishers wait for."""
        backlog = self._open(name)
        if isinstance(backlog, DurableBacklog):
            self._add_due_times(this, name, backlog)
            this.add(backlog.disk.flush_job(), backlog.disk.flushed)

    def _add_positions(self, this: Round) -> None:
        """Add records and commit points of some queues, so that publishers do not wait for thousands."""
        limit = len(this.jobs) + _POSITIONS_PER_ROUND
        while self._left and len(this.jobs) < limit:
            name = self._left.popleft()
            if (backlog := self._open(name)) is None:
                continue
            if isinstance(backlog, DurableBacklog):
                self._add_due_times(this, name, backlog)
                backlog.advance()
            this.add(backlog.disk.sync_job(), backlog.disk.synced)
        if self._left:
            self._ask()

    def _open(self, name: str) -> OnDisk | None:
        backlog = self._queues.backlogs.get(name)
        return None if backlog is None or backlog.disk.closed else backlog

    def _add_due_times(self, this: Round, name: str, backlog: DurableBacklog) -> None:
        this.add(backlog.dues.sync_job(), backlog.dues.synced)
        if (deferred := self._queues.deferred.get(name)) is not None:
            this.add(deferred.files.sync_job(), deferred.synced)


class SyncTimer:
    """Calls ``call`` every --sync-timeout, and soon after a failure: --sync-timeout may be long."""

    def __init__(self, clock: Clock, seconds: float, call: Callable[[], None]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._call = call
        self._ticking: asyncio.Task[None] | None = None
        self._soon = False  # whether a call is scheduled

    def start(self) -> None:
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="nsqd-sync-timer")

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            self._fire()

    def soon(self) -> None:
        """Call once more in a second, unless the timer was stopped: another thread writes the queues then."""
        if self._ticking is not None and not self._ticking.done() and not self._soon:
            self._soon = True
            self._clock.call_at(self._clock.now() + _RETRY_SECONDS, self._fire)

    def _fire(self) -> None:
        self._soon = False
        self._call()
