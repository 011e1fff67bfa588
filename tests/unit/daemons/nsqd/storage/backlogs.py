"""Backlogs on small files, messages for them, and what they complain about."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable
from pathlib import Path

from nsq.daemons.nsqd.core.backlog import Message
from nsq.daemons.nsqd.disk.layout import HEAD_SIZE
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.storage.dues import DueTimes
from nsq.daemons.nsqd.storage.durable import DurableBacklog
from nsq.daemons.nsqd.storage.memory_first import MemoryFirstBacklog
from nsq.daemons.nsqd.storage.queues import OnDisk
from nsq.daemons.nsqd.storage.stopping import persist
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.disk.files import Lines, open_queue

_numbers = itertools.count()


def message(body: bytes, due: float = 0.0) -> Message:
    return Message(b"%016x" % next(_numbers), body, 0, due)


def messages(*bodies: bytes) -> list[Message]:
    return [message(body) for body in bodies]


def bodies(found: Iterable[Message]) -> list[bytes]:
    return [each.body for each in found]


def ids(found: Iterable[Message]) -> list[bytes]:
    return [each.id for each in found]


def open_disk(directory: Path, *, log: Lines | None = None) -> DiskQueue:
    """Four records or so to a file."""
    sizes = {"max_bytes_per_file": 150, "min_record": HEAD_SIZE, "max_record": HEAD_SIZE + 100}
    return open_queue(directory, "t:c", **sizes, log=log)


def close(backlog: OnDisk, taken: list[Message]) -> None:
    """As a stop does it."""
    for error in persist([(backlog, taken)], {}):
        raise error


class Spilling(MemoryFirstBacklog):
    """Records its calls of the storage."""

    def __init__(self, directory: Path, limit: int = 3) -> None:
        self.errors: list[Exception] = []
        self.wrote: list[int] = []
        super().__init__(
            open_disk(directory),
            DueTimes(directory, "t:c", FakeClock()),
            limit,
            failed=lambda error, size: self.errors.append(error),
            wrote=self.wrote.append,
            make_room=lambda error: error.errno == errno.ENOSPC and self.disk.make_room(),
        )

    def close(self, taken: list[Message]) -> None:
        close(self, taken)


class Durable(DurableBacklog):
    """Records its calls of the storage; ``broken`` is the error of the last sync."""

    def __init__(self, directory: Path, limit: int = 3, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.errors: list[Exception] = []
        self.writes = 0
        self.broken: Exception | None = None
        super().__init__(
            open_disk(directory),
            DueTimes(directory, "t:c", self.clock),
            limit,
            failed=lambda error, size: self.errors.append(error),
            written=self._count,
            finished_many=lambda: None,
            sync_error=lambda: self.broken,
            make_room=lambda error: error.errno == errno.ENOSPC and self.make_room(),
        )

    def _count(self) -> None:
        self.writes += 1

    def close(self, taken: list[Message]) -> None:
        close(self, taken)

    def sync(self) -> None:
        """A whole round, as the storage makes it."""
        self.advance()
        job = self.dues.sync_job()
        if job is not None:
            job()
            self.dues.synced(job)
        self.disk.sync()
