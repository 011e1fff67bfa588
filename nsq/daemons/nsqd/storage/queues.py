"""The open queues on disk, by name (``topic`` or ``topic:channel``), and what concerns them all."""

from __future__ import annotations

from collections.abc import Iterator

from nsq.daemons.nsqd.storage.deferred import DeferredOnDisk
from nsq.daemons.nsqd.storage.durable import DurableBacklog
from nsq.daemons.nsqd.storage.memory_first import MemoryFirstBacklog

OnDisk = MemoryFirstBacklog | DurableBacklog


class Queues:
    """Backlogs, and the deferred messages of those of channels."""

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self.backlogs: dict[str, OnDisk] = {}
        self.deferred: dict[str, DeferredOnDisk] = {}

    def __iter__(self) -> Iterator[tuple[str, OnDisk]]:
        """Iterate over the names and backlogs that are not closed."""
        return ((name, one) for name, one in self.backlogs.items() if not one.disk.closed)

    def forget_closed(self) -> None:
        self.backlogs = dict(self)
        self.deferred = {name: each for name, each in self.deferred.items() if name in self.backlogs}

    @property
    def memory_first(self) -> list[MemoryFirstBacklog]:
        return [one for _, one in self if isinstance(one, MemoryFirstBacklog)]

    def begin_new_files(self) -> None:
        """Begin new files after a failed sync: confirmed records must not follow bytes that may be lost."""
        for _, backlog in self:
            if isinstance(backlog, DurableBacklog):
                backlog.begin_new_file()
        for deferred in self.deferred.values():
            deferred.files.begin_new()

    def make_room(self) -> bool:
        """Remove files that hold no unfinished messages. Returns whether there were any.

        A topic of a durable nsqd keeps its files until its channels have fsynced the messages they got.
        """
        there = list(self)
        unsynced = {name.partition(":")[0] for name, one in there if ":" in name and one.disk.unsynced}
        made = False
        for name, backlog in there:
            if not self.durable or name not in unsynced:
                made |= backlog.make_room()
        for deferred in self.deferred.values():
            made |= deferred.files.make_room()
        return made
