"""The data directory of a running nsqd: its backlogs, what exists, when that is synced, and its health."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqd.core.backlog import Backlog, EphemeralBacklog
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.disk import record
from nsq.daemons.nsqd.disk.directory import DataDirectory
from nsq.daemons.nsqd.disk.layout import queue_name
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.roster import ChannelEntry, TopicEntry
from nsq.daemons.nsqd.options import Options
from nsq.daemons.nsqd.storage.committer import Committer, Round
from nsq.daemons.nsqd.storage.dues import DueBook
from nsq.daemons.nsqd.storage.durable import DurableBacklog
from nsq.daemons.nsqd.storage.spilling import SpillingBacklog
from nsq.wire.names import is_ephemeral

HEALTHY = "OK"

#: For answers that wait for the disk when nsqd stops.
_SETTLE_SECONDS = 2.0

OnDisk = SpillingBacklog | DurableBacklog


class Storage:
    """Where the broker gets its backlogs. ``start`` and ``stop`` bracket everything else."""

    def __init__(self, options: Options, log: DaemonLog) -> None:
        self.health = HEALTHY
        self.committer: Committer | None = None
        self._options = options
        self._log = log
        self._directory = DataDirectory(Path(options.data_path or "."), log)
        self._backlogs: dict[str, OnDisk] = {}
        self._broker: Broker | None = None
        self._roster_changed = False
        self._unsynced = 0  # messages
        self._whole = True  # sync everything in the next round
        self._ticking: asyncio.Task[None] | None = None

    # Lifecycle.

    def start(self, broker: Broker) -> None:
        """Make the directory ours, and the broker what it was when nsqd stopped."""
        self._directory.lock()
        self.committer = Committer(self._prepare, self.failed, self._worked)
        for topic in self._directory.read_roster():
            self._restore(broker, topic)
        self._broker = broker
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="nsqd-sync-timer")

    def _restore(self, broker: Broker, entry: TopicEntry) -> None:
        topic = broker.topic(entry.name)
        topic.pause(entry.paused)
        for name, paused in entry.channels:
            topic.channel(name).pause(paused)

    async def settle(self) -> None:
        """Let those who wait for the disk have their answers, as far as it gives them soon."""
        if self.committer is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self.committer.lasting()

    async def stop(self) -> None:
        """Everything is written down; the broker has been closed, and with it all backlogs."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self.committer is not None:
            await self.committer.close()
        if self._broker is not None:
            try:
                self._directory.write_roster(self._roster(), COMPATIBLE_VERSION)
            except OSError as fault:
                self._log.error("cannot write the list of topics: %s", fault)
        self._directory.unlock()

    # What the broker asks for.

    def backlog(self, topic: str, channel: str = "") -> Backlog:
        if is_ephemeral(channel or topic):
            return EphemeralBacklog(self._options.mem_queue_size)
        name = queue_name(topic, channel or None)
        disk = DiskQueue(
            self._directory.path,
            name,
            max_bytes_per_file=self._options.max_bytes_per_file,
            min_record=record.OVERHEAD,
            max_record=self._options.max_msg_size + record.OVERHEAD,
            log=self._log,
        )
        backlog = self._make(disk, name)
        self._backlogs[name] = backlog
        return backlog

    def _make(self, disk: DiskQueue, name: str) -> OnDisk:
        limit = self._options.mem_queue_size
        if not self._options.durable:
            return SpillingBacklog(disk, limit, self.failed, self._wrote)
        return DurableBacklog(disk, DueBook(self._directory.path, name), limit, self.failed, self._ask)

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
        """Channels first: a topic forgets what it has given to channels only when they have it on disk."""
        this = Round()
        # Publishers wait for their records alone; a restart may repeat what was finished since.
        whole, self._whole = self._whole, not self._options.durable
        if self._roster_changed and self._broker is not None:
            self._roster_changed = False
            roster = self._roster()
            this.jobs.append(lambda: self._directory.write_roster(roster, COMPATIBLE_VERSION))
        for name in sorted(self._backlogs, key=lambda name: ":" not in name):
            self._add_to(this, self._backlogs[name], whole)
        return this

    def _add_to(self, this: Round, backlog: OnDisk, whole: bool) -> None:
        disk = backlog.disk
        if disk.closed:
            return
        if isinstance(backlog, DurableBacklog):
            this.jobs.append(backlog.dues.sync)
            if not whole:
                _add_flush(this, disk)
                return
            backlog.advance()
        job = disk.sync_job()
        if job is not None:
            this.jobs.append(job)
            this.after.append(lambda: disk.synced(job))

    async def _tick(self) -> None:
        """What nobody waits for is synced every --sync-timeout, and what was refused is tried again."""
        while True:
            await asyncio.sleep(self._options.sync_timeout)
            self._forget_closed()
            for backlog in self._backlogs.values():
                if isinstance(backlog, SpillingBacklog):
                    backlog.retry()
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

    def failed(self, fault: OSError) -> None:
        if self.health == HEALTHY:
            self._log.error("storage does not work: %s", fault)
        self.health = str(fault)

    def _worked(self) -> None:
        stuck = any(isinstance(b, SpillingBacklog) and b.stuck for b in self._backlogs.values())
        if self.health != HEALTHY and not stuck:
            self._log.info("storage works again")
            self.health = HEALTHY


def _add_flush(this: Round, disk: DiskQueue) -> None:
    job = disk.flush_job()
    if job is not None:
        this.jobs.append(job)
        this.after.append(lambda: disk.flushed(job))
