"""Objects in a directory: local, or on NFS for a cluster (``ownership`` lists the requirements).

    m/one.json                  the first version of an object, which stays as long as the object exists
    m/one.json~/000000007       a later version; the highest counts
    m/one.json~/lock            locked by the process that holds the object
    m/.one.json-5f0c…           a draft: an object that is being written
    .reserve                    space for a full disk

A draft is written and fsynced under its own name, then linked to the name of the object; the folder is
fsynced. ``link`` fails if the name exists, so of several writers one wins, no process holds a lock that
another one waits for, and after a power cut an object is there whole or not at all.

``put_match`` links the next version. A process could be suspended before its link until that version has
come and gone again, and would then link it a second time. So a draft says in its name which version it is
going to be, and the clean-up keeps that version and all later ones. The writer looks for newer versions when
its draft exists: if there is none, the version that it links has not been there before. Drafts of killed
processes go after an hour; then a link fails because its draft is missing.

On a full disk a position must still be written: only then can segments be deleted. So the log keeps a
reserve, which ``put_match`` may use, and ``put_new`` must restore first.

Bodies may be confidential, so a new directory gets mode 0700. Everything inside a directory that exists
already gets that directory's group and mode (less the umask). To share a log with other users of a cluster,
create its directory first, with the group and mode that they need.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nsq.errors import WalError
from nsq.spark.wal import ownership
from nsq.spark.wal.disk import FULL, Disk, named
from nsq.spark.wal.objects import Conflict, Entry, Found
from nsq.spark.wal.ownership import FileLock

_PRIVATE = 0o700
_VERSIONS = "~"
_LOCK = "lock"
_HIDDEN = "."
_RESERVE = ".reserve"
_DRAFT = re.compile(r"\..+-[0-9a-f]{32}")
#: Bytes of the reserve: positions and heads have at most some 110 KB each.
RESERVE = 4 << 20
#: Seconds after which a draft was left by a process that was killed.
DRAFT_AGE = 3600.0
_ATTEMPTS = 100


class Folder:
    """The objects below a directory. With ``fsync=False`` the operating system decides when bytes reach the
    disk."""

    def __init__(
        self,
        root: Path,
        *,
        fsync: bool = True,
        disk: Disk | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._disk = disk or Disk(fsync)
        self._now = now

    def path(self, name: str) -> str:
        return str(self._root / name)

    # Writing

    def put_new(self, name: str, data: bytes) -> str:
        path = self._root / name
        with named(path, "cannot be written"):
            self._make(path.parent)
            self._fill_reserve()
            try:
                return self._put_new(path, data)
            except FileNotFoundError:  # another process has removed the folder, which was empty
                self._make(path.parent)
                return self._put_new(path, data)

    def _put_new(self, path: Path, data: bytes) -> str:
        with self._draft(path.parent, f"{_HIDDEN}{path.name}-", data) as draft:
            self._link(draft, path)
        return "1"

    def put_match(self, name: str, data: bytes, tag: str) -> str:
        path = self._root / name
        if not tag.isdecimal():
            raise Conflict(f"{path} has changed")
        versions, number = _versions(path), int(tag) + 1
        with named(path, "cannot be written"):
            if not path.exists():
                raise Conflict(f"{path} is missing")
            self._make(versions)
            for last in (False, True):
                try:
                    with self._draft(versions, f"{_HIDDEN}{number:09d}-", data) as draft:
                        self._replace(draft, path, number)
                    break
                except OSError as error:
                    if last or error.errno not in FULL:
                        raise
                    self._disk.remove(self._root / _RESERVE)
            with contextlib.suppress(OSError):  # the next put cleans up
                self._clean(versions, number)
        return str(number)

    def _replace(self, draft: Path, path: Path, number: int) -> None:
        # From here on the draft keeps the versions that matter: see above.
        if _newest(path) != number - 1:
            self._disk.sync_folder(_versions(path))  # the version that we found may be our own
            raise Conflict(f"{path} has changed")
        self._link(draft, _versions(path) / f"{number:09d}")

    def _link(self, draft: Path, path: Path) -> None:
        """Give a draft its name for good. Raises Conflict if the name exists."""
        try:
            self._disk.link(draft, path)
        except FileExistsError:
            # Our earlier attempt may have made the link and failed to make it durable. The caller compares.
            self._disk.sync_folder(path.parent)
            raise Conflict(f"{path} was written by another process") from None
        self._disk.sync_folder(path.parent)

    @contextlib.contextmanager
    def _draft(self, folder: Path, prefix: str, data: bytes) -> Iterator[Path]:
        """A file with this content, on disk, under a name of its own."""
        draft = folder / f"{prefix}{uuid.uuid4().hex}"
        descriptor = self._create(draft)
        try:
            self._disk.write(descriptor, memoryview(data), 0)
            self._disk.sync(descriptor)
            yield draft
        finally:
            self._disk.close(descriptor)
            with contextlib.suppress(OSError):  # else it goes in an hour
                self._disk.remove(draft)

    def _create(self, path: Path) -> int:
        root = self._root.stat()
        descriptor = self._disk.create(path, root.st_mode & 0o666)
        if os.fstat(descriptor).st_gid != root.st_gid:
            with contextlib.suppress(OSError):
                os.fchown(descriptor, -1, root.st_gid)
        return descriptor

    def _make(self, folder: Path) -> None:
        """Make a folder of the log, and the log's own directory, if they are missing."""
        if folder.is_dir():
            return
        with named(folder, "cannot be made"):
            if folder == self._root:
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=_PRIVATE, exist_ok=True)
                return
            self._make(folder.parent)
            root = self._root.stat()
            folder.mkdir(mode=root.st_mode & 0o777, exist_ok=True)
            if folder.stat().st_gid != root.st_gid:
                with contextlib.suppress(OSError):
                    os.chown(folder, -1, root.st_gid)
            self._disk.sync_folder(folder.parent)

    def _fill_reserve(self) -> None:
        if (self._root / _RESERVE).exists():
            return
        draft = self._root / f"{_RESERVE}-{uuid.uuid4().hex}"
        descriptor = self._create(draft)
        try:
            self._disk.allocate(descriptor, RESERVE)
            self._disk.rename(draft, self._root / _RESERVE)
        except BaseException:
            self._disk.remove(draft)
            raise
        finally:
            self._disk.close(descriptor)

    def _clean(self, versions: Path, number: int) -> None:
        """Remove the versions before ``number`` that no draft needs. One more stays, for a reader that has
        just looked for the newest."""
        there = sorted(os.listdir(versions))
        kept = number - 1
        for name in there:
            if name.startswith(_HIDDEN) and not self._remove_stale(versions / name):
                aim = name.removeprefix(_HIDDEN).partition("-")[0]
                kept = min(kept, int(aim) - 1 if aim.isdecimal() else kept)
        for name in there:
            if name.isdecimal() and int(name) < kept:
                self._disk.remove(versions / name)

    def _remove_stale(self, path: Path) -> bool:
        """Remove a draft that was left by a process that was killed; whether it was one."""
        if not _DRAFT.fullmatch(path.name):
            return False
        with contextlib.suppress(OSError):
            stale = self._now() - path.stat().st_mtime >= DRAFT_AGE
            if stale:
                self._disk.remove(path)
            return stale
        return False

    def delete_many(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self._root / name
            with named(path, "cannot be deleted"):
                self._disk.remove(path)  # from here on there is no such object
                versions = _versions(path)
                for _ in range(_ATTEMPTS):  # another process may be adding a version, which does not count
                    if not versions.is_dir():
                        break
                    for each in os.listdir(versions):
                        self._disk.remove(versions / each)
                    with contextlib.suppress(OSError):
                        os.rmdir(versions)
            folders.add(path.parent)
        for folder in folders:
            if folder != self._root and folder.parent != self._root:
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(folder)

    # Reading

    def get(self, name: str) -> Found | None:
        path = self._root / name
        with named(path, "cannot be read"):
            for _ in range(_ATTEMPTS):
                number = _newest(path)
                if not number:
                    return None
                with contextlib.suppress(FileNotFoundError):  # else it was replaced twice meanwhile
                    return Found(_file(path, number).read_bytes(), str(number))
        raise WalError(f"{path} cannot be read: it changes all the time")

    def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        """Also removes drafts that were left by processes that were killed."""
        with named(self._root / prefix, "cannot be listed"):
            return list(itertools.islice(self._walk(prefix, after), most))

    def _walk(self, prefix: str, after: str) -> Iterator[Entry]:
        try:
            there = list(os.scandir(self._root / prefix))
        except FileNotFoundError:
            return
        found = []
        for entry in there:
            if entry.name.startswith(_HIDDEN):
                self._remove_stale(Path(entry.path))
            elif not entry.is_dir(follow_symlinks=False):
                found.append(prefix + entry.name)
            elif not entry.name.endswith(_VERSIONS):
                found.append(f"{prefix}{entry.name}/")
        for name in sorted(found):
            if name.endswith("/"):
                if name > after or after.startswith(name):
                    yield from self._walk(name, after)
            elif name > after:
                path = self._root / name
                with contextlib.suppress(FileNotFoundError):  # else it has just been deleted
                    number = _newest(path)
                    status = os.lstat(_file(path, number))
                    yield Entry(name, str(number), status.st_size, status.st_mtime)

    # Locks

    def hold(self, name: str) -> FileLock | None:
        versions = _versions(self._root / name)
        with named(versions, "cannot be locked"):
            self._make(versions)
            lock = ownership.acquire(versions / _LOCK, self._root.stat().st_mode & 0o666, self._disk)
        if lock is None:
            raise Conflict(f"{self.path(name)} is held by another process")
        return lock

    def is_held(self, name: str) -> bool | None:
        path = _versions(self._root / name) / _LOCK
        with named(path, "cannot be examined"), ownership.lock_probe(path, self._disk) as free:
            return not free


def _versions(path: Path) -> Path:
    return path.with_name(path.name + _VERSIONS)


def _file(path: Path, number: int) -> Path:
    return path if number == 1 else _versions(path) / f"{number:09d}"


def _newest(path: Path) -> int:
    """The number of an object's newest version; 0 when there is no such object."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return 0
    try:
        return max((int(name) for name in os.listdir(_versions(path)) if name.isdecimal()), default=1)
    except (FileNotFoundError, NotADirectoryError):
        return 1
