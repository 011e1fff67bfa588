"""A write-ahead log in a directory: local, or NFS for a cluster (see ``locks`` for what that takes).

    <wal>/identity.json
    <wal>/subject.json
    <wal>/owner                                  locked by the owner
    <wal>/<receiver>/lock                        locked by the receiver, all its life
    <wal>/<receiver>/000001-1250-250000.arrow    sealed
    <wal>/<receiver>/000002.open                 being written

Bodies may be confidential: a directory made here is for its user alone. One that is there already is taken as
permission: whoever may enter, read or write it, may do so with everything inside (less the umask). To share
a log with the users of a cluster, make its directory first, with the group and mode that are wanted.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from nsq.errors import SegmentLost, WalError, WalForeign
from nsq.spark.wal import identity, locks, names, ownership, recovery, streams
from nsq.spark.wal import subject as subjects
from nsq.spark.wal.directory_log import DirectoryLog
from nsq.spark.wal.disk import Disk
from nsq.spark.wal.store import Claim, ReceiverFolder, Segment
from nsq.spark.wal.subject import Subject

_PRIVATE = 0o700
_HIDDEN = "."
_BORN = ".new-"  # a receiver's folder until it is locked
_ATTEMPTS = 5


class DirectoryWal:
    """``fsync=False`` leaves it to the operating system when bytes reach the disk."""

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
        with _named(self._root, "cannot be made a log"):
            self._root.parent.mkdir(parents=True, exist_ok=True)
            self._root.mkdir(mode=_PRIVATE, exist_ok=True)
            found = self._identity()
            if found is None and any(not name.startswith(_HIDDEN) for name in os.listdir(self._root)):
                found = self._identity()  # it may just have been prepared by another process
                if found is None:
                    raise WalForeign(f"{self._root} is no log, and not empty: give it a folder of its own")
            made = found or self._make_identity()
            if subject is not None:
                subject.check(self._subject() or self._dedicate(subject), self.location)
            return made

    def own(self, description: str, patience: float) -> Claim:
        path = self._root / names.OWNER
        with _named(path, "cannot be locked"):
            mode = self._mode() & 0o666
            return ownership.claim(path, description, patience, mode, self._clock, self._nap)

    def identity(self) -> str | None:
        """None when it has not been prepared."""
        with _named(self._root, "cannot be read"):
            return self._identity()

    def subject(self) -> Subject | None:
        """None when nobody has said yet."""
        with _named(self._root, "cannot be read"):
            return self._subject()

    def owner(self) -> ownership.Owner | None:
        """Who owns it now."""
        with _named(self._root, "cannot be read"):
            return ownership.holder(self._root / names.OWNER)

    def log(self, receiver: str) -> DirectoryLog:
        if not names.is_receiver(receiver):
            raise WalError(f"{receiver!r} is no name for a receiver: take one from names.new_receiver()")
        folder = self._root / receiver
        with _named(folder, "cannot be made"):
            if self._identity() is None:
                raise WalError(f"{self._root} is no log: it has to be prepared first")
            lock = self._enter(folder)
            return DirectoryLog(folder, lock, self._disk, self._mode() & 0o666)

    def segments(self) -> list[Segment]:
        found = []
        for receiver in self._receivers():
            for name in self._names(receiver):
                segment = names.read_sealed(receiver, name)
                if segment is not None:
                    found.append(segment)
        return sorted(found)

    def receivers(self) -> list[ReceiverFolder]:
        return [self._look(receiver) for receiver in self._receivers()]

    def recover(self) -> list[Segment]:
        sealed: list[Segment] = []
        for receiver in self._receivers():
            with self._if_dead(receiver) as dead:
                if dead:
                    with contextlib.suppress(FileNotFoundError):
                        sealed += recovery.seal_leftovers(self._root / receiver, self._disk)
        return sorted(sealed)

    def read(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """They lie in mapped memory, which stays valid when the file is deleted."""
        path = str(self.path(segment))
        try:
            source = pa.memory_map(path)
        except FileNotFoundError:
            raise SegmentLost(f"{path} is not there") from None
        except (OSError, pa.ArrowException) as error:
            raise SegmentLost(f"{path} cannot be read: {error}") from error
        return streams.decode(source, segment.rows, path)

    def delete(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            path = self.path(segment)
            with _named(path, "cannot be deleted"):
                self._disk.remove(path)

    def discard_empty(self) -> None:
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

    def _identity(self) -> str | None:
        path = self._root / names.IDENTITY
        try:
            return identity.decode(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None

    def _subject(self) -> Subject | None:
        path = self._root / names.SUBJECT
        try:
            return subjects.decode(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None

    def _make_identity(self) -> str:
        made = identity.new_identity()
        self._make_once(names.IDENTITY, identity.encode(made, time.time()))
        return self._identity() or made

    def _dedicate(self, subject: Subject) -> Subject | None:
        self._make_once(names.SUBJECT, subjects.encode(subject))
        return self._subject()

    def _make_once(self, name: str, text: bytes) -> None:
        """Complete or not at all; of several processes one makes it, and all of them can read which."""
        draft = self._root / f"{_HIDDEN}{name}-{uuid.uuid4().hex}"
        descriptor = self._disk.create(draft, self._mode() & 0o666)
        try:
            self._disk.write(descriptor, memoryview(text), 0)
            self._disk.sync(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(draft, self._root / name)
        finally:
            self._disk.close(descriptor)
            self._disk.remove(draft)
        self._disk.sync_folder(self._root)

    def _enter(self, folder: Path) -> locks.FileLock:
        """A new folder that is locked before anybody can see it under its name."""
        for _ in range(_ATTEMPTS):
            born = folder.with_name(f"{_BORN}{uuid.uuid4().hex}")
            born.mkdir(mode=self._mode())
            lock = None
            try:
                lock = locks.acquire(born / names.LOCK, self._mode() & 0o666)
                if lock is not None:
                    self._name(born, folder)
                    return lock
            except FileNotFoundError:  # discard_empty of another process took it for a dead one's
                self._give_up(lock)
            except BaseException:
                self._give_up(lock)
                self._discard(born.name)
                raise
        raise WalError(f"{folder} cannot be made: its folder was removed {_ATTEMPTS} times while it was made")

    def _name(self, born: Path, folder: Path) -> None:
        """Not with mkdir alone: a receiver's folder is locked, or its receiver is dead."""
        if folder.exists():
            raise WalError(f"{folder} is there already: every life of a receiver has a name of its own")
        self._disk.rename(born, folder)
        self._disk.sync_folder(self._root)

    def _give_up(self, lock: locks.FileLock | None) -> None:
        if lock is not None:
            lock.release()

    def _listing(self) -> list[str]:
        with _named(self._root, "cannot be listed"):
            return sorted(entry.name for entry in os.scandir(self._root) if entry.is_dir())

    def _receivers(self) -> list[str]:
        return [name for name in self._listing() if names.is_receiver(name)]

    def _names(self, receiver: str) -> list[str]:
        with _named(self._root / receiver, "cannot be listed"), contextlib.suppress(FileNotFoundError):
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
            _named(self._root / receiver, "cannot be examined"),
            locks.looked_at(self._root / receiver / names.LOCK) as free,
        ):
            yield free

    def _discard(self, name: str) -> None:
        """An empty folder, unless its receiver lives. Names are never used twice: a dead one stays dead."""
        with self._if_dead(name) as dead:
            if dead:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(self._root / name / names.LOCK)
                    os.rmdir(self._root / name)


@contextlib.contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    """What the system refuses becomes a WalError that says where."""
    try:
        yield
    except OSError as error:
        raise WalError(f"{path} {what}: {error.strerror or error}") from error
