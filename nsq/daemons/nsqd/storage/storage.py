"""The storage of a running nsqd: opens its queues, and knits its parts together (see the package)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import Backlog, EphemeralBacklog, Message, StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.core.deferred import Deferred, DeferredInMemory
from nsq.daemons.nsqd.disk.layout import HEAD_SIZE, queue_name
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import OpenFiles, share_of_limit
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.storage.choosing import COMPARED, choose_records
from nsq.daemons.nsqd.storage.committer import Committer, Round
from nsq.daemons.nsqd.storage.deferred import DeferredOnDisk
from nsq.daemons.nsqd.storage.directory import DataDirectory
from nsq.daemons.nsqd.storage.dues import DueTimes
from nsq.daemons.nsqd.storage.durable import DurableBacklog
from nsq.daemons.nsqd.storage.health import DiskHealth
from nsq.daemons.nsqd.storage.ids import ReservedIds
from nsq.daemons.nsqd.storage.memory_first import MemoryFirstBacklog
from nsq.daemons.nsqd.storage.queues import OnDisk, Queues
from nsq.daemons.nsqd.storage.roster import Roster
from nsq.daemons.nsqd.storage.rounds import SyncTimer, ToSync
from nsq.daemons.nsqd.storage.stopping import WriteDown
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.worker_thread import in_thread
from nsq.wire.names import is_ephemeral

#: How long a stop waits for replies that are held until the next sync.
_SETTLE_SECONDS = 2.0

#: The least size of an ephemeral queue: with --mem-queue-size=0 it could not even pass a message on.
_LEAST_EPHEMERAL = 100

#: The deferred messages of a channel that are in memory when many wait: --mem-queue-size within these limits.
_LEAST_IN_MEMORY, _MOST_IN_MEMORY = 100, 10_000


class Storage:
    """Makes the broker's backlogs, and syncs them. Call ``start`` first and ``stop`` last."""

    def __init__(self, options: NsqdOptions, clock: Clock, log: DaemonLog) -> None:
        self.committer: Committer | None = None
        self._options = options
        self._clock = clock
        self._log = log
        self._broker: Broker | None = None
        self._directory = DataDirectory(Path(options.data_path or "."), log)
        self._roster = Roster(self._directory.path, log)
        self._ids = ReservedIds(self._directory.path, clock, log)
        self._queues = Queues(durable=options.durable)
        self._health = DiskHealth(self._directory, self._queues, clock, log)
        self._to_sync = ToSync(self._queues, options.sync_every, self._ask)
        self._timer = SyncTimer(clock, options.sync_timeout, self.try_again)
        self._stalled = False  # whether something failed since the last retry
        self._writing_down: WriteDown | None = None
        self._open_files = OpenFiles(share_of_limit())
        self._found: dict[str, list[str]] = {}  # files of earlier runs, by queue, until it is opened
        self._found_deferred: dict[str, set[int]] = {}
        self._in_topics: dict[str, dict[bytes, int]] = {}  # during the start; see ``_waiting_in_topic``

    # Lifecycle.

    def start(self, broker: Broker) -> None:
        """Lock the directory, and restore the broker's topics and channels."""
        self._directory.lock()
        self._found, self._found_deferred = self._directory.files()
        self.committer = Committer(
            self._prepare,
            self.failed,
            self._round_succeeded,
            begin_new_files=self._queues.begin_new_files,
        )
        self._ids.start(broker.ids)
        self._roster.restore(broker)
        self._in_topics.clear()
        self._broker = broker
        self._timer.start()

    async def settle(self) -> None:
        """Wait a moment for the next sync, so that held replies can be sent."""
        if self.committer is not None:
            with suppress(TimeoutError, StorageFailed):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self.committer.wait_until_synced()

    async def stop(self, left: list[tuple[Backlog, list[Message]]]) -> list[StorageFailed]:
        """Write everything to disk, and return the errors; ``left`` is the result of closing the broker.

        A thread does it: while the disk is slow, the log says what is left.
        """
        queues = [(backlog, taken) for backlog, taken in left if isinstance(backlog, OnDisk)]
        self._writing_down = work = WriteDown(queues, self._queues.deferred, self._clock)
        reporting = asyncio.get_running_loop().create_task(work.report(self._log), name="nsqd-progress")
        try:
            await self._timer.stop()
            if self.committer is not None:
                await self.committer.close()
            lists = [self._roster.job(), *self._ids.last_jobs()] if self._broker is not None else []
            errors = await in_thread(lambda: work.run(lists), "nsqd-write-down")
            self._directory.unlock()
            return errors
        finally:
            reporting.cancel()

    @property
    def progress(self) -> str:
        """What a stop still writes to disk, for the log."""
        return self._writing_down.progress if self._writing_down is not None else "writing to disk comes next"

    # The broker's side.

    def backlog(self, topic: str, channel: str = "") -> Backlog:
        if is_ephemeral(channel or topic):
            return EphemeralBacklog(self._options.mem_queue_size or _LEAST_EPHEMERAL)
        name = queue_name(topic, channel or None)
        try:
            backlog = self._open(name)
        except OSError as error:
            self.failed(error)
            raise StorageFailed(str(error)) from error
        self._queues.backlogs[name] = backlog
        return backlog

    def _open(self, name: str) -> OnDisk:
        limit = self._options.mem_queue_size
        disk = DiskQueue(
            self._directory.path,
            name,
            max_bytes_per_file=self._options.max_bytes_per_file,
            min_record=HEAD_SIZE,
            max_record=self._options.max_msg_size + HEAD_SIZE,
            log=self._log,
            files=self._found.pop(name, ()),
            open_files=self._open_files,
        )
        dues = DueTimes(self._directory.path, name, self._clock, self._open_files, self._log)
        if not self._options.durable:
            return MemoryFirstBacklog(
                disk, dues, limit, failed=self.failed, wrote=self._wrote, make_room=self._health.make_room
            )
        backlog = DurableBacklog(
            disk,
            dues,
            limit,
            failed=self.failed,
            written=functools.partial(self._wrote_durably, name),
            finished_many=functools.partial(self._to_sync.finished_many, name),
            sync_error=self._sync_error,
            make_room=self._health.make_room,
        )
        if ":" not in name and disk.unsynced:  # ``deferred`` does it for a channel
            backlog.skip_records(choose_records(disk.unread_records(COMPARED), [], disk.sizes, {}).obsolete)
        return backlog

    def deferred(self, topic: str, channel: str) -> Deferred:
        name = queue_name(topic, channel)
        backlog = self._queues.backlogs.get(name)
        if backlog is None or is_ephemeral(channel):
            return DeferredInMemory()
        made = self._queues.deferred[name] = DeferredOnDisk(
            self._directory.path,
            backlog.disk,
            self._clock,
            numbers=self._found_deferred.pop(name, ()),
            durable=self._options.durable,
            memory_limit=min(_MOST_IN_MEMORY, max(_LEAST_IN_MEMORY, self._options.mem_queue_size)),
            log=self._log,
            failed=self.failed,
            written=functools.partial(self._wrote_durably, name),
            sync_error=self._sync_error,
            make_room=self._health.make_room,
            waiting_in_topic=functools.partial(self._waiting_in_topic, topic),
        )
        if isinstance(backlog, DurableBacklog):
            backlog.skip_records(made.obsolete)
        return made

    def _waiting_in_topic(self, topic: str) -> Mapping[bytes, int]:
        """Return the ids of messages that the topic had not handed to all channels when nsqd was killed, and
        how whole their records are.
        """
        if topic not in self._in_topics:
            backlog = self._queues.backlogs.get(topic)
            found = backlog.disk.unread_records(COMPARED) if backlog is not None else []
            found.sort(key=lambda record: record.wholeness)  # the greatest is last, and stays
            self._in_topics[topic] = {record.id: record.wholeness for record in found}
        return self._in_topics[topic]

    def _wrote_durably(self, name: str) -> None:
        self._health.write_succeeded()
        self._to_sync.wrote_durably(name)

    def _sync_error(self) -> Exception | None:
        return self.committer.error if self.committer is not None else None

    def _wrote(self, messages: int) -> None:
        self._health.write_succeeded()
        self._to_sync.wrote(messages)

    def _ask(self) -> None:
        if self.committer is not None:
            self.committer.ask()

    def changed(self) -> None:
        self._roster.changed()
        self._ask()

    @property
    def publish_committer(self) -> Committer | None:
        """The committer whose next sync a publisher's OK waits for; None without --durable."""
        return self.committer if self._options.durable else None

    # Rounds of syncs, and failures.

    def _prepare(self) -> Round:
        this = Round()
        if self._health.test(this):
            self._roster.changed()
        if self._broker is not None:
            this.add(self._roster.job_if_changed())
            self._ids.reserve(this)
        self._to_sync.add_to(this)
        return this

    def _round_succeeded(self) -> None:
        if not self._health.round_succeeded():
            self._timer.soon()

    @property
    def health(self) -> str:
        """ "OK", or the reason why messages are refused now."""
        return str(self._health)

    def failed(self, error: Exception, refused: int = 0) -> None:
        """Note a failure; ``refused`` is the size of the write, if a write has failed."""
        self._health.failed(error, refused)
        self._stalled = True
        self._to_sync.all_queues_again()
        self._timer.soon()

    def try_again(self) -> None:
        """Sync all queues, and write again what the disk has refused."""
        if self._writing_down is not None:
            return  # another thread writes the backlogs
        self._queues.forget_closed()
        for backlog in self._queues.memory_first:
            backlog.retry()
        if self._stalled and self._broker is not None:
            self._stalled = False
            self._broker.resume()
        self._to_sync.all_queues()
