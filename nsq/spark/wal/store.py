"""What a write-ahead log can do, wherever it is kept: a directory (``directory.py``) or an object store
(``objects.py``).

    <wal>/identity.json             which log this is; a checkpoint remembers it
    <wal>/subject.json              which topic and channel it is for
    <wal>/readers/<name>.json       how far a query has committed; see ``readers``
    <wal>/readers/<name>.lock       held by the query that reads under this name
    <wal>/<receiver>/…              one folder per life of a receiver, which alone writes there

Messages become durable batch by batch in a receiver's ``Log``. Every now and then the log is *rolled*: what
it holds is sealed into a segment, which never changes again and is read until it is deleted. Segments of one
receiver are numbered from 1, without holes, so "everything up to segment 7 of that receiver" is a position.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import unquote

from nsq.errors import ConfigError, WalError, WalForeign
from nsq.spark.wal import names, readers
from nsq.spark.wal.names import Segment, Subject
from nsq.spark.wal.readers import ReaderState

if TYPE_CHECKING:
    from nsq.spark.wal.directory import Directory, DirectoryLog, DirectoryWal
    from nsq.spark.wal.objects import Bucket, HeldLease, ObjectLog, ObjectWal
    from nsq.spark.wal.ownership import FileLock

T = TypeVar("T")


#: What else a log can do is told in ``directory.py``; an object store's does the same.
Wal: TypeAlias = "DirectoryWal | ObjectWal"
#: Where one receiver writes. Not for two threads at once.
Log: TypeAlias = "DirectoryLog | ObjectLog"
#: A lock that ends with its process.
Claim: TypeAlias = "FileLock | HeldLease"


class BaseWal:
    """What logs do alike wherever they are kept: say which log it is, what for, and who reads it."""

    def __init__(self, place: Directory | Bucket, location: str) -> None:
        self.location = location
        self._place = place

    def prepare(self, subject: Subject | None = None) -> str:
        """Make it where it is not there yet; its identity. Raises WalForeign when it is for another
        ``subject``; a log that does not say is for this one from now on.
        """
        place = self._place
        place.make_folder("")
        new = self.identity() is None
        if new:
            # Where there was none, and something else is, another process may just have prepared it.
            used = any(not name.startswith(".") for name in place.names(""))
            if used and self.identity() is None:
                raise WalForeign(f"{place.path('')} is no log, and not empty: give it a folder of its own")
            place.put(names.IDENTITY, names.encode_identity(uuid.uuid4().hex, time.time()), once=True)
        if subject is not None:
            there = self.subject()
            subject.check(there, str(place.path("")))
            if there is None or subject.extends(there):
                place.put(names.SUBJECT, names.encode_subject(subject), once=there is None)
                new = True
        if new:
            self._settle()
        if subject is not None:
            subject.check(self.subject(), str(place.path("")))
        return self.identity() or ""

    def _settle(self) -> None:
        """Wait until it is certain whose files count, of several processes that prepare the log at once."""

    def identity(self) -> str | None:
        """None when it has not been prepared."""
        return self._read(names.IDENTITY, names.decode_identity)

    def subject(self) -> Subject | None:
        """None in a log that no query or receiver has used yet."""
        return self._read(names.SUBJECT, names.decode_subject)

    def _read(self, name: str, decode: Callable[[bytes, str], T]) -> T | None:
        text = self._place.get(name)
        return None if text is None else decode(bytes(text), str(self._place.path(name)))

    def readers(self) -> dict[str, ReaderState]:
        """All that have ever read, and were not removed."""
        found = {}
        for file in self._place.names(readers.FOLDER):
            if name := readers.name_of(file):
                state = self._read(readers.file_of(name), readers.decode)
                if state is not None:
                    found[name] = state
        return found

    def save_reader(self, reader: str, state: ReaderState) -> None:
        """Durable on return, in one step where the place allows it."""
        self._place.make_folder(readers.FOLDER)
        self._place.put(readers.file_of(reader), readers.encode(state))

    def remove_reader(self, reader: str) -> None:
        """Forget how far it has read: it holds up no deletion any more."""
        self._place.delete(readers.file_of(reader))

    def delete(self, segments: Iterable[Segment]) -> None:
        """Those that are gone already are left out."""
        for segment in segments:
            self._place.delete(names.path_of(segment))

    def _check_new(self, receiver: str) -> None:
        """Raises WalError for what cannot be the name of a new receiver, or where there is no log."""
        if not names.is_receiver(receiver):
            raise WalError(f"{receiver!r} is no name for a receiver: take one from names.new_receiver()")
        if self.identity() is None:
            raise WalError(f"{self._place.path('')} is no log: it has to be prepared first")
        if receiver in self._place.names(""):
            raise WalError(f"{self._place.path(receiver)} is there already: a receiver's name must be new")


# From the option ``wal`` to a log: a path or file:// is a directory, every other URI an object store


_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def directory_of(location: str) -> Path | None:
    """The directory that a location names; None when it names an object store."""
    found = _URI.match(location)
    if found is None:
        return Path(location).expanduser()
    if found[1].lower() != "file":
        return None
    host, slash, path = location[len(found[0]) :].removeprefix("//").partition("/")
    if not slash or host not in ("", "localhost"):
        raise ConfigError(f"wal is {location!r}, but a file URI looks like file:///absolute/path")
    return Path("/" + unquote(path).lstrip("/"))


def shown(location: str) -> str:
    """For people and log files: without what a URI may hold of credentials."""
    if directory_of(location) is not None:
        return location
    scheme, _, rest = location.partition(":")
    return f"{scheme}://{rest.removeprefix('//').partition('?')[0].rpartition('@')[2]}"


def open_wal(location: str, *, fsync: bool = True) -> Wal:
    """The log at that place; ``prepare`` makes it. ``fsync`` concerns directories only."""
    if not location.strip():
        raise ConfigError("wal is empty, but must be a directory or a URI of pyarrow.fs")
    directory = directory_of(location)
    if directory is not None:
        from nsq.spark.wal.directory import DirectoryWal

        return DirectoryWal(directory.absolute(), fsync=fsync)
    from nsq.spark.wal.objects import ObjectWal

    return ObjectWal.at(location)
