"""When deferred messages are due, kept beside a disk queue: the records of Go's format have no place for it.

Go's nsqd does not know the file and ignores it; it would deliver those messages at once, as it does with its
own.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.core.message import Message
from nsq.daemons.nsqd.disk.doubt import Check, Doubt
from nsq.daemons.nsqd.disk.open_files import OpenFiles
from nsq.daemons.nsqd.disk.syncing import replace_content, sync_file

_ENTRY = struct.Struct(">16sq")
#: In the place of a moment: the message is finished, though its record is still to be read.
_STRUCK = 0
#: So many entries nobody needs may be in the file, besides as many as are needed.
_SPARE = 4096


class DueSync:
    """Makes the entries so far last, in any thread; tell the book by ``synced``."""

    def __init__(self, path: Path, written: int, *, named: bool, check: Check) -> None:
        self.check = check
        self.written = written
        self._path = path
        self._named = named

    def __call__(self) -> None:
        try:
            sync_file(self._path)
        except FileNotFoundError:
            return  # deleted meanwhile
        self.check()
        if not self._named:
            sync_file(self._path.parent)


class DueBook:
    """A file of ids and moments, written at its end only. Of a message that is gone or due an entry means
    nothing.

    Methods that write raise OSError; the book is then as it was.
    """

    def __init__(
        self, directory: Path, queue_name: str, clock: Clock, open_files: OpenFiles | None = None
    ) -> None:
        self._files = OpenFiles(1) if open_files is None else open_files
        self._doubt = Doubt()
        self._path = directory / f"{queue_name}.dues.dat"
        self._clock = clock
        self._dues, self._struck, self._size = _load(self._path, clock.time_ns())
        self._file = -1  # opened when there is something to write
        self._written = self._synced = 0  # entries in this life
        self._named = False  # whether the file's name is known to be on disk

    def get(self, message_id: bytes) -> float:
        """The moment on the monotonic clock; 0 if there is none."""
        due = self._dues.get(message_id)
        return 0.0 if due is None else self._clock.now() + (due - self._clock.time_ns()) / 1e9

    def add(self, messages: Iterable[Message]) -> None:
        """Those that are due later."""
        now, now_ns = self._clock.now(), self._clock.time_ns()
        later = {each.id: now_ns + round((each.due - now) * 1e9) for each in messages if each.due > now}
        if not later:
            return
        self._tidy()
        self._write(b"".join([_ENTRY.pack(*entry) for entry in later.items()]))
        self._written += len(later)
        self._dues |= later

    def remove(self, message_id: bytes) -> None:
        self._dues.pop(message_id, None)

    def is_struck(self, message_id: bytes) -> bool:
        """Whether the record is of a message that was finished before nsqd stopped; true once."""
        if message_id not in self._struck:
            return False
        self._struck.remove(message_id)
        return True

    def nothing_unread(self) -> None:
        """No record is left that could be struck."""
        self._struck.clear()

    def _write(self, entries: bytes) -> None:
        if self._file < 0:
            self._file = self._files.open(self._path, os.O_WRONLY | os.O_CREAT, self._give_up)
        self._files.wrote(self._file)
        # At a known place: whatever a failed write has left there is written over.
        end = self._size
        while entries:
            written = os.pwrite(self._file, entries, end)
            if not written:
                raise OSError(errno.EIO, "nothing was written", str(self._path))
            end += written
            entries = entries[written:]
        self._size = end

    def _tidy(self) -> None:
        if self._size > _ENTRY.size * (2 * (len(self._dues) + len(self._struck)) + _SPARE):
            self._rewrite()

    def _rewrite(self) -> None:
        """Only what is needed; this lasts."""
        entries = [*self._dues.items(), *((each, _STRUCK) for each in self._struck)]
        content = b"".join([_ENTRY.pack(*entry) for entry in entries])
        self._close_file()
        replace_content(self._path, content)
        self._size = len(content)

    def sync_job(self) -> DueSync | None:
        if self._synced == self._written:
            return None
        return DueSync(self._path, self._written, named=self._named, check=self._doubt.check())

    def synced(self, job: DueSync) -> None:
        """``job`` was called and did not raise. Raises OSError if entries were lost all the same."""
        job.check()
        self._synced = max(self._synced, job.written)
        if self._file >= 0 and self._synced == self._written:
            self._files.synced(self._file)
        self._named = True

    def clear(self) -> None:
        self._dues.clear()
        self._struck.clear()

    def close(self, struck: Iterable[bytes]) -> None:
        """Leave what a restart needs; ``struck`` are finished, though their records were not read."""
        self._struck.update(struck)
        if self._dues or self._struck:
            self._rewrite()
        else:
            self.delete()

    def delete(self) -> None:
        self._close_file()
        self._path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            self._files.close(file)

    def _give_up(self) -> None:
        """Too many files are open. After this close a failed write would go unnoticed, hence the sync."""
        try:
            if self._files.is_dirty(self._file):
                os.fsync(self._file)
        except OSError as error:
            self._doubt.arose(error)
        finally:
            self._close_file()


def _load(path: Path, now: int) -> tuple[dict[bytes, int], set[bytes], int]:
    """What is still to come, what is struck, and how far the file goes: a torn entry at its end is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}, set(), 0
    size = len(content) // _ENTRY.size * _ENTRY.size
    entries = dict(_ENTRY.iter_unpack(content[:size]))
    dues = {message_id: due for message_id, due in entries.items() if due > now}
    return dues, {message_id for message_id, due in entries.items() if due == _STRUCK}, size
