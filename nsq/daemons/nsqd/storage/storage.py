"""The data directory of a running nsqd: its backlogs, what exists, when that is synced, and its health."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqd.core.backlog import Backlog, EphemeralBacklog, StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.disk import record
from nsq.daemons.nsqd.disk.directory import DataDirectory
from nsq.daemons.nsqd.disk.layout import queue_name
from nsq.daemons.nsqd.disk.open_files import OpenFiles, share_of_limit
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.roster import ChannelEntry, TopicEntry
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.storage.committer import Committer, Round
from nsq.daemons.nsqd.storage.dues import DueBook
from nsq.daemons.nsqd.storage.durable import DurableBacklog
from nsq.daemons.nsqd.storage.spilling import SpillingBacklog
from nsq.daemons.worker_thread import in_thread
from nsq.wire.names import is_ephemeral

HEALTHY = "OK"

#: For answers that wait for the disk when nsqd stops.
_SETTLE_SECONDS = 2.0

#: Of so many queues a round makes the place to go on from last.
_PLACES = 50

#: With --mem-queue-size=0 an ephemeral queue could not even hold what is handed out a moment later.
_LEAST_EPHEMERAL = 100

OnDisk = SpillingBacklog | DurableBacklog


class Storage:
    """Where the broker gets its backlogs. ``start`` and ``stop`` bracket everything else."""

    def __init__(self, options: NsqdOptions, clock: Clock, log: DaemonLog) -> None:
        self.health = HEALTHY
        self.committer: Committer | None = None
        self._options = options
        self._clock = clock
        self._log = log
        self._directory = DataDirectory(Path(options.data_path or "."), log)
        self._open_files = OpenFiles(share_of_limit())
        self._backlogs: dict[str, OnDisk] = {}
        self._found: dict[str, list[str]] = {}  # files of earlier lives, by queue, until that is opened
        self._broker: Broker | None = None
        self._roster_changed = False
        self._unsynced = 0  # messages
        self._written: set[str] = set()  # names of durable queues, since the last round
        self._whole = True  # whether to sync everything
        self._to_sync: deque[str] = deque()  # the names that are left of that
        self._probing = False  # whether the round under way shows if the disk works again
        self._stalled = False  # whether something failed since the last tick
        self._ticking: asyncio.Task[None] | None = None

    # Lifecycle.

    def start(self, broker: Broker) -> None:
        """Make the directory ours, and the broker what it was when nsqd stopped."""
        self._directory.lock()
        self._found = self._directory.files()
        self.committer = Committer(self._prepare, self.failed, self._worked, distrust=self._distrust)
        for topic in self._directory.read_roster():
            self._restore(broker, topic)
        self._broker = broker
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="nsqd-sync-timer")

    def _restore(self, broker: Broker, entry: TopicEntry) -> None:
        topic = broker.topic(entry.name)
        topic.pause(True)  # what waits is for all of its channels
        for name, paused in entry.channels:
            topic.channel(name).pause(paused)
        topic.pause(entry.paused)

    async def settle(self) -> None:
        """Let those who wait for the disk have their answers, as far as it gives them soon."""
        if self.committer is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self.committer.lasting()

    async def stop(self, shelves: Iterable[Callable[[], None]]) -> list[StorageFailed]:
        """Write everything down, and return what went wrong; ``shelves`` are what closing the broker gave.

        In a thread: while a disk does not answer, nsqd does, if only to a second signal.
        """
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self.committer is not None:
            await self.committer.close()
        roster = self._roster() if self._broker is not None else None
        faults = await in_thread(lambda: self._write_down(shelves, roster), "nsqd-write-down")
        self._directory.unlock()
        return faults

    def _write_down(
        self, shelves: Iterable[Callable[[], None]], roster: list[TopicEntry] | None
    ) -> list[StorageFailed]:
        faults = []
        for shelve in shelves:
            try:
                shelve()
            except StorageFailed as error:
                faults.append(error)
        if roster is not None:
            try:
                self._directory.write_roster(roster, COMPATIBLE_VERSION)
            except OSError as error:
                faults.append(StorageFailed(f"cannot write the list of topics: {error}"))
        return faults

    # What the broker asks for.

    def backlog(self, topic: str, channel: str = "") -> Backlog:
        if is_ephemeral(channel or topic):
            return EphemeralBacklog(self._options.mem_queue_size or _LEAST_EPHEMERAL)
        name = queue_name(topic, channel or None)
        try:
            backlog = self._open(name)
        except OSError as error:
            self.failed(error)
            raise StorageFailed(str(error)) from error
        self._backlogs[name] = backlog
        return backlog

    def _open(self, name: str) -> OnDisk:
        limit = self._options.mem_queue_size
        disk = DiskQueue(
            self._directory.path,
            name,
            max_bytes_per_file=self._options.max_bytes_per_file,
            min_record=record.OVERHEAD,
            max_record=self._options.max_msg_size + record.OVERHEAD,
            log=self._log,
            files=self._found.pop(name, ()),
            open_files=self._open_files,
        )
        if not self._options.durable:
            return SpillingBacklog(disk, limit, failed=self.failed, wrote=self._wrote)
        dues = DueBook(self._directory.path, name, self._clock, self._open_files)

        def written() -> None:
            self._written.add(name)
            self._ask()

        return DurableBacklog(
            disk, dues, limit, failed=self.failed, written=written, fault=self._fault_of_syncs
        )

    def _fault_of_syncs(self) -> Exception | None:
        return self.committer.fault if self.committer is not None else None

    def _wrote(self, messages: int) -> None:
        self._unsynced += messages
        if self._unsynced >= self._options.sync_every:
            self._unsynced = 0
            self._ask()

    def _ask(self) -> None:
        if self.committer is not None:
            self.committer.ask()

    def changed(self) -> None:
        self._roster_changed = True
        self._ask()

    @property
    def waits(self) -> Committer | None:
        """What a publisher's OK has to wait for; None when it need not."""
        return self.committer if self._options.durable else None

    # Syncing.

    def _prepare(self) -> Round:
        """What was written since the last round and, every --sync-timeout, how far all queues have come.

        Channels before topics: a topic forgets what it has given to channels only when they have it on disk.
        """
        this = Round()
        self._probing = self.health != HEALTHY
        if self._broker is not None and (self._roster_changed or self._probing):
            self._roster_changed = False
            roster = self._roster()
            this.jobs.append(lambda: self._directory.write_roster(roster, COMPATIBLE_VERSION))
        written, self._written = self._written, set()
        for name in written:
            self._add_records(this, name)
        if self._whole and not self._to_sync:
            self._whole = not self._options.durable
            self._to_sync.extend(sorted(self._backlogs, key=lambda name: ":" not in name))
        self._add_places(this)
        return this

    def _add_records(self, this: Round, name: str) -> None:
        """What publishers wait for."""
        backlog = self._backlogs.get(name)
        if isinstance(backlog, DurableBacklog) and not backlog.disk.closed:
            this.add(backlog.dues.sync_job(), backlog.dues.synced)
            this.add(backlog.disk.flush_job(), backlog.disk.flushed)

    def _add_places(self, this: Round) -> None:
        """Records and the places to go on from, of some queues: nobody shall wait for thousands of them."""
        limit = len(this.jobs) + _PLACES
        while self._to_sync and len(this.jobs) < limit:
            backlog = self._backlogs.get(self._to_sync.popleft())
            if backlog is None or backlog.disk.closed:
                continue
            if isinstance(backlog, DurableBacklog):
                this.add(backlog.dues.sync_job(), backlog.dues.synced)
                backlog.advance()
            this.add(backlog.disk.sync_job(), backlog.disk.synced)
        if self._to_sync:
            self._ask()

    async def _tick(self) -> None:
        """What nobody waits for is synced every --sync-timeout, and what was refused is tried again."""
        while True:
            await asyncio.sleep(self._options.sync_timeout)
            self._forget_closed()
            for backlog in self._backlogs.values():
                if isinstance(backlog, SpillingBacklog):
                    backlog.retry()
            if self._stalled and self._broker is not None:
                self._stalled = False
                self._broker.resume()
            self._whole = True
            self._ask()

    def _forget_closed(self) -> None:
        self._backlogs = {name: b for name, b in self._backlogs.items() if not b.disk.closed}

    def _roster(self) -> list[TopicEntry]:
        topics = list(self._broker.topics.values()) if self._broker is not None else []
        return [
            TopicEntry(
                topic.name,
                topic.paused,
                tuple(ChannelEntry(channel.name, channel.paused) for channel in topic.channels.values()),
            )
            for topic in topics
        ]

    # Health.

    def failed(self, fault: Exception) -> None:
        if self.health == HEALTHY:
            self._log.error("storage does not work: %s", fault)
        self.health = str(fault) or repr(fault)
        self._probing = False
        self._stalled = self._whole = True
        self._to_sync.clear()

    def _distrust(self) -> None:
        """What is confirmed from now on must not stand behind bytes that may never have reached the disk."""
        for backlog in self._backlogs.values():
            if isinstance(backlog, DurableBacklog) and not backlog.disk.closed:
                backlog.disk.begin_new_file()

    def _worked(self) -> None:
        if not self._probing:
            return
        if not any(isinstance(b, SpillingBacklog) and b.stuck for b in self._backlogs.values()):
            self._log.info("storage works again")
            self.health = HEALTHY
