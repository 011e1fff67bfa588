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
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tests.simulation.network import network
from tests.simulation.scheduler import scheduler
from tests.simulation.threads import stand_in

ROOT = "/disk"
_SECTOR = 512
CHANGES = ("open", "pwrite", "truncate", "rename", "unlink", "fsync")  # what faults are aimed at


class File:
    """An inode: its content, what is on the platters, and the changes since the last fsync."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.content = bytearray()
        self.durable = b""
        self.changes: list[tuple[int, bytes | None]] = []  # (offset, data), or (size, None): cut there

    def change(self, offset: int, data: bytes | None) -> None:
        _apply(self.content, offset, data)
        self.changes.append((offset, data))

    def sync(self) -> None:
        self.durable, self.changes = self._states()[-1], []

    def _states(self) -> list[bytes]:
        """Return the content as it was at the last fsync, and after each change since."""
        content, states = bytearray(self.durable), [self.durable]
        for offset, data in self.changes:
            _apply(content, offset, data)
            states.append(bytes(content))
        return states

    def cut_power(self, chance: random.Random | None) -> None:
        """Leave each sector as of some moment since the last fsync; without ``chance``, every other new."""
        states = self._states()
        if len(states) > 1:
            size = len(chance.choice(states) if chance else states[-1])
            kept = bytearray(size)
            for start in range(0, size, _SECTOR):
                state = chance.choice(states) if chance else states[-1 if start // _SECTOR % 2 == 0 else 0]
                piece = state[start : start + _SECTOR][: size - start]
                kept[start : start + len(piece)] = piece
            self.durable = bytes(kept)
        self.content, self.changes = bytearray(self.durable), []


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    content += bytes(max(0, offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


class Disk:
    """The one directory of a host, and the faults of its operations."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.names: dict[str, File] = {}
        self._states: list[dict[str, File]] = [{}]  # the names at the last fsync, and after each step since
        #: They get an operation and a name before it happens; one that returns an errno has it fail. They may
        #: kill the process.
        self.hooks: list[Callable[[str, str], int]] = []
        self.heal()
        self.operations = 0
        self._inodes: weakref.WeakValueDictionary[int, File] = weakref.WeakValueDictionary()

    def heal(self) -> None:
        """End all faults."""
        self.capacity = math.inf
        self.hooks.clear()

    @property
    def used(self) -> int:
        return sum(len(file.content) for file in self.names.values())

    def before(self, operation: str, name: str) -> None:
        """Called before each operation on a file, with its name: notes it, and has it fail."""
        if operation in CHANGES:
            self.operations += 1
        scheduler.note(operation, name)
        code = next((code for hook in self.hooks.copy() if (code := hook(operation, name))), 0)
        failure = f" fails: {real_os.strerror(code)}" if code else ""
        scheduler.story(f"{self.host} disk: {operation} {name}{failure}")
        if code:
            raise _error(code, f"{ROOT}/{self.host}/{name}")

    def create(self, name: str) -> File:
        """Make a file. Its inode has the first number that no file has: they are used again at once."""
        number = next(number for number in itertools.count(1) if number not in self._inodes)
        file = self._inodes[number] = File(number)
        self.change_names({name: file})
        return file

    def change_names(self, step: dict[str, File | None]) -> None:
        """Give names to files, or take names away (None), in one step."""
        for name, file in step.items():
            self.names.pop(name, None)
            if file is not None:
                self.names[name] = file
        self._states.append(dict(self.names))

    def sync_names(self) -> None:
        self._states = [dict(self.names)]

    def cut_power(self, chance: random.Random | None) -> None:
        """Forget some of what was not fsynced; without ``chance``, every other sector."""
        self.names = chance.choice(self._states) if chance else self._states[-1]
        self.sync_names()
        for file in dict.fromkeys(self.names.values()):
            file.cut_power(chance)


disks: dict[str, Disk] = {}
begin = disks.clear


def _where(path: Any) -> tuple[Disk, str]:
    """Return the disk and the name in its directory; the name is empty for the directory."""
    _, _, host, *rest = str(path).split("/")
    return disks[host], "/".join(rest)


def _file_at(path: Any) -> tuple[Disk, str, File]:
    disk, name = _where(path)
    if name not in disk.names:
        raise _error(errno.ENOENT, path)
    return disk, name, disk.names[name]


def _error(code: int, path: Any) -> OSError:
    return OSError(code, real_os.strerror(code), str(path))


class Open(io.RawIOBase):
    """An open file, or the open directory, whose ``file`` is empty and has no name."""

    def __init__(self, disk: Disk, name: str, file: File) -> None:
        self.disk, self.name, self.file = disk, name, file
        self._position = 0
        self.process = scheduler.me().process
        self._number = network.descriptor(self.process, self)

    # What ``os`` does with descriptors.

    def pread(self, size: int, offset: int) -> bytes:
        self.disk.before("pread", self.name)
        return bytes(self.file.content[offset : offset + size])

    def pwrite(self, data: Any, offset: int) -> int:
        """Write all, or less if the disk fills up or faults are aimed at it, or nothing and raise an error.
        There is no error with a part written: the kernel reports the part instead.
        """
        disk, data, chance = self.disk, bytes(data), scheduler.chance
        disk.before("pwrite", self.name)
        growth = max(0, offset + len(data) - len(self.file.content))
        room = disk.capacity - disk.used
        if growth > room:
            data = data[: max(0, len(data) - growth + max(int(room), 0))]
            if not data:
                scheduler.story(f"{disk.host} disk: {self.name}: no space left")
                raise _error(errno.ENOSPC, self.name)
        if len(data) > 1 and disk.hooks and chance.random() < 0.3:
            data = data[: chance.randint(1, len(data) - 1)]
        scheduler.note("pwrite", offset, data)
        self.file.change(offset, data)
        return len(data)

    def fsync(self) -> None:
        try:
            self.disk.before("fsync", self.name)
        except OSError:
            self.file.changes = []  # they count as clean, and are not on the platters
            raise
        if self.name:
            self.file.sync()
        else:
            self.disk.sync_names()

    def ftruncate(self, size: int) -> None:
        self.disk.before("truncate", self.name)
        self.file.change(size, None)

    def fstat(self) -> Any:
        mode = real_stat.S_IFREG if self.name else real_stat.S_IFDIR
        return SimpleNamespace(st_mode=mode, st_size=len(self.file.content), st_ino=self.file.number)

    def close(self) -> None:
        super().close()
        self.process.descriptors.pop(self._number, None)

    # What ``open`` needs beside that.

    def fileno(self) -> int:
        return self._number

    def readable(self) -> bool:
        return True

    writable = seekable = readable

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, len(self.file.content))[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self.pread(len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        written = self.pwrite(data, self._position)
        self._position += written
        return written


def _opened(descriptor: int) -> Open:
    opened = scheduler.me().process.descriptors.get(descriptor)
    if not isinstance(opened, Open):
        raise _error(errno.EBADF, descriptor)
    return opened


def _by_descriptor(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda descriptor, *arguments: method(_opened(descriptor), *arguments)


def os_open(path: Any, flags: int, _mode: int = 0o777) -> int:
    disk, name = _where(path)
    file = disk.names.get(name) if name else File(0)
    if file is None:
        if not flags & real_os.O_CREAT:
            raise _error(errno.ENOENT, path)
        disk.before("open", name)
        file = disk.create(name)
    elif flags & real_os.O_TRUNC and file.content:
        disk.before("truncate", name)
        file.change(0, None)
    return Open(disk, name, file).fileno()


def open_file(file: Any, mode: str, buffering: int = -1) -> Any:
    """Stands in for the built-in ``open``: of a path to read, or of a descriptor."""
    raw = _opened(file if isinstance(file, int) else os_open(file, real_os.O_RDONLY))
    if buffering == 0:
        return raw
    return io.BufferedWriter(raw) if mode == "wb" else io.BufferedReader(raw)


def rename(source: Any, target: Any) -> None:
    disk, name, file = _file_at(source)
    _, new = _where(target)
    disk.before("rename", f"{name} to {new}")
    disk.change_names({name: None, new: file})


class Path(pathlib.PurePosixPath):
    """Stands in for ``pathlib.Path``."""

    replace = rename

    def exists(self) -> bool:
        disk, name = _where(self)
        return not name or name in disk.names

    is_file = exists

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> Any:
        return SimpleNamespace(st_size=len(_file_at(self)[2].content))

    def unlink(self, missing_ok: bool = False) -> None:
        if self.exists() or not missing_ok:
            disk, name, _ = _file_at(self)
            disk.before("unlink", name)
            disk.change_names({name: None})

    def read_bytes(self) -> bytes:
        with open_file(self, "rb") as file:
            return file.read()  # type: ignore[no-any-return]

    def glob(self, pattern: str) -> Iterator[Path]:
        return iter([self / name for name in _where(self)[0].names if pathlib.PurePath(name).match(pattern)])


def modules() -> dict[str, Any]:
    """Return the stand-ins by the name under which the package imports them."""
    methods = (Open.close, Open.pread, Open.pwrite, Open.fsync, Open.ftruncate, Open.fstat)
    return {
        "os": stand_in(
            real_os,
            open=os_open,
            open_file=open_file,
            rename=rename,
            replace=rename,
            listdir=lambda path: list(_where(path)[0].names),
            scandir=lambda path: contextlib.nullcontext(Path(path).glob("*")),
            path=stand_in(real_os.path, isdir=lambda path: not _where(path)[1]),
            getpid=lambda: scheduler.current.process.pid if scheduler.current else real_os.getpid(),
            uname=lambda: SimpleNamespace(nodename="host"),
            register_at_fork=lambda **_: None,
            **{method.__name__: _by_descriptor(method) for method in methods},
        ),
        "fcntl": stand_in(real_fcntl, flock=lambda *_: None),  # no directory has two nsqds
        "pathlib": stand_in(pathlib, Path=Path),
    }
