"""A write-ahead log in an object store, or anything else that pyarrow.fs reaches.

    <wal>/identity.json
    <wal>/subject.json
    <wal>/readers/<name>.json                    how far a query has committed
    <wal>/readers/<name>.lock                    the lease of the query that reads under this name
    <wal>/<receiver>/lease.json                  the receiver's
    <wal>/<receiver>/000001-1250-250000.arrow    a segment

Nothing can be appended to an object, so every append puts a segment: it is durable, sealed and listed when
the call returns, nothing is ever left to recover, and rolling only reports. Throughput follows: one append
at a time, so a receiver takes (messages per append) / (seconds per put), where an append is at most half the
window in flight. 1250 messages and 50 ms make 25 000 messages a second; a larger ``maxInFlight`` and a longer
``commitInterval`` make more, and fewer and larger objects.

A put that fails may have happened. Then the object is looked for, at once and again before the next one; if
it is there, it counts. Messages whose append has failed can therefore turn up twice, as NSQ allows, but none
is lost, and a number is not used for two of them unless the store finishes a put even later than that.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import pyarrow as pa
from pyarrow import fs

from nsq.errors import ConfigError, SegmentLost, WalError
from nsq.spark.wal import leases, names, ownership, readers, records
from nsq.spark.wal.leases import HeldLease, Lease, Timing
from nsq.spark.wal.names import ReceiverFolder, Segment, SegmentFile
from nsq.spark.wal.readers import check_reader
from nsq.spark.wal.store import BaseWal

# Whole objects put, got, listed and deleted below one root. Errors name the path but never the URI, for that
# may hold credentials. A segment must appear whole or not at all: object stores promise that; elsewhere
# (HDFS, a local directory) it is written under a hidden name and moved


_APPEAR_WHOLE = {"s3", "gcs", "abfs"}
_HIDDEN = "."


class Found(NamedTuple):
    """What a listing says of an object."""

    path: str  # below the root
    size: int
    modified: float = 0.0  # in seconds since 1970


class Bucket:
    """Paths are relative to ``root``. Any number of threads may use it."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._files = filesystem
        self._root = root.rstrip("/")
        self._appear_whole = _kind(filesystem) in _APPEAR_WHOLE

    def path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def make_folder(self, name: str) -> None:
        with _named(self.path(name), "cannot be made"):
            self._files.create_dir(self.path(name), recursive=True)

    def put(self, name: str, data: bytes | pa.Buffer, *, once: bool = False) -> None:
        """When this raises, it may be there all the same. ``once`` changes nothing: see ``leases``."""
        folder, _, last = name.rpartition("/")
        draft = name if self._appear_whole else f"{folder}/{_HIDDEN}{last}-{uuid.uuid4().hex[:8]}".lstrip("/")
        with _named(self.path(name), "cannot be written"):
            with self._files.open_output_stream(self.path(draft)) as out:
                out.write(data)
            if draft != name:
                self._files.move(self.path(draft), self.path(name))

    def rewrite(self, name: str, data: bytes) -> None:
        """A small object that may be there already; on what is no object store it is short for an instant."""
        path = self.path(name)
        with _named(path, "cannot be written"), self._files.open_output_stream(path) as out:
            out.write(data)

    def get(self, name: str) -> pa.Buffer | None:
        """None when it is not there."""
        with _named(self.path(name), "cannot be read"):
            try:
                with self._files.open_input_file(self.path(name)) as source:
                    return source.read_buffer(source.size())
            except FileNotFoundError:
                return None

    def has(self, name: str) -> bool:
        with _named(self.path(name), "cannot be looked at"):
            return bool(self._files.get_file_info(self.path(name)).is_file)

    def delete(self, name: str) -> None:
        """One that is gone already is fine."""
        with _named(self.path(name), "cannot be deleted"), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        """With everything in it."""
        with _named(self.path(name), "cannot be deleted"), contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(self.path(name))

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, folders too."""
        return sorted(info.base_name for info in self._list(folder, recursive=False))

    def folders(self) -> list[str]:
        """Those directly below the root, as far as the store knows folders that hold nothing."""
        return sorted(info.base_name for info in self._list("", recursive=False) if not info.is_file)

    def everything(self) -> list[Found]:
        """All objects: one request, or one per thousand."""
        return [
            Found(info.path[len(self._root) :].lstrip("/"), int(info.size), (info.mtime_ns or 0) / 1e9)
            for info in self._list("", recursive=True)
            if info.is_file
        ]

    def _list(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Not what is hidden."""
        selector = fs.FileSelector(self.path(folder), allow_not_found=True, recursive=recursive)
        with _named(self.path(folder), "cannot be listed"):
            infos = self._files.get_file_info(selector)
        return [info for info in infos if not info.base_name.startswith(_HIDDEN)]


def _kind(filesystem: fs.FileSystem) -> str:
    while isinstance(filesystem, fs.SubTreeFileSystem):
        filesystem = filesystem.base_fs
    return str(filesystem.type_name)


@contextlib.contextmanager
def _named(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise WalError(f"{path} {what}: {error}") from error


# The log


_LEASE = "lease.json"


class ObjectWal(BaseWal):
    """``path`` is the log's folder in that file system: ``bucket/folder``."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        path: str,
        *,
        location: str = "",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bucket = Bucket(filesystem, path)
        super().__init__(self._bucket, location or path)
        self._timing = Timing(now, clock, nap)

    @classmethod
    def at(cls, uri: str) -> Self:
        """From a URI such as ``s3://bucket/folder``."""
        try:
            filesystem, path = fs.FileSystem.from_uri(uri)
        except (OSError, pa.ArrowException) as error:
            scheme = uri.partition(":")[0]
            reason = "" if "@" in uri or "?" in uri else f": {error}"  # what is cited may hold credentials
            raise ConfigError(f"wal cannot be opened: pyarrow.fs refuses its {scheme} URI{reason}") from None
        return cls(filesystem, path, location=uri)

    def _settle(self) -> None:
        """No put has a condition: the last one counts for all."""
        self._timing.nap(leases.SETTLE)

    def own(self, reader: str, description: str, patience: float) -> HeldLease:
        self._bucket.make_folder(readers.FOLDER)
        name = readers.lock_of(check_reader(reader))
        return leases.contend(self._bucket, name, description, patience, self._timing)

    def owner(self, reader: str) -> ownership.Owner | None:
        lease = leases.read(self._bucket, readers.lock_of(reader))
        return lease.owner if self._live(lease) and lease is not None else None

    def log(self, receiver: str) -> ObjectLog:
        self._check_new(receiver)
        self._bucket.make_folder(receiver)
        lease = leases.hold(self._bucket, f"{receiver}/{_LEASE}", receiver, self._timing)
        return ObjectLog(self._bucket, receiver, lease)

    def segments(self) -> list[Segment]:
        return [file.segment for file in self.files()]

    def files(self) -> list[SegmentFile]:
        found = []
        for path, size, modified in self._bucket.everything():
            receiver, _, name = path.partition("/")
            segment = names.read_sealed(receiver, name) if names.is_receiver(receiver) else None
            if segment is not None:
                found.append(SegmentFile(segment, size, modified))
        return sorted(found)

    def receivers(self) -> list[ReceiverFolder]:
        counts = dict.fromkeys(filter(names.is_receiver, self._bucket.folders()), 0)
        for segment in self.segments():
            counts[segment.receiver] = counts.get(segment.receiver, 0) + 1
        return [
            ReceiverFolder(one, self._live(leases.read(self._bucket, f"{one}/{_LEASE}")), 0, counts[one])
            for one in sorted(counts)
        ]

    def recover(self) -> list[Segment]:
        """Nothing: what is durable is sealed."""
        return []

    def read(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        path = names.path_of(segment)
        data = self._bucket.get(path)
        if data is None:
            raise SegmentLost(f"{self._bucket.path(path)} is not there")
        return records.decode(data, segment.rows, self._bucket.path(path))

    def discard_empty(self) -> None:
        for folder in self.receivers():
            if not folder.segments and not folder.alive:
                self._bucket.delete_folder(folder.receiver)

    def _live(self, lease: Lease | None) -> bool:
        return lease is not None and lease.live(self._timing.now())


class ObjectLog:
    """Not for two threads at once."""

    open_rows = 0
    open_bytes = 0

    def __init__(self, bucket: Bucket, receiver: str, lease: HeldLease) -> None:
        self.receiver = receiver
        self._bucket = bucket
        self._lease = lease
        self._next = 1
        self.written = 0
        self._sealed: Segment | None = None  # the last one, until roll reports it
        self._doubtful: Segment | None = None  # its put has failed, or seemed to
        self._closed = False

    def append(self, batch: pa.RecordBatch) -> None:
        if self._closed:
            raise WalError(f"{self._bucket.path(self.receiver)}: this log has been closed")
        if batch.num_rows == 0:
            return
        if self._doubtful is not None and self._is_there(self._doubtful):
            self._count(self._doubtful)
        segment = Segment(self.receiver, self._next, batch.num_rows, records.body_bytes(batch))
        data = records.begin(batch.schema) + bytes(records.encode(batch))
        self.written += len(data)
        try:
            self._bucket.put(names.path_of(segment), data)
        except WalError:
            self._doubtful = segment
            if not self._is_there(segment):
                raise
        self._count(segment)

    def roll(self) -> Segment | None:
        """The last segment since the last call."""
        sealed, self._sealed = self._sealed, None
        return sealed

    def close(self) -> Segment | None:
        if not self._closed:
            self._closed = True
            self._lease.release()
        return self.roll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_there(self, segment: Segment) -> bool:
        return self._bucket.has(names.path_of(segment))

    def _count(self, segment: Segment) -> None:
        self._next = segment.number + 1
        self._sealed, self._doubtful = segment, None
