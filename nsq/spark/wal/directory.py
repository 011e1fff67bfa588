"""A write-ahead log in a directory: local, or NFS for a cluster (see ``locks`` for what that takes).

    <wal>/identity.json
    <wal>/subject.json
    <wal>/readers/<name>.json                    how far a query has committed
    <wal>/readers/<name>.lock                    locked by the query that reads under this name
    <wal>/<receiver>/lock                        locked by the receiver, all its life
    <wal>/<receiver>/000001-1250-250000.arrow    sealed
    <wal>/<receiver>/000002.open                 being written

Bodies may be confidential: a directory made here is for its user alone. One that is there already is taken as
permission: users who may enter, read or write it may do so with everything inside (less the umask). To share
a log with the users of a cluster, make its directory first, with the group and mode that are wanted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from nsq.errors import SegmentLost, WalError, WalForeign
from nsq.spark.wal import names, ownership, readers, records
from nsq.spark.wal.directory_log import DirectoryLog, Disk, named
from nsq.spark.wal.names import Subject
from nsq.spark.wal.readers import ReaderState, check_reader
from nsq.spark.wal.store import Claim, ReceiverFolder, Segment, SegmentFile

_PRIVATE = 0o700
_HIDDEN = "."
_BORN = ".new-"  # a receiver's folder until it is locked
_ATTEMPTS = 5


class DirectoryWal:
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
        self.location = str(location)
        self._root = Path(location)
        self._disk = disk or Disk(fsync)
        self._clock = clock
        self._nap = nap

    def prepare(self, subject: Subject | None = None) -> str:
        """Make it where it is not there yet; its identity. Raises WalForeign when it is for another
        ``subject``; a log that does not say is for this one from now on.
        """
        with named(self._root, "cannot be made a log"):
            self._root.parent.mkdir(parents=True, exist_ok=True)
            self._root.mkdir(mode=_PRIVATE, exist_ok=True)
            found = self.identity()
            if found is None and any(not name.startswith(_HIDDEN) for name in os.listdir(self._root)):
                found = self.identity()  # it may just have been prepared by another process
                if found is None:
                    raise WalForeign(f"{self._root} is no log, and not empty: give it a folder of its own")
            if found is None:
                text = names.encode_identity(names.new_identity(), time.time())
                self._publish(self._root / names.IDENTITY, text, once=True)
            if subject is not None:
                text = names.encode_subject(subject)
                if self.subject() is None:
                    self._publish(self._root / names.SUBJECT, text, once=True)
                there = self.subject()
                subject.check(there, self.location)
                if subject.extends(there):
                    self._publish(self._root / names.SUBJECT, text)
            return found or self.identity() or ""

    def own(self, reader: str, description: str, patience: float) -> Claim:
        """Become the one who reads under this name. Raises WalOwned, with the other's description, when that
        one does not leave within ``patience`` seconds (half a minute when it has said that it is leaving).
        Where one cannot tell at once whether the other is alive, with leases, it takes as long as that takes.
        """
        path = self._root / readers.lock_of(check_reader(reader))
        with named(path, "cannot be locked"):
            self._make_readers_folder()
            mode = self._mode() & 0o666
            return ownership.claim(path, description, patience, mode, self._clock, self._nap)

    def owner(self, reader: str) -> ownership.Owner | None:
        """Who reads under this name now."""
        with named(self._root, "cannot be read"):
            return ownership.holder(self._root / readers.lock_of(reader))

    def readers(self) -> dict[str, ReaderState]:
        """All that have ever read, and were not removed."""
        found = {}
        folder = self._root / readers.FOLDER
        with named(folder, "cannot be read"), contextlib.suppress(FileNotFoundError):
            for file in sorted(os.listdir(folder)):
                name = readers.name_of(file)
                if name is not None:
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = readers.decode((folder / file).read_bytes(), str(folder / file))
        return found

    def save_reader(self, reader: str, state: ReaderState) -> None:
        """Durable on return, in one step where the place allows it."""
        path = self._root / readers.file_of(reader)
        with named(path, "cannot be written"):
            self._make_readers_folder()
            self._publish(path, readers.encode(state))

    def remove_reader(self, reader: str) -> None:
        """Forget how far it has read: it holds up no deletion any more."""
        for path in (self._root / readers.file_of(reader), self._root / readers.lock_of(reader)):
            with named(path, "cannot be removed"):
                self._disk.remove(path)

    def _publish(self, path: Path, text: bytes, *, once: bool = False) -> None:
        """In one step, and durable on return. ``once``: of several processes one makes it, and all of them
        can read which.
        """
        draft = path.with_name(f"{_HIDDEN}{path.name}-{uuid.uuid4().hex}")
        descriptor = self._disk.create(draft, self._mode() & 0o666)
        try:
            self._disk.write(descriptor, memoryview(text), 0)
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

    def _make_readers_folder(self) -> None:
        folder = self._root / readers.FOLDER
        if not folder.is_dir():
            folder.mkdir(mode=self._mode(), exist_ok=True)
            self._disk.sync_folder(self._root)

    def identity(self) -> str | None:
        """None when it has not been prepared."""
        text = self._read(names.IDENTITY)
        return None if text is None else names.decode_identity(text, str(self._root / names.IDENTITY))

    def subject(self) -> Subject | None:
        """None in a log that no query or receiver has used yet."""
        text = self._read(names.SUBJECT)
        return None if text is None else names.decode_subject(text, str(self._root / names.SUBJECT))

    def _read(self, name: str) -> bytes | None:
        with named(self._root, "cannot be read"), contextlib.suppress(FileNotFoundError):
            return (self._root / name).read_bytes()
        return None

    def log(self, receiver: str) -> DirectoryLog:
        """Begin a receiver's log; its name must be new: ``names.new_receiver``."""
        if not names.is_receiver(receiver):
            raise WalError(f"{receiver!r} is no name for a receiver: take one from names.new_receiver()")
        folder = self._root / receiver
        with named(folder, "cannot be made"):
            if self.identity() is None:
                raise WalError(f"{self._root} is no log: it has to be prepared first")
            lock = self._enter(folder)
            return DirectoryLog(folder, lock, self._disk, self._mode() & 0o666)

    def segments(self) -> list[Segment]:
        """All that are sealed, in order."""
        found = []
        for receiver in self._receivers():
            for name in self._names(receiver):
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
        return [self._look(receiver) for receiver in self._receivers()]

    def recover(self) -> list[Segment]:
        """Seal whatever complete batches dead receivers left unsealed; what was sealed by this call."""
        sealed = []
        for receiver in self._receivers():
            with self._if_dead(receiver) as dead:
                for name in sorted(self._names(receiver)) if dead else ():
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

    def delete(self, segments: Iterable[Segment]) -> None:
        """Those that are gone already are left out."""
        for segment in segments:
            path = self.path(segment)
            with named(path, "cannot be deleted"):
                self._disk.remove(path)

    def discard_empty(self) -> None:
        """Remove the folders of dead receivers that hold nothing any more."""
        for name in self._listing():
            if name.startswith(_BORN):
                self._discard(name)
        for receiver in self._receivers():
            if set(self._names(receiver)) <= {names.LOCK}:
                self._discard(receiver)

    def path(self, segment: Segment) -> Path:
        return self._root / segment.receiver / names.sealed_file(segment)

    def _mode(self) -> int:
        return self._root.stat().st_mode & 0o777

    def _enter(self, folder: Path) -> ownership.FileLock:
        """A new folder that is locked before anybody can see it under its name."""
        for _ in range(_ATTEMPTS):
            born = folder.with_name(f"{_BORN}{uuid.uuid4().hex}")
            born.mkdir(mode=self._mode())
            lock = None
            try:
                lock = ownership.acquire(born / names.LOCK, self._mode() & 0o666)
                if lock is not None:
                    self._name(born, folder)
                    return lock
            except FileNotFoundError:  # discard_empty of another process took it for a dead one's
                if lock is not None:
                    lock.release()
            except BaseException:
                if lock is not None:
                    lock.release()
                self._discard(born.name)
                raise
        raise WalError(f"{folder} cannot be made: its folder was removed {_ATTEMPTS} times while it was made")

    def _name(self, born: Path, folder: Path) -> None:
        """Not with mkdir alone: a receiver's folder is locked, or its receiver is dead."""
        if folder.exists():
            raise WalError(f"{folder} is there already: every life of a receiver has a name of its own")
        self._disk.rename(born, folder)
        self._disk.sync_folder(self._root)

    def _listing(self) -> list[str]:
        with named(self._root, "cannot be listed"):
            return sorted(entry.name for entry in os.scandir(self._root) if entry.is_dir())

    def _receivers(self) -> list[str]:
        return [name for name in self._listing() if names.is_receiver(name)]

    def _names(self, receiver: str) -> list[str]:
        with named(self._root / receiver, "cannot be listed"), contextlib.suppress(FileNotFoundError):
            return os.listdir(self._root / receiver)
        return []

    def _look(self, receiver: str) -> ReceiverFolder:
        listing = self._names(receiver)
        sealed = [name for name in listing if names.read_sealed(receiver, name) is not None]
        size = 0
        for name in listing:
            if names.read_open(name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    size += os.stat(self._root / receiver / name).st_size
        with self._if_dead(receiver) as dead:
            return ReceiverFolder(receiver, not dead, size, len(sealed))

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


_logger = logging.getLogger("nsq.spark.wal")


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
