"""One topic's files, as ``nsq_to_file`` writes them: names, rotation, closing.

It never opens a file that another process writes, and never replaces a file. After a kill at any moment all
synced records are complete. It knows no consumer.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from nsq.errors import ConfigError
from nsq.fsync import sync_path
from nsq.tools.program import duration, flag, log

_REV = "<REV>"
_PID = "<PID>"
_KNOWN_DIRECTIVE = re.compile("%[aAbBdHIjmMpSUwWyYzZ%]")
_DIRECTIVE = re.compile(f"{_KNOWN_DIRECTIVE.pattern}|%")
#: Levels of an older flag: fastest, best, default.
_GZIP_COMPRESSION = {1: 1, 2: 9, 3: 6}


@dataclass(frozen=True, kw_only=True)
class ArchiveFlags:
    output_dir: str = flag("/tmp", "directory to write files to")
    work_dir: str = flag("", "directory for files that are being written (default: output-dir)")
    datetime_format: str = flag("%Y-%m-%d_%H", "strftime-compatible format for <DATETIME>")
    filename_format: str = flag(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "output filename format (<TOPIC>, <HOST>, <PID>, <DATETIME>, <REV> are replaced)",
    )
    host_identifier: str = flag(
        "", "value of <HOST>; <SHORT_HOST> and <HOSTNAME> are replaced (default: short host name)"
    )
    gzip: bool = flag(False, "gzip output file")
    gzip_level: int = flag(6, "gzip compression level (1-9)", low=1, high=9)
    gzip_compression: int = flag(0, "", deprecated="use --gzip-level")
    skip_empty_files: bool = flag(False, "skip writing empty files")
    rotate_size: int = flag(0, "rotate the file when it grows bigger than this many bytes (0 for no limit)")
    rotate_interval: float = duration(0.0, "rotate the file every duration (0 for never)")

    def check_files(self) -> None:
        if self.gzip_compression and self.gzip_compression not in _GZIP_COMPRESSION:
            raise ConfigError(f"--gzip-compression is {self.gzip_compression}, must be 1, 2 or 3")
        if self.needs_revision and _REV not in self.filename_format.replace("<GZIPREV>", _REV):
            raise ConfigError(
                "--filename-format needs <REV> with --gzip, --rotate-size, --rotate-interval or --work-dir"
            )

    @property
    def unknown_directives(self) -> bool:
        return "%" in _KNOWN_DIRECTIVE.sub("", self.datetime_format)

    @property
    def hands_over(self) -> bool:
        return bool(self.work_dir) and os.path.abspath(self.work_dir) != os.path.abspath(self.output_dir)

    @property
    def needs_revision(self) -> bool:
        return self.gzip or self.rotate_size > 0 or self.rotate_interval > 0 or self.hands_over


class Names:
    """The names of a topic's files at a given time, with ``<REV>`` in place of the revision."""

    def __init__(self, options: ArchiveFlags, topic: str) -> None:
        host = os.uname().nodename
        short = host.partition(".")[0]
        identifier = options.host_identifier or "<SHORT_HOST>"
        identifier = identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", host)
        name = options.filename_format.replace("<GZIPREV>", _REV)
        if not options.needs_revision:
            name = name.replace(_REV, "")
        name = name.replace("<TOPIC>", topic).replace("<HOST>", identifier)
        if ".." in name.split("/"):
            raise ConfigError(f"topic {topic}: its file would be outside of --output-dir: {name}")
        self._format = name + ".gz" if options.gzip and not name.endswith(".gz") else name
        # A percent sign of an unknown directive stays, as with Go's program; strftime gets it as %%.
        self._datetime_format = _DIRECTIVE.sub(
            lambda found: "%%" if found[0] == "%" else found[0], options.datetime_format
        )
        self._second = -1
        self._name = ""

    def at(self, seconds: float) -> str:
        second = int(seconds)
        if second != self._second:
            self._second = second
            written = time.strftime(self._datetime_format, time.localtime(second))
            self._name = self._format.replace(_PID, str(os.getpid())).replace("<DATETIME>", written)
        return self._name

    def templates(self, directory: str) -> Iterator[tuple[str, int]]:
        """Yield the existing files of this topic, of every process, each as a name with ``<REV>`` and its
        revision.
        """
        pieces = re.split("(<REV>|<DATETIME>|<PID>)", self._format)
        kinds = {_REV: r"-(\d{6,})", "<DATETIME>": ".*", _PID: r"\d+"}
        pattern = re.compile("".join(kinds.get(piece) or re.escape(piece) for piece in pieces))
        for folder, _, files in os.walk(directory):
            for file in files:
                name = os.path.relpath(os.path.join(folder, file), directory)
                found = pattern.fullmatch(name)
                if found is not None:
                    yield name[: found.start(1) - 1] + _REV + name[found.end(1) :], int(found[1])


class Archive:
    """One topic's files, one of which is open. For one thread; its caller handles OSError.

    The open file is locked. So an unlocked file in the work directory was left by a killed process.
    """

    def __init__(self, options: ArchiveFlags, topic: str, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._names = Names(options, topic)
        self._clock = clock
        self._level = _GZIP_COMPRESSION.get(options.gzip_compression, options.gzip_level)
        self._output = options.output_dir
        self._work = options.work_dir if options.hands_over else options.output_dir
        self._descriptor = -1
        self._name = ""
        self._revision = 0
        self.path = ""  # of the open file, or the last one
        self._opened_at = 0.0
        self._size = 0  # before compression, including lines that are not written yet
        self._synced_size = 0  # of the file
        self._lines: list[bytes] = []  # not written yet

    @property
    def open(self) -> bool:
        return self._descriptor >= 0

    @property
    def due(self) -> bool:
        """Whether the next record belongs in another file."""
        now, interval = self._clock(), self._options.rotate_interval
        return (
            not self.open
            or self._names.at(now) != self._name
            # An age below 0: the clock was set back, perhaps by hours.
            or (interval > 0 and not 0 <= now - self._opened_at <= interval)
            or self.full
            or self._removed
        )

    @property
    def full(self) -> bool:
        return 0 < self._options.rotate_size < self._size

    @property
    def _removed(self) -> bool:
        return os.fstat(self._descriptor).st_nlink == 0

    def append(self, body: bytes) -> None:
        self._lines.append(body)
        self._size += len(body) + 1

    def write(self) -> None:
        """Write appended lines, so that `tail -f` shows them. With gzip only a sync writes."""
        if self._lines and not self._options.gzip:
            self._put(b"\n".join(self._lines) + b"\n")
            self._lines.clear()

    def sync(self) -> None:
        """Return when every appended line is written and fsynced."""
        self.write()
        if self._lines:
            # One write for a whole member, so that a kill rarely leaves an incomplete one.
            self._put(gzip.compress(b"\n".join(self._lines) + b"\n", self._level))
            self._lines.clear()
        if self.open:
            os.fsync(self._descriptor)
            status = os.fstat(self._descriptor)
            if not status.st_nlink and status.st_size > self._synced_size:
                raise FileNotFoundError(errno.ENOENT, "the file was removed while it was being written")
            self._synced_size = status.st_size

    def rotate(self) -> None:
        """Close the open file, and open the next one."""
        self.close()
        self._open_next(self._names.at(self._clock()))

    def close(self) -> None:
        """Sync the open file, move it to the output directory, and close it."""
        if not self.open:
            return
        self.sync()
        if self._removed:
            log.warning("%s was removed", self.path)
            self._release()
            return
        if self._options.gzip and not self._synced_size:
            self._put(gzip.compress(b"", self._level))
            os.fsync(self._descriptor)
        if self._options.hands_over:
            self._revision = hand_over(self.path, self._output, self._name, self._revision)
        self._release()

    def give_up(self) -> None:
        """After an error: cut off unsynced data, unless other processes append too; remove an empty file."""
        self._lines.clear()
        if not self.open:
            return
        with suppress(OSError):
            if self._options.needs_revision:
                os.ftruncate(self._descriptor, self._synced_size)
                if not self._synced_size:
                    os.unlink(self.path)
        self._release()

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    # Opening

    def _open_next(self, name: str) -> None:
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        self._opened_at = self._clock()
        last_seen = ""
        while True:
            path = in_directory(self._work, name, self._revision)
            make_directory(os.path.dirname(path))
            if self._options.hands_over and os.path.lexists(in_directory(self._output, name, self._revision)):
                log.warning(
                    "output file already exists: %s", in_directory(self._output, name, self._revision)
                )
            elif self._open(path):
                break
            last_seen = path
            self._revision += 1
        if self._options.gzip and last_seen:
            mend(last_seen)
        log.info("opening %s", path)

    def _open(self, path: str) -> bool:
        """Open the file; return False if another process has it open, or if it is full."""
        exclusive = self._options.gzip or self._options.rotate_interval > 0
        try:
            descriptor = os.open(
                path,
                os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0),
                0o666,
            )
        except FileExistsError:
            log.debug("working file already exists: %s", path)
            return False
        try:
            if self._options.needs_revision and not locked(descriptor, path):
                os.close(descriptor)
                return False
            size = os.fstat(descriptor).st_size
            if 0 < self._options.rotate_size < size:
                log.info("%s has %d bytes (> %d), rotating", path, size, self._options.rotate_size)
                os.close(descriptor)
                return False
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # A process was killed in the middle of a record, which nsqd delivers again: end that line.
                os.write(descriptor, b"\n")
            sync_path(os.path.dirname(path) or ".")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self.path = descriptor, path
        self._size = self._synced_size = size
        return True

    # After a kill

    def adopt(self) -> None:
        """Move files that no process has open from the work directory to the output directory."""
        if not self._options.hands_over:
            return
        for template, revision in list(self._names.templates(self._work)):
            path = in_directory(self._work, template, revision)
            descriptor = -1
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                if not locked(descriptor, path):
                    continue
                if self._options.gzip:
                    cut_to_whole_members(descriptor)
                if os.fstat(descriptor).st_size:
                    log.warning("%s was left by a process that was killed", path)
                    hand_over(path, self._output, template, revision)
                else:
                    os.unlink(path)
            except FileNotFoundError:  # its process has just moved it
                pass
            finally:
                if descriptor >= 0:
                    os.close(descriptor)


def in_directory(directory: str, name: str, revision: int) -> str:
    return f"{directory}/{name.replace(_REV, f'-{revision:06d}')}"


def locked(descriptor: int, path: str) -> bool:
    """Lock a file; return whether we hold the lock, and the path still leads to this file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.warning("another process writes %s", path)
        return False
    except OSError as error:  # a file system without locks
        log.debug("%s cannot be locked: %s", path, error)
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def hand_over(path: str, directory: str, name: str, revision: int) -> int:
    """Move a file to the directory, under the first free revision; return that.

    Uses a link, which fails if the target exists; a rename would replace it.
    """
    while True:
        target = in_directory(directory, name, revision)
        make_directory(os.path.dirname(target))
        try:
            os.link(path, target)
            break
        except FileExistsError:
            if os.path.samefile(path, target):  # killed between link and unlink
                break
            log.debug("output file already exists: %s", target)
            revision += 1
    sync_path(os.path.dirname(target) or ".")
    os.unlink(path)
    log.info("moved %s to %s", path, target)
    return revision


def mend(path: str) -> None:
    """Cut off an incomplete gzip member, unless another process has the file open."""
    with suppress(OSError), open(path, "r+b") as file:
        if locked(file.fileno(), path):
            cut_to_whole_members(file.fileno())


def cut_to_whole_members(descriptor: int) -> None:
    with open(os.dup(descriptor), "r+b") as file:
        file.seek(0)
        end = end_of_members(file)
        if end < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, end)
            os.fsync(descriptor)


def end_of_members(file: BinaryIO) -> int:
    """Return where the last complete gzip member ends."""
    end = position = 0
    data = b""
    decoder = zlib.decompressobj(31)
    while data or (data := file.read(16 * 1024)):
        try:
            decoder.decompress(data)
        except zlib.error:
            break
        position += len(data)
        data = b""
        if decoder.eof:
            data = decoder.unused_data
            position -= len(data)
            end = position
            decoder = zlib.decompressobj(31)
    return end


def make_directory(path: str) -> None:
    """Make the directory and its parents, and sync each."""
    if path and not os.path.isdir(path):
        above = os.path.dirname(path)
        make_directory(above)
        with suppress(FileExistsError):
            os.mkdir(path, 0o770)
        sync_path(above or ".")
