"""A write-ahead log in a directory: local, or on NFS for a cluster (``ownership`` lists the requirements).
Besides the files that ``store`` describes, it holds

    <wal>/<receiver>/lock                        locked by the receiver as long as it lives; its report
    <wal>/<receiver>/000001-1250-250000.arrow    a sealed segment
    <wal>/<receiver>/000002.open                 the file being written

Bodies may be confidential, so a new directory gets mode 0700. Everything inside a directory that exists
already gets that directory's mode (less the umask). To share a log with other users of a cluster, create its
directory first, with the group and mode that they need.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from nsq.errors import SegmentLost, WalError
from nsq.log import Logger
from nsq.spark.receiver.protocol import Status
from nsq.spark.wal import names, ownership, readers, records
from nsq.spark.wal.disk import Directory, Disk, named
from nsq.spark.wal.names import Listing, Position, ReceiverFolder, Segment, SegmentFile
from nsq.spark.wal.ownership import FileLock
from nsq.spark.wal.readers import check_reader
from nsq.spark.wal.store import BaseWal

_logger = Logger("nsq.spark.wal")

_NEW_PREFIX = ".new-"  # prefix of a receiver's folder until the receiver has locked it
_ATTEMPTS = 5


class _SealedFiles:
    """The sealed segments of a receiver, as last listed: there may be a hundred thousand, which never
    change.
    """

    def __init__(self) -> None:
        self.names: dict[str, SegmentFile] = {}
        self.numbers: dict[int, SegmentFile] = {}
        self.size = 0

    def add(self, name: str, file: SegmentFile) -> None:
        self.names[name] = self.numbers[file.segment.number] = file
        self.size += file.size

    def forget(self, name: str) -> None:
        file = self.names.pop(name)
        self.numbers.pop(file.segment.number, None)
        self.size -= file.size


class DirectoryWal(BaseWal):
    """A log that many processes may use at once; each reader name belongs to one process at a time.

    With ``fsync=False`` the operating system decides when bytes reach the disk."""

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
        self._known: dict[str, _SealedFiles] = {}  # by receiver

    def own(self, reader: str, description: str, patience: float) -> FileLock:
        """Lock a reader's name. Raises WalOwned, with the owner's description, when the owner does not leave
        within ``patience`` seconds (30 s when the owner has announced that it is leaving).
        """
        path = self._root / readers.lock_of(check_reader(reader))
        self._place.make_folder(readers.FOLDER)
        with named(path, "cannot be locked"):
            mode = self._place.mode() & 0o666
            return ownership.claim(path, description, patience, mode, self._clock, self._nap)

    def owner(self, reader: str) -> ownership.Owner | None:
        """The process that holds this reader's name now; None when the name is free."""
        with named(self._root, "cannot be read"):
            return ownership.holder(self._root / readers.lock_of(reader))

    def log(self, receiver: str) -> DirectoryLog:
        """Create a receiver's log. The name must be new: ``names.new_receiver`` makes one."""
        self._check_name(receiver)
        folder = self._root / receiver
        with named(folder, "cannot be made"):
            if folder.exists():
                raise WalError(f"{folder} is there already: a receiver's name must be new")
            return DirectoryLog(folder, self._enter(folder), self._disk, self._place.mode() & 0o666)

    def segments(self) -> list[Segment]:
        """All sealed segments, ordered by receiver and number."""
        found = []
        for receiver in self._receivers():
            for name in self._place.names(receiver):
                segment = names.read_sealed(receiver, name)
                if segment is not None:
                    found.append(segment)
        return sorted(found)

    def files(self) -> list[SegmentFile]:
        """All sealed segments, with the sizes and modification times of their files."""
        return self.listing().files

    def listing(self, after: Mapping[str, Position] | None = None) -> Listing:
        """List the log. Only segments ``after`` these positions are listed, but all are counted; without
        positions, all are listed."""
        folders, size = self._look()
        files: list[SegmentFile] = []
        for receiver, known in self._known.items():
            low = (after or {}).get(receiver, Position()).segment
            # From the newest down: a reader has usually committed most of them.
            for number in sorted(known.numbers, reverse=True):
                if number <= low:
                    break
                files.append(known.numbers[number])
        return Listing(sorted(files), folders, size)

    def _look(self) -> tuple[list[ReceiverFolder], int]:
        """Look at what has changed. Returns the receivers, and the bytes of all files."""
        folders = []
        size = 0
        looked: dict[str, _SealedFiles] = {}
        for receiver in self._receivers():
            known = looked[receiver] = self._known.get(receiver, _SealedFiles())
            open_bytes = 0
            there = set(self._place.names(receiver))
            for name in known.names.keys() - there:
                known.forget(name)
            for name in there - known.names.keys():
                with contextlib.suppress(FileNotFoundError):  # another reader has deleted it
                    if (segment := names.read_sealed(receiver, name)) is not None:
                        status = self.path(segment).stat()
                        known.add(name, SegmentFile(segment, status.st_size, status.st_mtime))
                    elif names.read_open(name) is not None:
                        open_bytes += os.stat(self._root / receiver / name).st_size
            with self._if_dead(receiver) as dead:
                report = None if dead else self._report(receiver)
                folders.append(ReceiverFolder(receiver, not dead, open_bytes, len(known.names), report))
            size += open_bytes + known.size
        self._known = looked
        return folders, size

    def _report(self, receiver: str) -> Status | None:
        """The last report of a living receiver; None when there is none yet."""
        with contextlib.suppress(OSError, ValueError, TypeError):  # the text may be half written
            return Status(**json.loads(ownership.text_of(self._root / receiver / names.LOCK)))
        return None

    def files_of_readers(self) -> list[SegmentFile]:
        """The segments that readers delete: all."""
        return self.files()

    def receivers(self) -> list[ReceiverFolder]:
        return self._look()[0]

    def delete(self, segments: Sequence[Segment]) -> list[Segment]:
        """Delete segments, and return them; missing ones are no error."""
        gone = list(segments)
        for segment in gone:
            self._place.delete(names.path_of(segment))
        return gone

    def delete_orphans(self) -> int:
        """Return 0: a directory has none."""
        return 0

    def measure(self, logs: Sequence[DirectoryLog], limit: int) -> tuple[int, int]:
        """The bytes of all files, and the most that there may be; ``logs`` are those of this process."""
        return self._look()[1], limit

    def recover(self) -> list[Segment]:
        """Seal the complete batches in the open files of dead receivers; return the new segments."""
        sealed = []
        for receiver in self._receivers():
            with self._if_dead(receiver) as dead:
                for name in self._place.names(receiver) if dead else ():
                    number, path = names.read_open(name), self._root / receiver / name
                    if number is None:
                        continue
                    # When the file is missing, another process has just sealed it.
                    with named(path, "cannot be recovered"), contextlib.suppress(FileNotFoundError):
                        sealed.append(_seal_leftover(path, number, self._disk))
        return sorted(filter(None, sealed))

    def read(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The batches of a segment, as they were appended. Raises SegmentLost, which names the file.

        The batches are memory-mapped, and stay valid when the file is deleted.
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
        """Remove the empty folders of dead receivers."""
        for name in self._listing():
            if name.startswith(_NEW_PREFIX):
                self._discard(name)
        for receiver in self._receivers():
            if set(self._place.names(receiver)) <= {names.LOCK}:
                self._discard(receiver)

    def path(self, segment: Segment) -> Path:
        return self._root / names.path_of(segment)

    def _enter(self, folder: Path) -> FileLock:
        """Create a receiver's folder: lock it under a temporary name, then rename it."""
        for _ in range(_ATTEMPTS):
            new = folder.with_name(f"{_NEW_PREFIX}{uuid.uuid4().hex}")
            new.mkdir(mode=self._place.mode())
            lock = None
            try:
                lock = ownership.acquire(new / names.LOCK, self._place.mode() & 0o666)
                if lock is not None:
                    self._disk.rename(new, folder)
                    self._disk.sync_folder(self._root)
                    return lock
            except BaseException as error:
                if lock is not None:
                    lock.release()
                # When the folder is missing, discard_empty of another process has removed it.
                if not isinstance(error, FileNotFoundError):
                    self._discard(new.name)
                    raise
        raise WalError(f"{folder} cannot be made: its folder was removed {_ATTEMPTS} times while it was made")

    def _listing(self) -> list[str]:
        with named(self._root, "cannot be listed"):
            return sorted(
                entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)
            )

    def _receivers(self) -> list[str]:
        return [name for name in self._listing() if names.is_receiver(name)]

    @contextlib.contextmanager
    def _if_dead(self, receiver: str) -> Iterator[bool]:
        with (
            named(self._root / receiver, "cannot be examined"),
            ownership.lock_probe(self._root / receiver / names.LOCK) as free,
        ):
            yield free

    def _discard(self, name: str) -> None:
        """Remove an empty folder unless its receiver lives. A dead one stays dead: names are not reused."""
        with self._if_dead(name) as dead:
            if dead:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(self._root / name / names.LOCK)
                    os.rmdir(self._root / name)


# Recovery: a dead receiver's open file becomes a segment. Any number of processes may recover at once: all of
# them find the same valid rows and compute the same name, and one of them renames the file. The torn tail
# stays in the file; readers stop at the row count in its name


def _seal_leftover(path: Path, number: int, disk: Disk) -> Segment | None:
    with pa.OSFile(str(path), "rb") as source:
        size = source.size()
        rows, bodies = records.complete(source)
    if not rows:
        disk.remove(path)
        _logger.info("%s held no complete batch (%d bytes), and is removed", path, size)
        return None
    segment = Segment(path.parent.name, number, rows, bodies)
    # The last batch may not be fsynced yet, but a segment must never change.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(path, path.parent / names.sealed_file(segment))
    disk.sync_folder(path.parent)
    _logger.info("%s: %d rows recovered, from %d bytes", path, rows, size)
    return segment


# One receiver's log: append, fsync, seal, and recover from disk errors. The open file is valid up to
# ``_Open.end``, and the next batch is written there. After a failed fsync the kernel may mark pages clean
# that never reached the disk, so this log never writes to that file again: the file is *tainted*, and is
# sealed with the rows that were durable before, as its name says. Until that seal succeeds, appends fail


@dataclass
class _Open:
    """The file being written. ``end``, ``rows`` and ``bytes`` cover only durable batches."""

    descriptor: int
    path: Path
    end: int = 0
    rows: int = 0
    bytes: int = 0
    tainted: bool = False


class DirectoryLog:
    """One receiver's log; not thread-safe. ``folder`` holds only the lock, which this log takes over."""

    def __init__(self, folder: Path, lock: FileLock, disk: Disk, mode: int) -> None:
        self.receiver = folder.name
        self._folder = folder
        self._lock = lock
        self._disk = disk
        self._mode = mode
        self._open: _Open | None = None
        self._next = 1
        self._written = 0  # bytes of the sealed files
        self._unsynced = False  # a file was renamed, but the folder is not fsynced yet
        self._sealed: Segment | None = None  # the last sealed segment, until roll returns it
        self._closed = False

    @property
    def open_rows(self) -> int:
        """Rows that are durable but not sealed yet."""
        return self._open.rows if self._open else 0

    @property
    def open_bytes(self) -> int:
        """Bytes of the bodies of these rows."""
        return self._open.bytes if self._open else 0

    @property
    def written(self) -> int:
        """Bytes of all files that this log has written, sealed or open."""
        return self._written + (self._open.end if self._open else 0)

    def report(self, status: Status) -> None:
        """Leave a report for other processes."""
        self._lock.write(json.dumps(vars(status)).encode())

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch; it is durable on return. When this raises WalError, the log is unchanged."""
        if self._closed:
            raise WalError(f"{self._folder}: this log has been closed")
        if batch.num_rows == 0:
            return
        data = records.encode(batch)
        if self._open is None or self._open.tainted:
            self._seal()  # finish a seal that failed before
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
        """Seal the open file; return the segment, or None when nothing was appended since the last roll."""
        self._seal()
        sealed, self._sealed = self._sealed, None
        return sealed

    def close(self) -> Segment | None:
        """Roll, then release the lock. If the roll fails, ``recover`` seals the durable rows later."""
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
        """Rename the open file to a segment, or remove it when empty. Until this succeeds, appends fail."""
        current = self._open
        if current is not None and current.rows == 0:
            with named(current.path, "cannot be removed"):
                self._disk.remove(current.path)
            self._disk.close(current.descriptor)
            self._open = None
        elif current is not None:
            if current.tainted:
                with contextlib.suppress(OSError):  # optional: readers stop at the row count in the name
                    self._disk.truncate(current.descriptor, current.end)
            current.tainted = True  # a rename may happen although it reports an error
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
