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
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote

from nsq.errors import ConfigError

if TYPE_CHECKING:
    from nsq.spark.wal.directory import DirectoryWal
    from nsq.spark.wal.directory_log import DirectoryLog
    from nsq.spark.wal.leases import HeldLease
    from nsq.spark.wal.objects import ObjectLog, ObjectWal
    from nsq.spark.wal.ownership import FileClaim


class Position(NamedTuple):
    """All segments of a receiver through ``segment``, and the first ``rows`` of the one after it."""

    segment: int = 0
    rows: int = 0


class Segment(NamedTuple):
    """A sealed file. Ordered by receiver and number. ``bytes`` counts bodies, not the file."""

    receiver: str
    number: int
    rows: int
    bytes: int


class SegmentFile(NamedTuple):
    """A sealed file as the disk or the store has it. ``modified`` is in seconds since 1970."""

    segment: Segment
    size: int
    modified: float


class ReceiverFolder(NamedTuple):
    """What one receiver has left behind, or is still writing."""

    receiver: str
    alive: bool  # its lock is held
    open_bytes: int  # of the file that is not sealed yet
    segments: int


#: What a log can do is told in ``directory.py``; an object store's does the same.
Wal: TypeAlias = "DirectoryWal | ObjectWal"
#: Where one receiver writes. Not for two threads at once.
Log: TypeAlias = "DirectoryLog | ObjectLog"
#: A lock that ends with its process.
Claim: TypeAlias = "FileClaim | HeldLease"


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
