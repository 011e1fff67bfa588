"""The common part of all write-ahead logs, in a directory (``directory.py``) or an object store
(``shared.py``), and ``open_wal``.

    <wal>/identity.json             the log's unique id, which Spark's checkpoint remembers
    <wal>/subject.json              the log's topics and channel
    <wal>/readers/<name>.json       how far a query has committed; see ``readers``
    <wal>/readers/<name>.lock       locked by the query that reads under this name
    <wal>/<receiver>/…              one folder per receiver and topic, new after each restart; one writer

A receiver appends batches to its ``Log``, and fsyncs each one. From time to time it *rolls* the log: it seals
the rows into a segment, which never changes and which queries read until it is deleted. A receiver's segments
are numbered from 1 without gaps, so "everything up to segment 7 of that receiver" is a position.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import unquote

from nsq.errors import ConfigError, WalError, WalForeign
from nsq.spark.wal import names, readers
from nsq.spark.wal.names import Subject
from nsq.spark.wal.readers import ReaderState

if TYPE_CHECKING:
    from nsq.spark.wal.directory import DirectoryLog, DirectoryWal
    from nsq.spark.wal.disk import Directory
    from nsq.spark.wal.ownership import FileLock
    from nsq.spark.wal.shared import SharedClaim, SharedWal, _SmallFiles
    from nsq.spark.wal.shared_log import SharedLog

T = TypeVar("T")


#: A write-ahead log. ``directory.py`` documents the methods that ``BaseWal`` lacks; SharedWal has them too.
Wal: TypeAlias = "DirectoryWal | SharedWal"
#: One receiver's part of a log.
Log: TypeAlias = "DirectoryLog | SharedLog"
#: A reader's name, which ends with its process.
Claim: TypeAlias = "FileLock | SharedClaim"

JOBS = "jobs"


class BaseWal:
    """The methods that directories and object stores share: identity, subject, readers, deletion."""

    def __init__(self, place: Directory | _SmallFiles, location: str) -> None:
        self.location = location
        self._place = place

    def prepare(self, subject: Subject | None = None) -> str:
        """Create the log if it does not exist; return its identity. Raises WalForeign when the log has
        another ``subject``; a log without a subject gets this one.
        """
        place = self._place
        place.make_folder("")
        if self.identity() is None:
            # If the folder is not empty, another process may just have created the log: look again.
            used = any(not name.startswith(".") for name in place.names(""))
            if used and self.identity() is None:
                raise WalForeign(f"{place.path('')} is not a log, and not empty: choose another folder")
            place.put(names.IDENTITY, names.encode_identity(uuid.uuid4().hex, time.time()), once=True)
        if subject is not None:
            there = self.subject()
            subject.check(there, str(place.path("")))
            if there is None or subject.changes(there):
                place.put(names.SUBJECT, names.encode_subject(subject), once=there is None)
            subject.check(self.subject(), str(place.path("")))
        return self.identity() or ""

    def identity(self) -> str | None:
        """The log's identity; None when there is no log yet."""
        return self._read(names.IDENTITY, names.decode_identity)

    def subject(self) -> Subject | None:
        """The log's subject; None until a query or receiver has used the log."""
        return self._read(names.SUBJECT, names.decode_subject)

    def _read(self, name: str, decode: Callable[[bytes, str], T]) -> T | None:
        text = self._place.get(name)
        return None if text is None else decode(bytes(text), str(self._place.path(name)))

    def readers(self) -> dict[str, ReaderState]:
        """The states of all readers, past and present, that were not removed."""
        found = {}
        for file in self._place.names(readers.FOLDER):
            if name := readers.name_of(file):
                state = self._read(readers.file_of(name), readers.decode)
                if state is not None:
                    found[name] = state
        return found

    def save_reader(self, reader: str, state: ReaderState) -> None:
        """Save a reader's state; durable on return, and atomic where the storage allows it."""
        self._place.make_folder(readers.FOLDER)
        self._place.put(readers.file_of(reader), readers.encode(state))

    def remove_reader(self, reader: str) -> None:
        """Forget a reader, so that it no longer prevents the deletion of segments."""
        self._place.delete(readers.file_of(reader))

    # Receivers that run as a job of Spark: the driver cannot reach them, so it leaves a file in the log

    def request_stop(self, job: str) -> None:
        """Have the receivers of a job stop."""
        self._place.make_folder(JOBS)
        self._place.put(f"{JOBS}/{job}.json", names.encode({"stop": True}))

    def stop_requested(self, job: str) -> bool:
        return self._place.get(f"{JOBS}/{job}.json") is not None

    def forget_job(self, job: str) -> None:
        self._place.delete(f"{JOBS}/{job}.json")

    def _check_name(self, receiver: str) -> None:
        """Raise WalError when the name is invalid, or when there is no log."""
        if not names.is_receiver(receiver):
            raise WalError(f"{receiver!r} is not a valid receiver name: take one from names.new_receiver()")
        if self.identity() is None:
            raise WalError(f"{self._place.path('')} is not a log yet: prepare it first")


# Opening the log that option ``wal`` names: a path or file:// is a directory, other URIs are object stores


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
    """The location without credentials, for messages and log files."""
    if directory_of(location) is not None:
        return location
    scheme, _, rest = location.partition(":")
    return f"{scheme}://{rest.removeprefix('//').partition('?')[0].rpartition('@')[2]}"


def open_wal(location: str, *, fsync: bool = True) -> Wal:
    """Return the log at a location, which need not exist yet: ``prepare`` creates it. Only directories use
    ``fsync``."""
    if not location.strip():
        raise ConfigError("wal is empty, but must be a directory or an object store: s3://bucket/folder")
    directory = directory_of(location)
    if directory is not None:
        from nsq.spark.wal.directory import DirectoryWal

        return DirectoryWal(directory.absolute(), fsync=fsync)
    from nsq.spark.wal.shared import SharedWal

    return SharedWal.at(location)
