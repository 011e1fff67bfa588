"""nsqd's data directory as a whole: its lock, and what must not be in it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import TEMPORARY, Log, files_by_queue
from nsq.daemons.nsqd.disk.syncing import open_regular, replace_link
from nsq.daemons.nsqd.storage.deferred_file import file_numbers
from nsq.errors import ConfigError

#: The beginning of the names of files that belong to no queue.
_OURS = "nsqd.dat."
_PROBE = f"{_OURS}probe{TEMPORARY}"
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

    def probe(self, size: int) -> None:
        """Raise OSError if the disk has no room for ``size`` bytes."""
        path = self.path / _PROBE
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
        return files_by_queue(names), file_numbers(names)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"data path {str(self.path)!r} cannot be opened: {error.strerror}") from error

    def _check_writable(self) -> None:
        """Refuse a directory without write permission. A full disk is accepted: it may get room later."""
        probe = self.path / _PROBE
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
            ours = entry.name.startswith(_OURS) or entry.name.endswith((".dat", TEMPORARY))
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
            if name.endswith((".diskqueue.meta.dat", ".dues.dat")) or file_numbers([name]):
                replace_link(self.path / name)

    def _remove_temporary_files(self) -> None:
        for path in self.path.glob(f"nsqd.*{TEMPORARY}"):
            self._log.info("removing %s, which an earlier run has left", path)
            path.unlink(missing_ok=True)
