"""The data directory of one nsqd: whose it is, which topics and channels it had, which queues lie in it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from nsq.errors import ConfigError

from . import roster
from .layout import TEMPORARY, Layout, files_by_queue, queue_name, queue_names, topic_and_channel
from .log import Log
from .roster import TopicEntry
from .syncing import replace_content, sync_file

_ROSTER = "nsqd.dat"
_OLD_ROSTERS = "nsqd.[0-9]*.dat"  # before version 1.0 the node's id was in the name


class DataDirectory:
    """Lock it before anything else; every other method relies on nobody else writing there."""

    def __init__(self, path: Path, log: Log) -> None:
        self.path = path
        self._log = log
        self._locked: int | None = None

    def lock(self) -> None:
        """Make it ours until ``unlock`` or the end of the process. A Go nsqd asks for the same lock."""
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
        self._check_writable()
        self._remove_temporary_files()

    def unlock(self) -> None:
        if self._locked is not None:
            os.close(self._locked)  # the last descriptor of an open file takes its lock along
            self._locked = None

    def read_roster(self) -> list[TopicEntry]:
        """The topics and channels of the last run; empty in a new directory."""
        path = self._roster_path()
        if path is None:
            return []
        try:
            return roster.decode(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r}, the list of topics and channels, cannot be read ({error}): repair it, or "
                "move it away to start with no topics but those whose queues are on disk"
            ) from error

    def write_roster(self, topics: Iterable[TopicEntry], version: str) -> None:
        """After this the directory has this list, or on OSError the one before, also across a power cut."""
        replace_content(self.path / _ROSTER, roster.encode(topics, version))

    def files(self) -> dict[str, list[str]]:
        """All that could be files of queues, by the queue's name."""
        return files_by_queue(os.listdir(self.path))

    def queues(self) -> list[tuple[str, str | None]]:
        """Topic and channel (None for the topic's own) of every queue with files here."""
        return [topic_and_channel(name) for name in queue_names(os.listdir(self.path))]

    def delete_topic(self, topic: str) -> None:
        """Remove the files of the topic's queue and of all its channels'. No such queue may be open."""
        names = [queue_name(*queue) for queue in self.queues() if queue[0] == topic]
        self._delete(names or [topic])

    def delete_channel(self, topic: str, channel: str) -> None:
        """Remove the files of the channel's queue, which may not be open."""
        self._delete([queue_name(topic, channel)])

    def _delete(self, names: Iterable[str]) -> None:
        layouts = [Layout(name) for name in names]
        for file in os.listdir(self.path):
            if any(_belongs(file, layout) for layout in layouts):
                (self.path / file).unlink(missing_ok=True)
        sync_file(self.path)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"data path {str(self.path)!r} cannot be opened: {error.strerror}") from error

    def _check_writable(self) -> None:
        """A disk that is full takes writes again some day; one that may not be written to does not."""
        probe = self.path / f"{_ROSTER}.probe{TEMPORARY}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                self.unlock()
                raise ConfigError(
                    f"data path {str(self.path)!r} takes no writes ({error.strerror}): "
                    "give it to the user that nsqd runs as, or name another --data-path"
                ) from error

    def _roster_path(self) -> Path | None:
        path = self.path / _ROSTER
        if path.exists():
            return path
        old = sorted(self.path.glob(_OLD_ROSTERS))
        if len(old) > 1:
            self._log.warning("%d files like %s, reading the first", len(old), old[0])
        return old[0] if old else None

    def _remove_temporary_files(self) -> None:
        for path in self.path.glob(f"{_ROSTER}.*{TEMPORARY}"):
            self._log.info("removing %s, which was never finished", path)
            path.unlink(missing_ok=True)


def _belongs(file: str, layout: Layout) -> bool:
    return file == layout.meta or layout.is_temporary(file) or layout.number(file) is not None
