"""nsqd's data directory as a whole: its lock, the list of topics and channels, and the last ids."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import (
    TEMPORARY,
    Log,
    TopicEntry,
    decode_roster,
    encode_roster,
    files_by_queue,
)
from nsq.daemons.nsqd.disk.syncing import (
    Replacement,
    SyncJob,
    open_regular,
    read_regular,
    replace_link,
)
from nsq.daemons.nsqd.storage.deferred_file import deferred_files
from nsq.errors import ConfigError

_ROSTER = "nsqd.dat"
LAST_TICK = "nsqd.ids.dat"
_TICK = re.compile(rb"([0-9]{1,13})\n").fullmatch
_OLD_ROSTER = re.compile(r"nsqd\.[0-9]+\.dat").fullmatch  # before version 1.0 the node's id was in the name
#: Bytes of one write when testing whether the disk has room.
_PROBE_PIECE = 1024 * 1024


class DataDirectory:
    """nsqd's data directory. Lock it first: the other methods rely on no other program writing there."""

    def __init__(self, path: Path, log: Log) -> None:
        self.path = path
        self._log = log
        self._locked: int | None = None

    def lock(self) -> None:
        """Lock the directory until ``unlock`` or the end of the process. Go's nsqd takes the same lock."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise ConfigError(
                f"data path {str(self.path)!r} cannot be locked ({error.strerror}): another nsqd is "
                "probably using it; stop that one or give this one a --data-path of its own"
            ) from error
        self._locked = descriptor
        try:
            self._check_writable()
            self._refuse_special_files()
            self._replace_links()
        except BaseException:
            self.unlock()
            raise
        self._remove_temporary_files()

    def unlock(self) -> None:
        if self._locked is not None:
            os.close(self._locked)  # closing the descriptor releases the lock
            self._locked = None

    def read_roster(self) -> list[TopicEntry]:
        """Read the topics and channels of the last run; an empty list in a new directory."""
        path = self._roster_path()
        if path is None:
            return []
        try:
            return decode_roster(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r}, the list of topics and channels, cannot be read ({error}): repair it, or "
                "move it away to start without topics (a topic made again gets its messages back)"
            ) from error

    def roster_job(self, topics: Iterable[TopicEntry], version: str) -> SyncJob:
        """Return a job that writes this list. If it fails, the old list stays, also after a power cut."""
        replacement = Replacement(self.path / _ROSTER, encode_roster(topics, version))
        return SyncJob(self.path, {}, replacement=replacement)

    def read_last_tick(self) -> int:
        """Return the last tick whose ids an earlier run may have used; -1 if that is unknown."""
        try:
            content = read_regular(self.path / LAST_TICK)
        except FileNotFoundError:
            return -1
        except OSError as error:
            self._log.warning("%s cannot be read (%s): new ids may repeat old ones", LAST_TICK, error)
            return -1
        if (match := _TICK(content)) is None:
            self._log.warning("%s is damaged: new ids may repeat old ones", LAST_TICK)
            return -1
        return int(match[1])

    def last_tick_job(self, tick: int) -> SyncJob:
        """Return a job that writes the last tick whose ids may be used."""
        return SyncJob(self.path, {}, replacement=Replacement(self.path / LAST_TICK, b"%d\n" % tick))

    def probe(self, size: int) -> None:
        """Raise OSError if the disk has no room for ``size`` bytes."""
        path = self.path / f"{_ROSTER}.probe{TEMPORARY}"
        try:
            with open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                for start in range(0, size, _PROBE_PIECE):
                    file.write(bytes(min(_PROBE_PIECE, size - start)))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)

    def files(self) -> tuple[dict[str, list[str]], dict[str, set[int]]]:
        """Return the names of all files that may belong to queues, by queue, and the numbers of files of
        deferred messages, likewise.
        """
        names = os.listdir(self.path)
        return files_by_queue(names), deferred_files(names)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"data path {str(self.path)!r} cannot be opened: {error.strerror}") from error

    def _check_writable(self) -> None:
        """Refuse a directory without write permission. A full disk is accepted: it may get room later."""
        probe = self.path / f"{_ROSTER}.probe{TEMPORARY}"
        try:
            probe.unlink(missing_ok=True)
            os.close(open_regular(probe, os.O_WRONLY | os.O_CREAT))
            probe.unlink()
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise ConfigError(
                    f"data path {str(self.path)!r} takes no writes ({error.strerror}): "
                    "give it to the user that nsqd runs as, or name another --data-path"
                ) from error

    def _refuse_special_files(self) -> None:
        """Refuse FIFOs, devices and dead links: opening a FIFO would hang, and a device stores nothing."""
        with os.scandir(self.path) as entries:
            found = list(entries)
        for entry in found:
            ours = entry.name.startswith(f"{_ROSTER}.") or entry.name.endswith((".dat", TEMPORARY))
            if ours and entry.is_symlink() and not os.path.exists(entry):
                raise ConfigError(f"{entry.path!r} is a link to nothing: remove it")
            if ours and not entry.is_file():
                raise ConfigError(
                    f"{entry.path!r} is no regular file: remove it, or name another --data-path"
                )

    def _replace_links(self) -> None:
        """Replace links by copies, except those to files that are never written to again."""
        with os.scandir(self.path) as entries:
            links = [entry.name for entry in entries if entry.is_symlink()]
        for name in links:
            if name.endswith((".diskqueue.meta.dat", ".dues.dat")) or deferred_files([name]):
                replace_link(self.path / name)

    def _roster_path(self) -> Path | None:
        path = self.path / _ROSTER
        if path.exists():
            return path
        old = sorted(each for each in self.path.glob("nsqd.*.dat") if _OLD_ROSTER(each.name))
        if len(old) > 1:
            self._log.warning("%d files like %s, reading the first", len(old), old[0])
        return old[0] if old else None

    def _remove_temporary_files(self) -> None:
        for path in self.path.glob(f"nsqd.*{TEMPORARY}"):
            self._log.info("removing %s, which an earlier run has left", path)
            path.unlink(missing_ok=True)
