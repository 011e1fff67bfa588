"""A write-ahead log in an object store, or any other file system of pyarrow.fs. A reader's lock is a lease
here. Besides the files that ``store`` describes, the log holds

    <wal>/<receiver>/lease.json                  the receiver's lease
    <wal>/<receiver>/000001-1250-250000.arrow    a segment

Objects cannot be appended to, so every append puts a segment, which is durable, sealed and listed when the
call returns: there is nothing to recover, and ``roll`` only reports. A receiver appends one batch at a time,
of at most half the messages in flight, so its throughput is (messages per append) / (seconds per put): 1250
messages and 50 ms give 25 000 messages a second. A larger ``maxInFlight`` and a longer ``commitInterval``
raise it, and make fewer and larger objects.

A put that reports an error may still have succeeded. So the log looks for the object at once, and again
before the next put, and counts it if it exists. Messages of a failed append can therefore appear twice, as
NSQ allows, but none is lost; a number is used twice only if the store completes a put even later than that.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import pyarrow as pa
from pyarrow import fs

from nsq.errors import ConfigError, SegmentLost, WalError, WalOwned
from nsq.log import Logger
from nsq.spark.wal import names, ownership, readers, records
from nsq.spark.wal.names import ReceiverFolder, Segment, SegmentFile
from nsq.spark.wal.ownership import LEAVING_PATIENCE, Owner
from nsq.spark.wal.readers import check_reader
from nsq.spark.wal.store import BaseWal

_logger = Logger("nsq.spark.wal")

# Puts, gets, lists and deletes whole objects below one root. Errors name the path but never the URI, which
# may hold credentials. A segment must appear atomically: object stores guarantee that; elsewhere (HDFS, a
# local directory) the bucket writes a hidden file and renames it


_ATOMIC_STORES = {"s3", "gcs", "abfs"}
_HIDDEN = "."


class Bucket:
    """The objects of a log, named by their paths below ``root``. Thread-safe."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._files = filesystem
        self._root = root.rstrip("/")
        self._appear_whole = _kind(filesystem) in _ATOMIC_STORES

    def path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def make_folder(self, name: str) -> None:
        with _named(self.path(name), "cannot be made"):
            self._files.create_dir(self.path(name), recursive=True)

    def put(self, name: str, data: bytes | pa.Buffer, *, once: bool = False) -> None:
        """Write an object, which may exist even if this raises. ``once`` is ignored: see ``_settle``."""
        folder, _, last = name.rpartition("/")
        draft = name if self._appear_whole else f"{folder}/{_HIDDEN}{last}-{uuid.uuid4().hex[:8]}".lstrip("/")
        with _named(self.path(name), "cannot be written"):
            with self._files.open_output_stream(self.path(draft)) as out:
                out.write(data)
            if draft != name:
                self._files.move(self.path(draft), self.path(name))

    def rewrite(self, name: str, data: bytes) -> None:
        """Write or overwrite a small object. On a file system, readers may briefly see it truncated."""
        path = self.path(name)
        with _named(path, "cannot be written"), self._files.open_output_stream(path) as out:
            out.write(data)

    def get(self, name: str) -> pa.Buffer | None:
        """The content of an object; None when it is missing."""
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
        """Delete an object; a missing object is no error."""
        with _named(self.path(name), "cannot be deleted"), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        """Delete a folder with everything in it."""
        with _named(self.path(name), "cannot be deleted"), contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(self.path(name))

    def names(self, folder: str) -> list[str]:
        """The sorted names directly in a folder, including folders."""
        return sorted(info.base_name for info in self.list(folder))

    def list(self, folder: str = "", *, recursive: bool = False) -> list[fs.FileInfo]:
        """List what is not hidden, including folders if the store has any. One request per 1000 entries."""
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


# Leases stand in for locks: a lease is an object that its holder rewrites every ten seconds.
#
# A lease expires when its object is deleted, or 30 s after its last refresh. Its age is computed from two
# hosts' clocks, so 15 s are added for clock skew. A process that wants a lease takes it at the latest when it
# has seen the object unchanged for 30 s. Until then the holder may be dead, as after a crash, so the process
# gives up (WalOwned) only after it has seen the holder refresh the lease.
#
# pyarrow has no conditional put. So two processes that want the same lease in the same second can both write
# it. Both then wait and read it again: the last writer has the lease, and the other one sees that. Two cases
# remain: a process that is suspended between reading and writing for longer than that wait can take a lease
# from its holder, and a holder that does not refresh for 30 s loses its lease. The holder notices at its next
# refresh, so it calls ``check`` before anything that only the holder may do


REFRESH = 10.0
LIFETIME = 30.0
SKEW = 15.0
SETTLE = 2.0
_NAP = 0.5
_JOIN = 30.0


class Lease(NamedTuple):
    """The content of a lease object. ``token`` identifies the holder, ``beat`` counts refreshes."""

    token: str
    beat: int
    refreshed: float  # seconds since the epoch, on the holder's clock
    owner: Owner

    def live(self, now: float) -> bool:
        return now - self.refreshed < LIFETIME + SKEW


class Timing(NamedTuple):
    """The clocks of leases; tests pass their own."""

    now: Callable[[], float]  # since the epoch
    clock: Callable[[], float]  # monotonic
    nap: Callable[[float], None]


def read_lease(bucket: Bucket, name: str) -> Lease | None:
    """Read a lease; None when it is missing. A half-written one, which cannot be parsed, counts as live."""
    text = bucket.get(name)
    if text is None:
        return None
    try:
        found = json.loads(bytes(text))
        owner = ownership.decode(found["owner"])
        return Lease(str(found["token"]), int(found["beat"]), float(found["refreshed"]), owner)
    except (ValueError, KeyError, TypeError):
        return Lease("", 0, math.inf, ownership.UNKNOWN_OWNER)


def write_lease(bucket: Bucket, name: str, lease: Lease) -> None:
    told = {**lease._asdict(), "owner": lease.owner._asdict()}
    bucket.rewrite(name, json.dumps(told).encode() + b"\n")


class HeldLease:
    """A lease of this process, refreshed by its own thread until it is released."""

    def __init__(self, bucket: Bucket, name: str, lease: Lease, now: Callable[[], float]) -> None:
        self.lost = False
        self._bucket = bucket
        self._name = name
        self._lease = lease
        self._now = now
        self._guard = threading.RLock()  # guards _lease; reentrant, because a signal handler calls leaving
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nsq-wal-lease-{name}", daemon=True)
        self._thread.start()

    def leaving(self) -> None:
        with self._guard:
            self._lease = self._lease._replace(owner=self._lease.owner._replace(leaving=True))
        self.refresh()

    def check(self) -> None:
        """Raise WalOwned when another process has taken the lease."""
        if self._now() - self._lease.refreshed > LIFETIME:
            self.refresh()  # this process may have been suspended, and the refreshing thread not run yet
        if self.lost:
            raise WalOwned(
                f"{self._bucket.path('')} has been taken by another process, which had heard nothing of this "
                f"process ({self._lease.owner}) for {LIFETIME:g} s: only one may go on"
            )

    def release(self) -> None:
        """Release the lease; safe to call twice. If the object cannot be deleted, the lease expires."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join(_JOIN)
        try:
            if not self.lost and self._is_ours():
                self._bucket.delete(self._name)
        except WalError as error:
            _logger.warning("%s; it ends by itself in %d seconds", error, LIFETIME + SKEW)

    def refresh(self) -> None:
        """Write the lease again, unless another process has taken it."""
        try:
            if not self._is_ours():
                self.lost = True
                _logger.error("%s has been taken by another process", self._bucket.path(self._name))
                return
            with self._guard:
                self._lease = lease = self._lease._replace(beat=self._lease.beat + 1, refreshed=self._now())
            write_lease(self._bucket, self._name, lease)
            if self._lease.owner != lease.owner:  # we overwrote what a signal handler's leaving() wrote
                write_lease(self._bucket, self._name, self._lease)
        except WalError as error:
            _logger.warning("a lease cannot be refreshed: %s", error)

    def _is_ours(self) -> bool:
        """Whether the lease is still ours; a missing object counts as ours."""
        found = read_lease(self._bucket, self._name)
        return found is None or found.token == self._lease.token

    def _run(self) -> None:
        while not self.lost and not self._over.wait(REFRESH):
            self.refresh()


def hold(bucket: Bucket, name: str, description: str, timing: Timing) -> HeldLease:
    """Take a lease that no other process wants, such as a receiver's."""
    lease = _new(description, timing)
    write_lease(bucket, name, lease)
    return HeldLease(bucket, name, lease, timing.now)


def contend(bucket: Bucket, name: str, description: str, patience: float, timing: Timing) -> HeldLease:
    """Take a lease that others may hold. Raises WalOwned when the holder has refreshed the lease and does not
    leave in time; with ``patience`` 0, as soon as a live lease exists.
    """
    started = timing.clock()
    seen, since = read_lease(bucket, name), started
    alive = not patience
    if seen is not None and seen.live(timing.now()):  # say why this may take half a minute
        _logger.warning(
            "%s is owned by %s; if that is dead, this begins when nothing was heard of it for %d s",
            *(bucket.path(""), seen.owner, LIFETIME),
        )
    while True:
        now = timing.clock()
        if seen is None or not seen.live(timing.now()) or now - since >= LIFETIME:
            lease = _new(description, timing)
            write_lease(bucket, name, lease)
            timing.nap(SETTLE)
            found = read_lease(bucket, name)
            if found is not None and found.token == lease.token:
                return HeldLease(bucket, name, lease, timing.now)
        elif alive and now - started >= (max(patience, LEAVING_PATIENCE) if seen.owner.leaving else patience):
            reader = name.rpartition("/")[2].partition(".lock")[0]
            raise WalOwned(ownership.owned_message(reader, bucket.path(""), seen.owner, now - started))
        else:
            timing.nap(_NAP)
        latest = read_lease(bucket, name)
        alive = not patience or latest != seen
        if latest != seen:
            seen, since = latest, timing.clock()


def _new(description: str, timing: Timing) -> Lease:
    return Lease(uuid.uuid4().hex, 0, timing.now(), ownership.introduce(description))


# The log


_LEASE = "lease.json"


class ObjectWal(BaseWal):
    """A log in ``filesystem``. ``path`` is its folder there: ``bucket/folder``."""

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
        """Open the log at a URI such as ``s3://bucket/folder``."""
        try:
            filesystem, path = fs.FileSystem.from_uri(uri)
        except (OSError, pa.ArrowException) as error:
            scheme = uri.partition(":")[0]
            reason = "" if "@" in uri or "?" in uri else f": {error}"  # pyarrow's error quotes the URI
            raise ConfigError(f"wal cannot be opened: pyarrow.fs refuses its {scheme} URI{reason}") from None
        return cls(filesystem, path, location=uri)

    def _settle(self) -> None:
        """Wait: puts are unconditional, so of several concurrent writers the last one wins."""
        self._timing.nap(SETTLE)

    def own(self, reader: str, description: str, patience: float) -> HeldLease:
        self._bucket.make_folder(readers.FOLDER)
        name = readers.lock_of(check_reader(reader))
        return contend(self._bucket, name, description, patience, self._timing)

    def owner(self, reader: str) -> Owner | None:
        return self._holder(readers.lock_of(reader))

    def log(self, receiver: str) -> ObjectLog:
        self._check_new(receiver)
        self._bucket.make_folder(receiver)
        lease = hold(self._bucket, f"{receiver}/{_LEASE}", receiver, self._timing)
        return ObjectLog(self._bucket, receiver, lease)

    def segments(self) -> list[Segment]:
        return [file.segment for file in self.files()]

    def files(self) -> list[SegmentFile]:
        found = []
        for info in self._bucket.list(recursive=True):
            receiver, _, name = info.path.removeprefix(self._bucket.path("")).lstrip("/").partition("/")
            segment = names.read_sealed(receiver, name) if names.is_receiver(receiver) else None
            if segment is not None:
                found.append(SegmentFile(segment, int(info.size), (info.mtime_ns or 0) / 1e9))
        return sorted(found)

    def receivers(self) -> list[ReceiverFolder]:
        folders = [info.base_name for info in self._bucket.list() if not info.is_file]
        counts = dict.fromkeys(filter(names.is_receiver, folders), 0)
        for segment in self.segments():
            counts[segment.receiver] = counts.get(segment.receiver, 0) + 1
        return [
            ReceiverFolder(one, self._holder(f"{one}/{_LEASE}") is not None, 0, counts[one])
            for one in sorted(counts)
        ]

    def recover(self) -> list[Segment]:
        """Return no segments: every append has sealed its rows."""
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

    def _holder(self, lease_name: str) -> Owner | None:
        lease = read_lease(self._bucket, lease_name)
        return lease.owner if lease is not None and lease.live(self._timing.now()) else None


class ObjectLog:
    """One receiver's log; not thread-safe."""

    open_rows = 0
    open_bytes = 0

    def __init__(self, bucket: Bucket, receiver: str, lease: HeldLease) -> None:
        self.receiver = receiver
        self._bucket = bucket
        self._lease = lease
        self._next = 1
        self.written = 0
        self._sealed: Segment | None = None  # the last segment, until roll returns it
        self._doubtful: Segment | None = None  # its put reported an error, but may have succeeded
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
        """Return the last segment put since the last call; None when there is none."""
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
