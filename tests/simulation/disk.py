"""A disk in memory, and what the package gets in place of ``os``, ``fcntl``, ``pathlib.Path`` and ``open``.

The content that a program sees and the content on the platters are kept apart. After a power cut each sector
of a file has its state as of some moment since the file's last fsync, its size too, and the names are those
as of some moment since the last fsync of the directory. A failed fsync behaves as on Linux: the pages count
as clean, so the next fsync succeeds and does not write them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl as real_fcntl
import io
import itertools
import math
import os as real_os
import pathlib
import random
import stat as real_stat
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tests.simulation.network import network
from tests.simulation.scheduler import scheduler
from tests.simulation.threads import stand_in

ROOT = "/disk"
_SECTOR = 512
#: Operations that change something: faults are aimed at these.
CHANGES = ("open", "pwrite", "truncate", "rename", "unlink", "fsync")


class File:
    """An inode: its content, what is on the platters, and the changes since the last fsync."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(File._numbers)
        self.content = bytearray()
        self.durable = b""
        self.changes: list[tuple[int, bytes]] = []  # (offset, data), or (size, b"") for a truncation

    def write(self, offset: int, data: bytes) -> None:
        _apply(self.content, offset, data)
        self.changes.append((offset, data))

    def truncate(self, size: int) -> None:
        self.write(size, b"")

    def sync(self) -> None:
        durable = bytearray(self.durable)
        for offset, data in self.changes:
            _apply(durable, offset, data)
        self.durable, self.changes = bytes(durable), []

    def forget_changes(self) -> None:
        """An fsync has failed: the changes count as clean, and are not on the platters."""
        self.changes = []

    def cut_power(self, chance: random.Random | None) -> None:
        states = [self.durable]
        content = bytearray(self.durable)
        for offset, data in self.changes:
            _apply(content, offset, data)
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


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    content += bytes(max(0, offset - len(content)))
    if data:
        content[offset : offset + len(data)] = data
    else:
        del content[offset:]


class Disk:
    """The one directory of a host, and the faults of its operations."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.names: dict[str, File] = {}
        self._durable_names: dict[str, File] = {}
        self._journal: list[dict[str, File | None]] = []  # each step happens whole, or not
        self.capacity = math.inf
        self.fail: Callable[[str, str], int] = _works
        """Gets an operation and a name before it happens; returns an errno, or 0. It may kill the process."""
        self.short_writes = 0.0
        self.operations = 0

    def heal(self) -> None:
        """End all faults."""
        self.capacity, self.short_writes, self.fail = math.inf, 0.0, _works

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
        _rename(self.names, step)
        self._journal.append(step)

    def sync_names(self) -> None:
        self._durable_names, self._journal = dict(self.names), []

    def cut_power(self, chance: random.Random | None) -> None:
        """Forget some of what was not fsynced; without ``chance``, every other sector."""
        names = dict(self._durable_names)
        for step in self._journal[: chance.randint(0, len(self._journal)) if chance else None]:
            _rename(names, step)
        self.names = names
        self.sync_names()
        _locks.pop(self.host, None)
        for file in {id(file): file for file in names.values()}.values():
            file.cut_power(chance)


def _rename(names: dict[str, File], step: dict[str, File | None]) -> None:
    for name, file in step.items():
        names.pop(name, None)
        if file is not None:
            names[name] = file


def _works(_operation: str, _name: str) -> int:
    return 0


disks: dict[str, Disk] = {}


def begin() -> None:
    disks.clear()


class _Open(io.RawIOBase):
    """An open file, or the open directory (``file`` is None)."""

    def __init__(self, disk: Disk, name: str, file: File | None) -> None:
        self.disk, self.name, self.file = disk, name, file
        self._position = 0
        self._process = scheduler.me().process
        self._number = network.descriptor(self._process, self)

    def fileno(self) -> int:
        return self._number

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        assert self.file is not None
        self._position = offset + (0, self._position, len(self.file.content))[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = pread(self._number, len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        written = pwrite(self._number, data, self._position)
        self._position += written
        return written

    def close(self) -> None:
        super().close()
        self._process.descriptors.pop(self._number, None)
        if self.file is None and _locks.get(self.disk.host) is self:
            del _locks[self.disk.host]


_locks: dict[str, _Open] = {}  # by host: who has the lock of its directory


def _where(path: Any) -> tuple[Disk, str]:
    """Return the disk and the name in its directory; the name is empty for the directory."""
    _, _, host, *rest = str(path).split("/")
    disk = disks.get(host)
    if disk is None:
        raise _error(errno.ENOENT, path)
    return disk, "/".join(rest)


def _error(code: int, path: Any) -> OSError:
    return OSError(code, real_os.strerror(code), str(path))


def _file_at(path: Any) -> tuple[Disk, str, File]:
    disk, name = _where(path)
    if name not in disk.names:
        raise _error(errno.ENOENT, path)
    return disk, name, disk.names[name]


def _opened(descriptor: int) -> _Open:
    opened = scheduler.me().process.descriptors.get(descriptor)
    if not isinstance(opened, _Open):
        raise _error(errno.EBADF, descriptor)
    return opened


def _opened_file(descriptor: int) -> tuple[Disk, str, File]:
    opened = _opened(descriptor)
    assert opened.file is not None
    return opened.disk, opened.name, opened.file


def os_open(path: Any, flags: int, mode: int = 0o777) -> int:
    disk, name = _where(path)
    if not name:
        return _Open(disk, name, None).fileno()
    file = disk.names.get(name)
    if file is None:
        if not flags & real_os.O_CREAT:
            raise _error(errno.ENOENT, path)
        disk.before("open", name)
        file = File()
        disk.change_names({name: file})
    elif flags & real_os.O_TRUNC and file.content:
        disk.before("truncate", name)
        file.truncate(0)
    return _Open(disk, name, file).fileno()


def close(descriptor: int) -> None:
    _opened(descriptor).close()


def pwrite(descriptor: int, data: Any, offset: int) -> int:
    disk, name, file = _opened_file(descriptor)
    data = bytes(data)
    disk.before("pwrite", name)
    growth = max(0, offset + len(data) - len(file.content))
    room = disk.capacity - disk.used
    if growth > room:
        data = data[: max(0, len(data) - growth + max(int(room), 0))]
        if not data:
            scheduler.story(f"{disk.host} disk: {name}: no space left")
            raise _error(errno.ENOSPC, name)
    if len(data) > 1 and disk.short_writes and scheduler.chance.random() < disk.short_writes:
        data = data[: scheduler.chance.randint(1, len(data) - 1)]
    scheduler.note("pwrite", offset, data)
    file.write(offset, data)
    return len(data)


def pread(descriptor: int, size: int, offset: int) -> bytes:
    disk, name, file = _opened_file(descriptor)
    disk.before("pread", name)
    return bytes(file.content[offset : offset + size])


def fsync(descriptor: int) -> None:
    opened = _opened(descriptor)
    opened.disk.before("fsync", opened.name)
    if opened.file is None:
        opened.disk.sync_names()
    else:
        opened.file.sync()


def ftruncate(descriptor: int, size: int) -> None:
    disk, name, file = _opened_file(descriptor)
    disk.before("truncate", name)
    file.truncate(size)


def truncate(path: Any, size: int) -> None:
    disk, name, file = _file_at(path)
    disk.before("truncate", name)
    file.truncate(size)


def rename(source: Any, target: Any) -> None:
    disk, name, file = _file_at(source)
    _, new = _where(target)
    disk.before("rename", f"{name} to {new}")
    disk.change_names({name: None, new: file})


def unlink(path: Any) -> None:
    disk, name, _ = _file_at(path)
    disk.before("unlink", name)
    disk.change_names({name: None})


def stat(path: Any) -> Any:
    return _status(_file_at(path)[2] if _where(path)[1] else None)


def fstat(descriptor: int) -> Any:
    return _status(_opened(descriptor).file)


def _status(file: File | None) -> Any:
    if file is None:
        return SimpleNamespace(st_mode=real_stat.S_IFDIR | 0o700, st_size=0, st_ino=0)
    return SimpleNamespace(st_mode=real_stat.S_IFREG | 0o600, st_size=len(file.content), st_ino=file.number)


def listdir(path: Any) -> list[str]:
    return list(_where(path)[0].names)


def scandir(path: Any) -> contextlib.AbstractContextManager[list[Any]]:
    entries = [
        SimpleNamespace(name=name, path=f"{path}/{name}", is_file=lambda: True, is_symlink=lambda: False)
        for name in listdir(path)
    ]
    return contextlib.nullcontext(entries)


def isdir(path: Any) -> bool:
    return not _where(path)[1]


class Path(pathlib.PurePosixPath):
    """Stands in for ``pathlib.Path``."""

    def exists(self) -> bool:
        disk, name = _where(self)
        return not name or name in disk.names

    is_file = exists

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> Any:
        return stat(self)

    def unlink(self, missing_ok: bool = False) -> None:
        if self.exists() or not missing_ok:
            unlink(self)

    def replace(self, target: Any) -> None:
        rename(self, target)

    def read_bytes(self) -> bytes:
        with open_file(self, "rb") as file:
            return file.read()  # type: ignore[no-any-return]

    def touch(self) -> None:
        close(os_open(self, real_os.O_CREAT | real_os.O_WRONLY))

    def glob(self, pattern: str) -> Iterator[Path]:
        return iter([self / name for name in listdir(self) if pathlib.PurePath(name).match(pattern)])


def open_file(file: Any, mode: str = "r", buffering: int = -1) -> Any:
    """Stands in for the built-in ``open``."""
    if not isinstance(file, int) and not str(file).startswith(ROOT):
        return open(file, mode, buffering)
    writes = mode.startswith("w")
    if not isinstance(file, int):
        file = os_open(
            file, real_os.O_WRONLY | real_os.O_CREAT | real_os.O_TRUNC if writes else real_os.O_RDONLY
        )
    raw = _opened(file)
    if buffering == 0:
        return raw
    return io.BufferedWriter(raw) if writes else io.BufferedReader(raw)


def flock(descriptor: int, _operation: int) -> None:
    """Lock the directory, for this process alone, or raise an error at once."""
    opened = _opened(descriptor)
    if _locks.setdefault(opened.disk.host, opened) is not opened:
        raise BlockingIOError(errno.EAGAIN, "locked")


def modules() -> dict[str, Any]:
    """Return the stand-ins by the name under which the package imports them."""
    calls = (
        close, pwrite, pread, fsync, ftruncate, truncate, rename, unlink, stat, fstat, listdir, scandir,
    )  # fmt: skip
    return {
        "os": stand_in(
            real_os,
            open=os_open,
            open_file=open_file,
            replace=rename,
            path=stand_in(real_os.path, isdir=isdir),
            getpid=_pid,
            uname=lambda: SimpleNamespace(nodename="host"),
            register_at_fork=lambda **_: None,
            **{call.__name__: call for call in calls},
        ),
        "fcntl": stand_in(real_fcntl, flock=flock),
        "pathlib": stand_in(pathlib, Path=Path),
    }


def _pid() -> int:
    return real_os.getpid() if scheduler.current is None else scheduler.current.process.pid
