"""From the option ``wal`` to a log: a path or file:// is a directory, every other URI an object store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from nsq.errors import ConfigError

if TYPE_CHECKING:
    from nsq.spark.wal.directory import DirectoryWal
    from nsq.spark.wal.objects import ObjectWal

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


def open_wal(location: str, *, fsync: bool = True) -> DirectoryWal | ObjectWal:
    """The log at that place; ``prepare`` makes it. ``fsync`` concerns directories only."""
    if not location.strip():
        raise ConfigError("wal is empty, but must be a directory or a URI of pyarrow.fs")
    directory = directory_of(location)
    if directory is not None:
        from nsq.spark.wal.directory import DirectoryWal

        return DirectoryWal(directory.absolute(), fsync=fsync)
    from nsq.spark.wal.objects import ObjectWal

    return ObjectWal.at(location)
