"""The storage of a running nsqd: its backlogs, the list of topics and channels, syncs, and health."""

from __future__ import annotations

import asyncio
import errno
import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd.core.backlog import Backlog, EphemeralBacklog, Message, StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.core.deferred import Deferred, DeferredInMemory
from nsq.daemons.nsqd.disk.layout import (
    HEAD_SIZE,
    ChannelEntry,
    TopicEntry,
    queue_name,
)
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import (
    OpenFiles,
    SyncJob,
    run_together,
    share_of_limit,
)
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.storage.committer import Committer, Round
from nsq.daemons.nsqd.storage.deferred import COMPARED, DeferredOnDisk
from nsq.daemons.nsqd.storage.deferred_file import choose_records
from nsq.daemons.nsqd.storage.directory import LAST_TICK, DataDirectory
from nsq.daemons.nsqd.storage.dues import DueTimes
from nsq.daemons.nsqd.storage.durable import DurableBacklog
from nsq.daemons.nsqd.storage.memory_first import MemoryFirstBacklog
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.worker_thread import in_thread
from nsq.wire.names import is_ephemeral

HEALTHY = "OK"

#: How long a stop waits for replies that are held until the next sync.
_SETTLE_SECONDS = 2.0

#: The most queues whose commit points one round of syncs writes.
_POSITIONS_PER_ROUND = 50

#: The least size of an ephemeral queue: with --mem-queue-size=0 it could not even pass a message on.
_LEAST_EPHEMERAL = 100

#: The deferred messages of a channel that are in memory when many wait: --mem-queue-size within these limits.
_LEAST_IN_MEMORY, _MOST_IN_MEMORY = 100, 10_000

#: Queues that a stop writes and syncs together, which bounds the number of open files.
_QUEUES_AT_THE_END = 200

#: How often a long stop logs its progress.
_PROGRESS_SECONDS = 1.0

#: How soon failed storage is tried again.
_RETRY_SECONDS = 1.0

#: The shortest time between two searches for removable files, which take long with thousands of queues.
_ROOM_SECONDS = 0.1

#: The errors of a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT)

#: How far ahead ids are reserved: ten minutes, in ticks of 2²⁰ ns.
_IDS_AHEAD = 600 * 10**9 >> 20

OnDisk = MemoryFirstBacklog | DurableBacklog


class Storage:
    """Makes the broker's backlogs, and syncs them. Call ``start`` first and ``stop`` last."""

    def __init__(self, options: NsqdOptions, clock: Clock, log: DaemonLog) -> None:
        self.committer: Committer | None = None
        self._options = options
        self._clock = clock
        self._log = log
        self._directory = DataDirectory(Path(options.data_path or "."), log)
        self._open_files = OpenFiles(share_of_limit())
        self._backlogs: dict[str, OnDisk] = {}
        self._deferred: dict[str, DeferredOnDisk] = {}
        self._found: dict[str, list[str]] = {}  # files of earlier runs, by queue, until it is opened
        self._found_deferred: dict[str, set[int]] = {}
        self._in_topics: dict[str, dict[bytes, int]] = {}  # during the start; see ``_waiting_in_topic``
        self._broker: Broker | None = None
        self._roster_changed = False
        self._reserved = -1  # the last tick whose ids may be used, according to the disk
        self._unsynced = 0  # messages written since the last sync that they requested
        self._written: set[str] = set()  # names of durable queues written since the last round
        self._sync_all = True  # whether the next round must sync all queues
        self._to_sync: deque[str] = deque()  # names of the queues that are left of that
        self._error: Exception | None = None  # the last failure, until storage works again
        self._refused = 0  # the size of a write that the disk refused, if that is the failure
        self._probing: Round | None = None  # the current round, if it tests whether the disk works again
        self._trying_again = False  # whether a retry is scheduled
        self._made_room_at = float("-inf")
        self._stalled = False  # whether something failed since the last retry
        self._ticking: asyncio.Task[None] | None = None
        self._stopping_since: float | None = None  # when a stop began to write everything down
        self._unwritten: list[tuple[OnDisk, list[Message]]] = []  # what a stop has not written yet

    # Lifecycle.

    def start(self, broker: Broker) -> None:
        """Lock the directory, and restore the broker's topics and channels."""
        self._directory.lock()
        self._found, self._found_deferred = self._directory.files()
        after = self.failed, self._round_succeeded
        self.committer = Committer(self._prepare, *after, begin_new_files=self._begin_new_files)
        self._start_ids(broker)
        for topic in self._directory.read_roster():
            self._restore(broker, topic)
        self._in_topics.clear()
        self._broker = broker
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="nsqd-sync-timer")

    def _restore(self, broker: Broker, entry: TopicEntry) -> None:
        topic = broker.topic(entry.name)
        topic.pause(True)  # waiting messages are for all of its channels, which come next
        for name, paused in entry.channels:
            topic.channel(name).pause(paused)
        topic.pause(entry.paused)

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
        self._stopping_since = self._clock.now()
        queues = [(backlog, taken) for backlog, taken in left if isinstance(backlog, OnDisk)]
        self._unwritten = queues
        reporting = asyncio.get_running_loop().create_task(self._report_progress(), name="nsqd-progress")
        try:
            return await self._write_down(queues)
        finally:
            reporting.cancel()

    async def _write_down(self, queues: list[tuple[OnDisk, list[Message]]]) -> list[StorageFailed]:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self.committer is not None:
            await self.committer.close()
        lists: list[SyncJob] = []
        if self._broker is not None:
            lists.append(self._directory.roster_job(self._roster(), COMPATIBLE_VERSION))
            if self._broker.ids.tick >= 0:
                lists.append(self._directory.last_tick_job(self._broker.ids.tick))
        errors = await in_thread(lambda: self._persist(queues, lists), "nsqd-write-down")
        self._directory.unlock()
        return errors

    def _persist(
        self, queues: list[tuple[OnDisk, list[Message]]], lists: list[SyncJob]
    ) -> list[StorageFailed]:
        """Write and sync the queues in groups: faster than one by one, with few files open."""
        errors: list[StorageFailed] = []
        for start in range(0, len(queues), _QUEUES_AT_THE_END):
            errors += persist(queues[start : start + _QUEUES_AT_THE_END], self._deferred)
            self._unwritten = queues[start + _QUEUES_AT_THE_END :]
        try:
            run_together(lists)
        except OSError as error:
            errors.append(StorageFailed(f"cannot write the list of topics: {error}"))
        return errors

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            self._log.info("nsqd: %s", self.progress)

    @property
    def progress(self) -> str:
        """What a stop still writes to disk, for the log."""
        if self._stopping_since is None:
            return "writing to disk comes next"
        left = self._unwritten
        # A queue that is being written may have more on disk by now than it has counted.
        in_memory = sum(max(0, len(taken) + len(backlog) - backlog.backend_depth) for backlog, taken in left)
        took = self._clock.now() - self._stopping_since
        queues = f"{len(left)} queue{'s'[: len(left) != 1]} with {in_memory} messages in memory"
        what = queues if left else "the list of topics"
        return f"still writing {what} to disk, for {took:.1f} s"

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
        self._backlogs[name] = backlog
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
                disk, dues, limit, failed=self.failed, wrote=self._wrote, make_room=self._make_room
            )

        def finished_many() -> None:
            self._to_sync.appendleft(name)
            self._ask()

        backlog = DurableBacklog(
            disk,
            dues,
            limit,
            failed=self.failed,
            written=functools.partial(self._wrote_durably, name),
            finished_many=finished_many,
            sync_error=self._sync_error,
            make_room=self._make_room,
        )
        if ":" not in name and disk.unsynced:  # ``deferred`` does it for a channel
            backlog.skip_records(choose_records(disk.unread_records(COMPARED), [], disk.sizes, {}).obsolete)
        return backlog

    def deferred(self, topic: str, channel: str) -> Deferred:
        name = queue_name(topic, channel)
        backlog = self._backlogs.get(name)
        if backlog is None or is_ephemeral(channel):
            return DeferredInMemory()
        made = self._deferred[name] = DeferredOnDisk(
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
            make_room=self._make_room,
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
            backlog = self._backlogs.get(topic)
            found = backlog.disk.unread_records(COMPARED) if backlog is not None else []
            found.sort(key=lambda record: record.wholeness)  # the greatest is last, and stays
            self._in_topics[topic] = {record.id: record.wholeness for record in found}
        return self._in_topics[topic]

    def _wrote_durably(self, name: str) -> None:
        self._written.add(name)
        self._write_succeeded()
        self._ask()

    def _sync_error(self) -> Exception | None:
        return self.committer.error if self.committer is not None else None

    def _wrote(self, messages: int) -> None:
        self._write_succeeded()
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
    def publish_committer(self) -> Committer | None:
        """The committer whose next sync a publisher's OK waits for; None without --durable."""
        return self.committer if self._options.durable else None

    # Syncing.

    def _prepare(self) -> Round:
        """Collect all writes since the last round and, every --sync-timeout, all queues' commit points.

        Channels come before topics: a topic's commit point may pass only messages that its channels have
        fsynced.
        """
        this = Round()
        self._probing = this if self._error is not None else None
        if self._refused:
            this.probe = functools.partial(self._directory.probe, self._refused)
        if self._broker is not None and (self._roster_changed or self._probing):
            self._roster_changed = False
            this.add(self._directory.roster_job(self._roster(), COMPATIBLE_VERSION))
        self._reserve_ids(this)
        written, self._written = self._written, set()
        for name in written:
            self._add_records(this, name)
        if self._sync_all and not self._to_sync:
            self._sync_all = not self._options.durable
            self._to_sync.extend(sorted(self._backlogs, key=lambda name: ":" not in name))
        self._add_positions(this)
        return this

    def _start_ids(self, broker: Broker) -> None:
        """Make only ids that no earlier run can have used, and reserve them before the first one is made.

        A run that is killed may leave records with any of its reserved ids. A durable queue takes a second
        record with the same id for a copy.
        """
        last = self._directory.read_last_tick()
        broker.ids.start_after(last)
        self._reserved = max(last, self._clock.time_ns() >> 20) + _IDS_AHEAD
        try:
            self._directory.last_tick_job(self._reserved)()
        except OSError as error:
            self._log.warning("%s cannot be written (%s): new ids may repeat old ones", LAST_TICK, error)
            self._reserved = last

    def _reserve_ids(self, this: Round) -> None:
        """Reserve the next ids on disk. A restart begins after them: ids do not repeat if the clock has been
        set back meanwhile.
        """
        used = self._broker.ids.tick if self._broker is not None else self._reserved
        if used + _IDS_AHEAD // 2 <= self._reserved:
            return

        def reserved(_: SyncJob) -> None:
            self._reserved = used + _IDS_AHEAD

        this.add(self._directory.last_tick_job(used + _IDS_AHEAD), reserved)

    def _add_records(self, this: Round, name: str) -> None:
        """Add a queue's records, whose sync publishers wait for."""
        backlog = self._backlogs.get(name)
        if isinstance(backlog, DurableBacklog) and not backlog.disk.closed:
            self._add_due_times(this, name, backlog)
            this.add(backlog.disk.flush_job(), backlog.disk.flushed)

    def _add_due_times(self, this: Round, name: str, backlog: DurableBacklog) -> None:
        this.add(backlog.dues.sync_job(), backlog.dues.synced)
        if (deferred := self._deferred.get(name)) is not None:
            this.add(deferred.sync_job(), deferred.synced)

    def _add_positions(self, this: Round) -> None:
        """Add records and commit points of some queues, so that publishers do not wait for thousands."""
        limit = len(this.jobs) + _POSITIONS_PER_ROUND
        while self._to_sync and len(this.jobs) < limit:
            name = self._to_sync.popleft()
            backlog = self._backlogs.get(name)
            if backlog is None or backlog.disk.closed:
                continue
            if isinstance(backlog, DurableBacklog):
                self._add_due_times(this, name, backlog)
                backlog.advance()
            this.add(backlog.disk.sync_job(), backlog.disk.synced)
        if self._to_sync:
            self._ask()

    async def _tick(self) -> None:
        """Every --sync-timeout, sync all queues and write again what the disk has refused."""
        while True:
            await asyncio.sleep(self._options.sync_timeout)
            self._forget_closed()
            self._try_again()

    def _try_again(self) -> None:
        self._trying_again = False
        if self._stopping_since is not None:
            return  # another thread writes the backlogs
        for backlog in self._backlogs.values():
            if isinstance(backlog, MemoryFirstBacklog) and not backlog.disk.closed:
                backlog.retry()
        if self._stalled and self._broker is not None:
            self._stalled = False
            self._broker.resume()
        self._sync_all = True
        self._ask()

    def _try_again_soon(self) -> None:
        """Schedule a retry while storage does not work, because --sync-timeout may be long."""
        if self._ticking is not None and not self._ticking.done() and not self._trying_again:
            self._trying_again = True
            self._clock.call_at(self._clock.now() + _RETRY_SECONDS, self._try_again)

    def _forget_closed(self) -> None:
        self._backlogs = {name: b for name, b in self._backlogs.items() if not b.disk.closed}
        self._deferred = {name: each for name, each in self._deferred.items() if name in self._backlogs}

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

    @property
    def health(self) -> str:
        """ "OK", or the reason why messages are refused now."""
        error = self._error
        if error is None or (_is_full(error) and not self._refuses):
            return HEALTHY
        return str(error) or repr(error)

    @property
    def _refuses(self) -> bool:
        """Whether messages are refused while the disk is full: without --durable, memory may have room."""
        return self._options.durable or any(
            isinstance(backlog, MemoryFirstBacklog) and not backlog.room
            for backlog in self._backlogs.values()
        )

    def failed(self, error: Exception, refused: int = 0) -> None:
        """Record a failure; ``refused`` is the size of the write, if a write has failed."""
        if self._error is None:
            self._log.error("storage does not work: %s", error)
        if _is_full(error):
            self._make_room(error)
        self._error, self._refused = error, refused or self._refused
        self._probing = None
        self._stalled = self._sync_all = True
        self._to_sync.clear()
        self._try_again_soon()

    def _make_room(self, error: Exception) -> bool:
        """Remove files that hold no unfinished messages from a full disk. Returns whether there were any.

        A topic of a durable nsqd keeps its files until its channels have fsynced the messages they got.
        """
        now = self._clock.now()
        if not _is_full(error) or now < self._made_room_at + _ROOM_SECONDS:
            return False
        self._made_room_at = now
        there = {name: backlog for name, backlog in self._backlogs.items() if not backlog.disk.closed}
        unsynced = {
            name.partition(":")[0] for name, one in there.items() if ":" in name and one.disk.unsynced
        }
        made = False
        for name, backlog in there.items():
            if not self._options.durable or name not in unsynced:
                made |= backlog.make_room()
        for deferred in self._deferred.values():
            made |= deferred.make_room()
        return made

    def _write_succeeded(self) -> None:
        """Note a successful write."""
        if self._refused:
            self._mark_healthy()

    def _begin_new_files(self) -> None:
        """Begin new files after a failed sync: confirmed records must not follow bytes that may be lost."""
        for backlog in self._backlogs.values():
            if isinstance(backlog, DurableBacklog) and not backlog.disk.closed:
                backlog.begin_new_file()
        for deferred in self._deferred.values():
            deferred.begin_new_files()

    def _round_succeeded(self) -> None:
        """Note a successful round."""
        if self._probing is None:
            return
        if self._probing.probe_error is None and not any(
            isinstance(b, MemoryFirstBacklog) and b.stuck for b in self._backlogs.values()
        ):
            self._mark_healthy()
        else:
            self._try_again_soon()

    def _mark_healthy(self) -> None:
        self._log.info("storage works again")
        self._error, self._refused, self._probing = None, 0, None


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


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
            stores[backlog].join(synced=backlog not in errors)
        except StorageFailed as error:
            errors.setdefault(backlog, error)
    _sync(backlogs, lambda backlog: backlog.sync_jobs(), errors, make_room=True)
    for backlog in backlogs:
        if backlog not in errors and backlog in stores:
            stores[backlog].remove_rewritten()
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
