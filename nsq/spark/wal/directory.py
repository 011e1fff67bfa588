"""A write-ahead log in a directory: local, or NFS for a cluster (see ``ownership`` for what that takes).
Beside what ``store`` tells there are

    <wal>/<receiver>/lock                        locked by the receiver, all its life
    <wal>/<receiver>/000001-1250-250000.arrow    sealed
    <wal>/<receiver>/000002.open                 being written

Bodies may be confidential: a directory made here is for its user alone. One that is there already is taken as
permission: users who may enter, read or write it may do so with everything inside (less the umask). To share
a log with the users of a cluster, make its directory first, with the group and mode that are wanted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from nsq.errors import SegmentLost, WalError
from nsq.spark.wal import names, ownership, readers, records
from nsq.spark.wal.names import ReceiverFolder, Segment, SegmentFile
from nsq.spark.wal.ownership import FileLock
from nsq.spark.wal.readers import check_reader
from nsq.spark.wal.store import BaseWal

_logger = logging.getLogger("nsq.spark.wal")

_PRIVATE = 0o700
_HIDDEN = "."
_BORN = ".new-"  # a receiver's folder until it is locked
_ATTEMPTS = 5


@contextlib.contextmanager
def named(path: Path, what: str) -> Iterator[None]:
    """What the system refuses becomes a WalError that says where."""
    try:
        yield
    except OSError as error:
        raise WalError(f"{path} {what}: {error.strerror or error}") from error


# The system calls that can fail, one method each; tests put a failing disk in its place


class Disk:
    """``fsync=False`` leaves it to the operating system when bytes reach the disk."""

    def __init__(self, fsync: bool = True) -> None:
        self._fsync = fsync

    def create(self, path: Path, mode: int) -> int:
        """A descriptor to write to; the file must not be there. Programs this one starts do not get it."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        """All of it, at that position; where it ends."""
        rest = data.cast("B")
        while rest:
            written = os.pwrite(descriptor, rest, position)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest, position = rest[written:], position + written
        return position

    def sync(self, descriptor: int) -> None:
        if self._fsync:
            os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        """What it reports is late news about bytes that ``sync`` has answered for."""
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """One that is gone already is fine."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_folder(self, path: Path) -> None:
        """Makes creations and renames in it last."""
        if not self._fsync:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Directory:
    """The small files of a log, by their names below its ``root``."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk

    def path(self, name: str) -> Path:
        return self._root / name

    def mode(self) -> int:
        """The rights that folders in it get; files get the same, but for executing."""
        return self._root.stat().st_mode & 0o777

    def make_folder(self, name: str) -> None:
        path = self._root / name
        with named(path, "cannot be made"):
            if not name:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(mode=_PRIVATE, exist_ok=True)
            elif not path.is_dir():
                path.mkdir(mode=self.mode(), exist_ok=True)
                self._disk.sync_folder(self._root)

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder."""
        with named(self._root / folder, "cannot be listed"), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self._root / folder))
        return []

    def get(self, name: str) -> bytes | None:
        """None when it is not there."""
        with named(self._root / name, "cannot be read"), contextlib.suppress(FileNotFoundError):
            return (self._root / name).read_bytes()
        return None

    def put(self, name: str, data: bytes, *, once: bool = False) -> None:
        """In one step, and durable on return. ``once``: of several processes one makes it, and all of them
        can read which.
        """
        path = self._root / name
        with named(path, "cannot be written"):
            draft = path.with_name(f"{_HIDDEN}{path.name}-{uuid.uuid4().hex}")
            descriptor = self._disk.create(draft, self.mode() & 0o666)
            try:
                self._disk.write(descriptor, memoryview(data), 0)
                self._disk.sync(descriptor)
                if once:
                    with contextlib.suppress(FileExistsError):
                        os.link(draft, path)
                else:
                    self._disk.rename(draft, path)
            finally:
                self._disk.close(descriptor)
                self._disk.remove(draft)
            self._disk.sync_folder(path.parent)

    def delete(self, name: str) -> None:
        """One that is gone already is fine."""
        with named(self._root / name, "cannot be deleted"):
            self._disk.remove(self._root / name)


# The log


class DirectoryWal(BaseWal):
    """Any number of processes may use one at a time; only one of them may read under one name.

    ``fsync=False`` leaves it to the operating system when bytes reach the disk."""

    def __init__(
        self,
        location: str | Path,
        *,
        fsync: bool = True,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = Path(location)
        self._disk = disk or Disk(fsync)
        self._place: Directory = Directory(self._root, self._disk)
        super().__init__(self._place, str(location))
        self._clock = clock
        self._nap = nap

    def own(self, reader: str, description: str, patience: float) -> FileLock:
        """Become the one who reads under this name. Raises WalOwned, with the other's description, when that
        one does not leave within ``patience`` seconds (half a minute when it has said that it is leaving).
        Where one cannot tell at once whether the other is alive, with leases, it takes as long as that takes.
        """
        path = self._root / readers.lock_of(check_reader(reader))
        self._place.make_folder(readers.FOLDER)
        with named(path, "cannot be locked"):
            mode = self._place.mode() & 0o666
            return ownership.claim(path, description, patience, mode, self._clock, self._nap)

    def owner(self, reader: str) -> ownership.Owner | None:
        """Who reads under this name now."""
        with named(self._root, "cannot be read"):
            return ownership.holder(self._root / readers.lock_of(reader))

    def log(self, receiver: str) -> DirectoryLog:
        """Begin a receiver's log; its name must be new: ``names.new_receiver``."""
        self._check_new(receiver)
        folder = self._root / receiver
        with named(folder, "cannot be made"):
            return DirectoryLog(folder, self._enter(folder), self._disk, self._place.mode() & 0o666)

    def segments(self) -> list[Segment]:
        """All that are sealed, in order."""
        found = []
        for receiver in self._receivers():
            for name in self._place.names(receiver):
                segment = names.read_sealed(receiver, name)
                if segment is not None:
                    found.append(segment)
        return sorted(found)

    def files(self) -> list[SegmentFile]:
        """The same with the sizes and times of their files."""
        found = []
        for segment in self.segments():
            with contextlib.suppress(FileNotFoundError):  # another reader has deleted it
                there = self.path(segment).stat()
                found.append(SegmentFile(segment, there.st_size, there.st_mtime))
        return found

    def receivers(self) -> list[ReceiverFolder]:
        found = []
        for receiver in self._receivers():
            sealed = size = 0
            for name in self._place.names(receiver):
                if names.read_sealed(receiver, name) is not None:
                    sealed += 1
                elif names.read_open(name) is not None:
                    with contextlib.suppress(FileNotFoundError):
                        size += os.stat(self._root / receiver / name).st_size
            with self._if_dead(receiver) as dead:
                found.append(ReceiverFolder(receiver, not dead, size, sealed))
        return found

    def recover(self) -> list[Segment]:
        """Seal whatever complete batches dead receivers left unsealed; what was sealed by this call."""
        sealed = []
        for receiver in self._receivers():
            with self._if_dead(receiver) as dead:
                for name in self._place.names(receiver) if dead else ():
                    number, path = names.read_open(name), self._root / receiver / name
                    if number is None:
                        continue
                    # A file that is missing was sealed by another process, which was faster.
                    with named(path, "cannot be recovered"), contextlib.suppress(FileNotFoundError):
                        sealed.append(_seal_leftover(path, number, self._disk))
        return sorted(filter(None, sealed))

    def read(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Its batches, as they were appended. Raises SegmentLost, naming the file.

        They lie in mapped memory, which stays valid when the file is deleted.
        """
        path = str(self.path(segment))
        try:
            source = pa.memory_map(path)
        except FileNotFoundError:
            raise SegmentLost(f"{path} is not there") from None
        except (OSError, pa.ArrowException) as error:
            raise SegmentLost(f"{path} cannot be read: {error}") from error
        return records.decode(source, segment.rows, path)

    def discard_empty(self) -> None:
        """Remove the folders of dead receivers that hold nothing any more."""
        for name in self._listing():
            if name.startswith(_BORN):
                self._discard(name)
        for receiver in self._receivers():
            if set(self._place.names(receiver)) <= {names.LOCK}:
                self._discard(receiver)

    def path(self, segment: Segment) -> Path:
        return self._root / names.path_of(segment)

    def _enter(self, folder: Path) -> FileLock:
        """A new folder that is locked before anybody can see it under its name."""
        for _ in range(_ATTEMPTS):
            born = folder.with_name(f"{_BORN}{uuid.uuid4().hex}")
            born.mkdir(mode=self._place.mode())
            lock = None
            try:
                lock = ownership.acquire(born / names.LOCK, self._place.mode() & 0o666)
                if lock is not None:
                    self._disk.rename(born, folder)
                    self._disk.sync_folder(self._root)
                    return lock
            except BaseException as error:
                if lock is not None:
                    lock.release()
                # A missing one was taken for a dead receiver's by discard_empty of another process.
                if not isinstance(error, FileNotFoundError):
                    self._discard(born.name)
                    raise
        raise WalError(f"{folder} cannot be made: its folder was removed {_ATTEMPTS} times while it was made")

    def _listing(self) -> list[str]:
        with named(self._root, "cannot be listed"):
            return sorted(entry.name for entry in os.scandir(self._root) if entry.is_dir())

    def _receivers(self) -> list[str]:
        return [name for name in self._listing() if names.is_receiver(name)]

    @contextlib.contextmanager
    def _if_dead(self, receiver: str) -> Iterator[bool]:
        with (
            named(self._root / receiver, "cannot be examined"),
            ownership.looked_at(self._root / receiver / names.LOCK) as free,
        ):
            yield free

    def _discard(self, name: str) -> None:
        """An empty folder, unless its receiver lives. Names are never used twice: a dead one stays dead."""
        with self._if_dead(name) as dead:
            if dead:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(self._root / name / names.LOCK)
                    os.rmdir(self._root / name)


# What a dead receiver left unsealed becomes a segment. Any number of processes may do this at once: all of
# them find the same valid beginning of the file and give it the same name, and one of them renames it. The
# torn tail stays in the file: its name says how far it is valid


def _seal_leftover(path: Path, number: int, disk: Disk) -> Segment | None:
    with pa.OSFile(str(path), "rb") as source:
        size = source.size()
        rows, bodies = records.complete(source)
    if not rows:
        disk.remove(path)
        _logger.info("%s held no complete batch (%d bytes), and is removed", path, size)
        return None
    segment = Segment(path.parent.name, number, rows, bodies)
    # The last batch may have been written without an fsync; a segment must not change its mind.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(path, path.parent / names.sealed_file(segment))
    disk.sync_folder(path.parent)
    _logger.info("%s: %d rows recovered, from %d bytes", path, rows, size)
    return segment


# One receiver's log: append, make durable, seal, and what to do when the disk refuses. The file that is being
# written is valid up to ``_Open.end``, and everything is written behind that. After a failed fsync the kernel
# may call pages clean that never reached the disk, so nothing is ever written behind a failure: the file is
# *tainted*, and sealed as far as it was durable before; its name says how far. As long as not even that
# succeeds, nothing is appended


@dataclass
class _Open:
    """The file that is being written. ``end``, ``rows`` and ``bytes`` count what is durable."""

    descriptor: int
    path: Path
    end: int = 0
    rows: int = 0
    bytes: int = 0
    tainted: bool = False


class DirectoryLog:
    """Not for two threads at once. ``folder`` is there, empty but for the lock, which this log then owns."""

    def __init__(self, folder: Path, lock: FileLock, disk: Disk, mode: int) -> None:
        self.receiver = folder.name
        self._folder = folder
        self._lock = lock
        self._disk = disk
        self._mode = mode
        self._open: _Open | None = None
        self._next = 1
        self._written = 0  # bytes of the files that are sealed
        self._unsynced = False  # a seal is in the folder, but the folder perhaps not on the disk
        self._sealed: Segment | None = None  # by the last roll or after a failure; no roll has returned it
        self._closed = False

    @property
    def open_rows(self) -> int:
        """Rows that are durable, but in no segment yet."""
        return self._open.rows if self._open else 0

    @property
    def open_bytes(self) -> int:
        """Of bodies."""
        return self._open.bytes if self._open else 0

    @property
    def written(self) -> int:
        """Bytes of all files that this log has written so far, sealed or not."""
        return self._written + (self._open.end if self._open else 0)

    def append(self, batch: pa.RecordBatch) -> None:
        """Durable on return. Raises WalError, and then holds what it held before."""
        if self._closed:
            raise WalError(f"{self._folder}: this log has been closed")
        if batch.num_rows == 0:
            return
        data = records.encode(batch)
        if self._open is None or self._open.tainted:
            self._seal()  # what a failure has left undone
        current = self._open or self._begin()
        start = records.begin(batch.schema) if current.end == 0 else b""
        current.tainted = True
        with named(current.path, "cannot be written"):
            middle = self._disk.write(current.descriptor, memoryview(start), current.end)
            end = self._disk.write(current.descriptor, memoryview(data), middle)
        with named(current.path, "cannot be made durable"):
            self._disk.sync(current.descriptor)
            if start:
                self._disk.sync_folder(self._folder)
        current.tainted = False
        current.end = end
        current.rows += batch.num_rows
        current.bytes += records.body_bytes(batch)

    def roll(self) -> Segment | None:
        """Seal what was appended since the last time; None when that is nothing."""
        self._seal()
        sealed, self._sealed = self._sealed, None
        return sealed

    def close(self) -> Segment | None:
        """Roll, and give up the lock even if that fails: what is durable is then sealed by ``recover``."""
        if self._closed:
            return None
        self._closed = True
        try:
            return self.roll()
        finally:
            if self._open is not None:
                self._disk.close(self._open.descriptor)
                self._open = None
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> _Open:
        path = self._folder / names.open_file(self._next)
        with named(path, "cannot be created"):
            self._open = _Open(self._disk.create(path, self._mode), path)
        return self._open

    def _seal(self) -> None:
        """Give the open file its final name, if it holds anything. Until then nothing more is appended."""
        current = self._open
        if current is not None and current.rows == 0:
            with named(current.path, "cannot be removed"):
                self._disk.remove(current.path)
            self._disk.close(current.descriptor)
            self._open = None
        elif current is not None:
            if current.tainted:
                with contextlib.suppress(OSError):  # tidy, not needed: the name says how far it is valid
                    self._disk.truncate(current.descriptor, current.end)
            current.tainted = True  # a rename that fails may have happened
            segment = Segment(self.receiver, self._next, current.rows, current.bytes)
            with named(current.path, "cannot be sealed"):
                self._disk.rename(current.path, self._folder / names.sealed_file(segment))
            self._disk.close(current.descriptor)
            self._written += current.end
            self._open, self._sealed = None, segment
            self._next += 1
            self._unsynced = True
        if self._unsynced:
            with named(self._folder, "cannot be made durable"):
                self._disk.sync_folder(self._folder)
            self._unsynced = False
