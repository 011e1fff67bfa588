"""What a dead receiver left unsealed in a directory becomes a segment.

Any number of processes may do this at once: all of them find the same valid beginning of the file and give it
the same name, and only one of them gets to rename it. The torn tail stays in the file: its name says how far
it is valid.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pyarrow as pa

from nsq.errors import WalError
from nsq.spark.wal import names, streams
from nsq.spark.wal.disk import Disk
from nsq.spark.wal.store import Segment

_logger = logging.getLogger("nsq.spark.wal")


def seal_leftovers(folder: Path, disk: Disk) -> list[Segment]:
    """Of a receiver that is known to be dead; what this call has sealed."""
    sealed = []
    for name in sorted(os.listdir(folder)):
        number = names.read_open(name)
        if number is None:
            continue
        path = folder / name
        try:
            segment = _seal(path, number, disk)
        except FileNotFoundError:  # another process was faster
            continue
        except OSError as error:
            raise WalError(f"{path} cannot be recovered: {error.strerror or error}") from error
        if segment is not None:
            sealed.append(segment)
    return sealed


def _seal(path: Path, number: int, disk: Disk) -> Segment | None:
    with pa.OSFile(str(path), "rb") as source:
        size = source.size()
        found = streams.complete(source)
    if not found.rows:
        disk.remove(path)
        _logger.info("%s held no complete batch (%d bytes), and is removed", path, size)
        return None
    segment = Segment(path.parent.name, number, found.rows, found.bytes)
    _make_durable(path, disk)
    disk.rename(path, path.parent / names.sealed_file(segment))
    disk.sync_folder(path.parent)
    torn = max(0, size - found.end - len(streams.END))
    _logger.info("%s: %d rows recovered, %d torn bytes behind them", path, found.rows, torn)
    return segment


def _make_durable(path: Path, disk: Disk) -> None:
    """The last batch may have been written without an fsync; a segment must not change its mind."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
