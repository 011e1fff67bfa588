"""A disk in memory, and what the package gets in place of ``os``, ``fcntl``, ``pathlib.Path`` and ``open``.

What a program sees and what is on the platters are kept apart. After a power cut each sector of a file has its
state as of some moment since the file's last fsync, its size too, and the names are those as of some moment
since the last fsync of the directory. A failed fsync behaves as on Linux: the pages count as clean, so the next
fsync succeeds and does not write them.
"""

from __future__ import annotations

import errno
import fcntl as real_fcntl
import io
import math
import os as real_os
import pathlib
import random
import stat as real_stat
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Self

from tests.simulation.network import network
from tests.simulation.scheduler import scheduler
from tests.simulation.threads import StandIn

ROOT = "/disk"
_SECTOR = 512
_FIRST = 1_000_000  # descriptors of the simulation begin here
#: Operations that change something: faults are aimed at these.
CHANGES = ("open", "pwrite", "truncate", "rename", "unlink", "fsync", "mkdir", "link")


class File:
    """An inode: its content, what is on the platters, and the changes since the last fsync."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.changes: list[tuple[int, bytes]] = []  # (offset, data), or (size, b"") for a truncation

    def write(self, offset: int, data: bytes) -> None:
        self._apply(self.content, offset, data)
        self.changes.append((offset, data))

    def truncate(self, size: int) -> None:
        self._apply(self.content, size, b"")
        self.changes.append((size, b""))

    @staticmethod
    def _apply(content: bytearray, offset: int, data: bytes) -> None:
        if len(content) < offset:
            content += bytes(offset - len(content))
        if data:
            content[offset : offset + len(data)] = data
        else:
            del content[offset:]

    def sync(self) -> None:
        durable = bytearray(self.durable)
        for offset, data in self.changes:
            self._apply(durable, offset, data)
        self.durable, self.changes = bytes(durable), []

    def forget_changes(self) -> None:
        """An fsync has failed: what was written counts as clean, and is not on the platters."""
        self.changes = []

    def cut_power(self, chance: random.Random | None) -> None:
        states = [self.durable]
        content = bytearray(self.durable)
        for offset, data in self.changes:
            self._apply(content, offset, data)
            states.append(bytes(content))
        if len(states) > 1:
            size = len(chance.choice(states) if chance else content)
            kept = bytearray(size)
            for start in range(0, size, _SECTOR):
                state = chance.choice(states) if chance else states[-1 if start // _SECTOR % 2 == 0 else 0]
                piece = state[start : start + _SECTOR][: size - start]
                kept[start : start + len(piece)] = piece
            self.durable = bytes(kept)
        self.content, self.changes = bytearray(self.durable), []


class Disk:
    """The one directory of a host, and the faults of its operations."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.names: dict[str, File] = {}
        self._durable_names: dict[str, File] = {}
        self._journal: list[dict[str, File | None]] = []  # each step happens whole, or not
        self.capacity = math.inf
        self.fail: Callable[[str, str], int] = _never_fails
        """Gets an operation and a name before it happens; returns an errno, or 0. It may kill the process."""
        self.short_writes = 0.0
        self.operations = 0

    def heal(self) -> None:
        """End all faults."""
        self.capacity, self.short_writes, self.fail = math.inf, 0.0, _never_fails

    @property
    def used(self) -> int:
        return sum(len(file.content) for file in self.names.values())

    def before(self, operation: str, name: str) -> None:
        if operation in CHANGES:
            self.operations += 1
        scheduler.note(operation, name)
        code = self.fail(operation, name)
        scheduler.story(
            f"{self.host} disk: {operation} {name}" + (f" fails: {real_os.strerror(code)}" if code else "")
        )
        if code:
            if operation == "fsync" and name in self.names:
                self.names[name].forget_changes()
            raise OSError(code, real_os.strerror(code), f"{ROOT}/{self.host}/{name}")

    def change_names(self, step: dict[str, File | None]) -> None:
        """Give names to files, or take names away (None), in one step."""
        _apply(self.names, step)
        self._journal.append(step)

    def sync_names(self) -> None:
        self._durable_names, self._journal = dict(self.names), []

    def cut_power(self, chance: random.Random | None) -> None:
        """Forget some of what was not fsynced; without ``chance``, every other sector."""
        names = dict(self._durable_names)
        for step in self._journal[: chance.randint(0, len(self._journal)) if chance else None]:
            _apply(names, step)
        self.names = names
        self.sync_names()
        _locks.pop(self.host, None)
        for file in {id(file): file for file in names.values()}.values():
            file.cut_power(chance)


def _apply(names: dict[str, File], step: dict[str, File | None]) -> None:
    for name, file in step.items():
        names.pop(name, None)
        if file is not None:
            names[name] = file


def _never_fails(_operation: str, _name: str) -> int:
    return 0


disks: dict[str, Disk] = {}


def begin() -> None:
    disks.clear()


class _Open:
    """An open file."""

    def __init__(self, disk: Disk, name: str, file: File | None, flags: int) -> None:
        self.disk, self.name, self.file, self.flags = disk, name, file, flags
        self.position = 0
        self.process = scheduler.me().process
        self.number = network.descriptor(self.process, self)

    def close(self) -> None:
        self.process.descriptors.pop(self.number, None)
        if self.file is None and _locks.get(self.disk.host) is self:
            del _locks[self.disk.host]


_locks: dict[str, _Open] = {}  # of directories


def _is_ours(path: Any) -> bool:
    return not isinstance(path, int) and str(path).startswith(ROOT + "/")


def _where(path: Any) -> tuple[Disk, str]:
    """Return the disk and the name in its directory; the name is empty for the directory."""
    _, _, host, *rest = str(path).split("/")
    disk = disks.get(host)
    if disk is None:
        raise _error(errno.ENOENT, path)
    return disk, "/".join(rest)


def _error(code: int, path: Any) -> OSError:
    return OSError(code, real_os.strerror(code), str(path))


def _open_file(descriptor: int) -> _Open:
    opened = scheduler.me().process.descriptors.get(descriptor)
    if not isinstance(opened, _Open):
        raise OSError(errno.EBADF, real_os.strerror(errno.EBADF))
    return opened


def os_open(path: Any, flags: int, mode: int = 0o777, **_: Any) -> int:
    if not _is_ours(path):
        return real_os.open(path, flags, mode)
    disk, name = _where(path)
    if not name:
        return _Open(disk, name, None, flags).number
    file = disk.names.get(name)
    if file is None:
        if not flags & real_os.O_CREAT:
            raise _error(errno.ENOENT, path)
        disk.before("open", name)
        file = File()
        disk.change_names({name: file})
    elif flags & real_os.O_EXCL:
        raise _error(errno.EEXIST, path)
    elif flags & real_os.O_TRUNC and file.content:
        disk.before("truncate", name)
        file.truncate(0)
    return _Open(disk, name, file, flags).number


def close(descriptor: int) -> None:
    if descriptor < _FIRST:
        real_os.close(descriptor)
        return
    _open_file(descriptor).close()


def pwrite(descriptor: int, data: Any, offset: int) -> int:
    opened = _open_file(descriptor)
    disk, file = opened.disk, opened.file
    assert file is not None
    data = bytes(data)
    disk.before("pwrite", opened.name)
    growth = max(0, offset + len(data) - len(file.content))
    room = disk.capacity - disk.used
    if growth > room:
        data = data[: max(0, len(data) - growth + max(int(room), 0))]
        if not data:
            scheduler.story(f"{disk.host} disk: {opened.name}: no space left")
            raise _error(errno.ENOSPC, opened.name)
    if len(data) > 1 and disk.short_writes and scheduler.chance.random() < disk.short_writes:
        data = data[: scheduler.chance.randint(1, len(data) - 1)]
    scheduler.note("pwrite", offset, data)
    file.write(offset, data)
    return len(data)


def write(descriptor: int, data: Any) -> int:
    if descriptor < _FIRST:
        return real_os.write(descriptor, data)
    opened = _open_file(descriptor)
    written = pwrite(descriptor, data, opened.position)
    opened.position += written
    return written


def pread(descriptor: int, size: int, offset: int) -> bytes:
    opened = _open_file(descriptor)
    assert opened.file is not None
    opened.disk.before("pread", opened.name)
    return bytes(opened.file.content[offset : offset + size])


def read(descriptor: int, size: int) -> bytes:
    if descriptor < _FIRST:
        return real_os.read(descriptor, size)
    opened = _open_file(descriptor)
    data = pread(descriptor, size, opened.position)
    opened.position += len(data)
    return data


def fsync(descriptor: int) -> None:
    opened = _open_file(descriptor)
    opened.disk.before("fsync", opened.name)
    if opened.file is None:
        opened.disk.sync_names()
    else:
        opened.file.sync()


def ftruncate(descriptor: int, size: int) -> None:
    opened = _open_file(descriptor)
    assert opened.file is not None
    opened.disk.before("truncate", opened.name)
    opened.file.truncate(size)


def truncate(path: Any, size: int) -> None:
    disk, name = _where(path)
    if name not in disk.names:
        raise _error(errno.ENOENT, path)
    disk.before("truncate", name)
    disk.names[name].truncate(size)


def rename(source: Any, target: Any) -> None:
    disk, name = _where(source)
    _, other = _where(target)
    if name not in disk.names:
        raise _error(errno.ENOENT, source)
    disk.before("rename", f"{name} to {other}")
    disk.change_names({name: None, other: disk.names[name]})


def unlink(path: Any, **_: Any) -> None:
    disk, name = _where(path)
    if name not in disk.names:
        raise _error(errno.ENOENT, path)
    disk.before("unlink", name)
    disk.change_names({name: None})


def stat(path: Any, **_: Any) -> Any:
    if isinstance(path, int):
        return fstat(path)
    if not _is_ours(path):
        return real_os.stat(path)
    disk, name = _where(path)
    if not name:
        return _stat(real_stat.S_IFDIR | 0o700, 0)
    if name not in disk.names:
        raise _error(errno.ENOENT, path)
    return _stat(real_stat.S_IFREG | 0o600, len(disk.names[name].content))


def fstat(descriptor: int) -> Any:
    if descriptor < _FIRST:
        return real_os.fstat(descriptor)
    file = _open_file(descriptor).file
    if file is None:
        return _stat(real_stat.S_IFDIR | 0o700, 0)
    return _stat(real_stat.S_IFREG | 0o600, len(file.content))


def _stat(mode: int, size: int) -> Any:
    return SimpleNamespace(st_mode=mode, st_size=size, st_ino=1, st_mtime=0.0, st_nlink=1)


def listdir(path: Any) -> list[str]:
    if not _is_ours(path):
        return real_os.listdir(path)
    return list(_where(path)[0].names)


class _Entry:
    def __init__(self, path: Path) -> None:
        self.path, self.name = str(path), path.name

    def is_file(self, **_: Any) -> bool:
        return True

    def is_symlink(self) -> bool:
        return False

    def is_dir(self, **_: Any) -> bool:
        return False

    def stat(self, **_: Any) -> Any:
        return stat(self.path)

    def __fspath__(self) -> str:
        return self.path


class _Entries(list[_Entry]):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def scandir(path: Any) -> _Entries:
    return _Entries(_Entry(Path(f"{path}/{name}")) for name in listdir(path))


def statvfs(path: Any) -> Any:
    if not _is_ours(path):
        return real_os.statvfs(path)
    disk, _ = _where(path)
    room = int(min(disk.capacity, 10**12) - disk.used)
    return SimpleNamespace(f_bavail=max(room, 0), f_frsize=1, f_blocks=room, f_bfree=room)


def exists(path: Any) -> bool:
    if not _is_ours(path):
        return real_os.path.exists(path)
    try:
        stat(path)
    except OSError:
        return False
    return True


def isdir(path: Any) -> bool:
    return exists(path) and real_stat.S_ISDIR(stat(path).st_mode)


class Path(pathlib.PurePosixPath):
    """Stands in for ``pathlib.Path``."""

    def exists(self) -> bool:
        return exists(self)

    def is_file(self) -> bool:
        return exists(self) and real_stat.S_ISREG(stat(self).st_mode)

    def is_dir(self) -> bool:
        return isdir(self)

    def is_symlink(self) -> bool:
        return False

    def stat(self, **_: Any) -> Any:
        return stat(self)

    lstat = stat

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: Any) -> Path:
        rename(self, target)
        return Path(target)

    replace = rename

    def open(self, mode: str = "r", **_: Any) -> Any:
        return open_file(self, mode)

    def read_bytes(self) -> bytes:
        if not _is_ours(self):
            return pathlib.Path(self).read_bytes()
        with open_file(self, "rb") as file:
            return file.read()  # type: ignore[no-any-return]

    def write_bytes(self, data: bytes) -> int:
        with open_file(self, "wb") as file:
            return file.write(data)  # type: ignore[no-any-return]

    def touch(self, **_: Any) -> None:
        close(os_open(self, real_os.O_CREAT | real_os.O_WRONLY))

    def mkdir(self, **_: Any) -> None:
        pass

    def iterdir(self) -> Iterator[Path]:
        return iter([self / name for name in listdir(self)])

    def glob(self, pattern: str) -> Iterator[Path]:
        return iter([path for path in self.iterdir() if path.match(pattern)])

    def resolve(self, strict: bool = False) -> Path:
        return self

    def absolute(self) -> Path:
        return self


class _Raw(io.RawIOBase):
    def __init__(self, descriptor: int, mode: str) -> None:
        self._descriptor = descriptor
        self._reads = "r" in mode or "+" in mode
        self._opened = _open_file(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return write(self._descriptor, data)

    def seek(self, offset: int, whence: int = 0) -> int:
        size = len(self._opened.file.content) if self._opened.file else 0
        self._opened.position = offset + (0, self._opened.position, size)[whence]
        return self._opened.position

    def tell(self) -> int:
        return self._opened.position

    def truncate(self, size: int | None = None) -> int:
        ftruncate(self._descriptor, self._opened.position if size is None else size)
        return size or 0

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._opened.close()


def open_file(path: Any, mode: str = "r", buffering: int = -1, **kwargs: Any) -> Any:
    """Stands in for the built-in ``open``."""
    if isinstance(path, int):
        if path < _FIRST:
            return open(path, mode, buffering, **kwargs)
        descriptor = path
    elif not _is_ours(path):
        return open(path, mode, buffering, **kwargs)
    else:
        flags = real_os.O_RDONLY if mode.startswith("r") else real_os.O_WRONLY | real_os.O_CREAT
        flags |= real_os.O_TRUNC if mode.startswith("w") else 0
        descriptor = os_open(path, flags)
    raw = _Raw(descriptor, mode)
    if buffering == 0:
        return raw
    return io.BufferedReader(raw) if mode.startswith("r") and "+" not in mode else io.BufferedWriter(raw)


def flock(descriptor: Any, operation: int) -> None:
    opened = _open_file(descriptor if isinstance(descriptor, int) else descriptor.fileno())
    holder = _locks.get(opened.disk.host)
    if operation & real_fcntl.LOCK_UN:
        _locks.pop(opened.disk.host, None)
    elif holder is not None and holder is not opened:
        raise BlockingIOError(errno.EAGAIN, "locked")
    else:
        _locks[opened.disk.host] = opened


def modules() -> dict[str, ModuleType]:
    """Return the stand-ins by the name under which the package imports them."""
    calls: dict[str, Any] = {
        call.__name__: call
        for call in (
            close, pwrite, write, pread, read, fsync, ftruncate, truncate, rename, unlink, stat, fstat, listdir,
            scandir, statvfs,
        )
    }  # fmt: skip
    return {
        "os": StandIn(
            real_os,
            open=os_open,
            open_file=open_file,
            replace=rename,
            remove=unlink,
            lstat=stat,
            fdatasync=fsync,
            path=StandIn(real_os.path, exists=exists, isdir=isdir),
            getpid=_pid,
            uname=lambda: SimpleNamespace(nodename="host"),
            register_at_fork=lambda **_: None,
            **calls,
        ),
        "fcntl": StandIn(real_fcntl, flock=flock),
        "pathlib": StandIn(pathlib, Path=Path),
    }


def _pid() -> int:
    return real_os.getpid() if scheduler.current is None else scheduler.current.process.pid
