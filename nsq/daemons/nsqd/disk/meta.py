"""The meta file of a running queue: a sync replaces it, and the first record of a file changes it in place.

Go's nsqd knows only the files that the meta file names, and overwrites any other. So a file is named before
its first record is confirmed. That takes no fsync, as a kill needs none. A change in place keeps what the
last sync wrote, for a restart of this nsqd: a power cut may leave the change without the records.
"""

from __future__ import annotations

import os
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import Meta, Position
from nsq.daemons.nsqd.disk.syncing import OpenFiles, Replacement, write_at


class _Content:
    """What a sync writes: the meta file, and its read position."""

    def __init__(self, meta: Meta | None, committed: Position) -> None:
        self.meta = meta or Meta(0, *committed.place, *committed.place)
        self.committed = committed

    def naming(self, end: Position) -> bytes:
        """Return the meta file with another end."""
        depth = max(0, end.ordinal - self.committed.ordinal)  # if an earlier meta file had a wrong depth
        if end.place < (self.meta.write_file, self.meta.write_end):  # files were taken out of the queue
            self.meta = Meta(depth, *self.committed.place, *end.place)
        return self.meta.with_end(depth, *end.place).encode()


class MetaFile:
    """Knows what the meta file says, and what a running sync is going to write."""

    def __init__(
        self, path: Path, exists: bool, meta: Meta | None, committed: Position, files: OpenFiles
    ) -> None:
        """``meta`` is None if the file does not exist or is invalid; ``committed`` is its read position."""
        self._path = path
        self._files = files
        self._content = _Content(meta, committed)
        self._named = meta.write_file if meta is not None else -1
        self._next: tuple[Replacement, _Content] | None = None
        self.exists = exists
        #: What a sync wrote, unless it was changed since.
        self.synced_meta = meta

    def name(self, end: Position) -> None:
        """Name the file at the queue's end, which was at ``end`` before the new records. Raises OSError."""
        if end.file == self._named:
            return
        self._named = -1  # if this fails, the next call tries again
        self.synced_meta = None
        if self._next is not None:
            replacement, content = self._next
            replacement.change(content.naming(end))
        descriptor = self._files.open_briefly(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            content = self._content
            if self._next is not None and os.fstat(descriptor).st_ino == self._next[0].inode:
                content = self._next[1]  # the sync has replaced the file
            write_at(descriptor, content.naming(end), 0)
        finally:
            os.close(descriptor)
        self._named = end.file
        self.exists = True

    def replaced_by(self, replacement: Replacement, meta: Meta, committed: Position) -> None:
        """Note that a sync is going to replace the file."""
        self._next = replacement, _Content(meta, committed)

    def synced(self) -> None:
        """Note that the sync has succeeded."""
        if self._next is not None:
            self._content, self._next = self._next[1], None
            self.exists = True
            if self._named <= self._content.meta.write_file:  # else a later file was named meanwhile
                self._named = self._content.meta.write_file
                self.synced_meta = self._content.meta

    def removed(self, committed: Position) -> None:
        """Note that the file was removed, when this was the commit point."""
        self._content = _Content(None, committed)
        self._named, self._next = -1, None
        self.exists, self.synced_meta = False, None
