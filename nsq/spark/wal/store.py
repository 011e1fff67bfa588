"""Where a log is: ``open_wal("/data/wal")``, ``open_wal("s3://bucket/wal")``. A path or file:// is a
directory, other URIs are object stores.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from nsq.errors import ConfigError

if TYPE_CHECKING:
    from nsq.spark.wal.log import Wal

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
    from nsq.spark.wal.folder import Folder
    from nsq.spark.wal.log import Wal
    from nsq.spark.wal.objects import Bucket

    directory = directory_of(location)
    if directory is None:
        return Wal(Bucket(location), location)
    return Wal(Folder(directory.absolute(), fsync=fsync), str(directory.absolute()))
