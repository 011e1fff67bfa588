"""A write-ahead log in an object store, or anything else that pyarrow.fs reaches.

    <wal>/identity.json
    <wal>/subject.json
    <wal>/owner.json                             the owner's lease
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

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyarrow import fs

from nsq.errors import ConfigError, SegmentLost, WalError, WalForeign
from nsq.spark.wal import identity, leases, names, ownership, records, streams
from nsq.spark.wal import subject as subjects
from nsq.spark.wal.bucket import Bucket
from nsq.spark.wal.leases import HeldLease, Lease, Timing
from nsq.spark.wal.store import Claim, ReceiverFolder, Segment
from nsq.spark.wal.subject import Subject

_OWNER = f"{names.OWNER}.json"
_LEASE = "lease.json"


class ObjectWal:
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
        self.location = location or path
        self._bucket = Bucket(filesystem, path)
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

    def prepare(self, subject: Subject | None = None) -> str:
        found = self.identity() or self._identity_if_used()
        made = found or identity.new_identity()
        if found is None:
            self._bucket.make_folder("")
            self._bucket.rewrite(names.IDENTITY, identity.encode(made, self._timing.now()))
        unsaid = subject is not None and self.subject() is None
        if subject is not None and unsaid:
            self._bucket.rewrite(names.SUBJECT, subjects.encode(subject))
        if found is None or unsaid:
            self._timing.nap(leases.SETTLE)  # of several who do this at once, the last one's counts for all
        if subject is not None:
            subject.check(self.subject(), self._bucket.path(""))
        return self.identity() or made

    def _identity_if_used(self) -> str | None:
        """Where there was none: it may just have been prepared by another process."""
        if all(name in (names.IDENTITY, names.SUBJECT, _OWNER) for name in self._bucket.names()):
            return None
        found = self.identity()
        if found is None:
            raise WalForeign(f"{self._bucket.path('')} is no log, and not empty: give it one of its own")
        return found

    def own(self, description: str, patience: float) -> Claim:
        return leases.contend(self._bucket, _OWNER, description, patience, self._timing)

    def owner(self) -> ownership.Owner | None:
        """Who owns it now."""
        lease = leases.read(self._bucket, _OWNER)
        return lease.owner if self._live(lease) and lease is not None else None

    def log(self, receiver: str) -> ObjectLog:
        if not names.is_receiver(receiver):
            raise WalError(f"{receiver!r} is no name for a receiver: take one from names.new_receiver()")
        if self.identity() is None:
            raise WalError(f"{self._bucket.path('')} is no log: it has to be prepared first")
        if receiver in self._bucket.names():
            raise WalError(f"{self._bucket.path(receiver)} is there already: a receiver's name must be new")
        self._bucket.make_folder(receiver)
        lease = leases.hold(self._bucket, f"{receiver}/{_LEASE}", receiver, self._timing)
        return ObjectLog(self._bucket, receiver, lease)

    def segments(self) -> list[Segment]:
        found = []
        for path, _ in self._bucket.everything():
            receiver, _, name = path.partition("/")
            segment = names.read_sealed(receiver, name) if names.is_receiver(receiver) else None
            if segment is not None:
                found.append(segment)
        return sorted(found)

    def receivers(self) -> list[ReceiverFolder]:
        counts = dict.fromkeys((name for name in self._bucket.folders() if names.is_receiver(name)), 0)
        for segment in self.segments():
            counts[segment.receiver] = counts.get(segment.receiver, 0) + 1
        return [ReceiverFolder(one, self._alive(one), 0, counts[one]) for one in sorted(counts)]

    def recover(self) -> list[Segment]:
        """Nothing: what is durable is sealed."""
        return []

    def read(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        path = _path(segment)
        data = self._bucket.get(path)
        if data is None:
            raise SegmentLost(f"{self._bucket.path(path)} is not there")
        return streams.decode(data, segment.rows, self._bucket.path(path))

    def delete(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._bucket.delete(_path(segment))

    def discard_empty(self) -> None:
        for folder in self.receivers():
            if not folder.segments and not folder.alive:
                self._bucket.delete_folder(folder.receiver)

    def identity(self) -> str | None:
        """None when it has not been prepared."""
        text = self._bucket.get(names.IDENTITY)
        if text is None:
            return None
        return identity.decode(bytes(text), self._bucket.path(names.IDENTITY))

    def subject(self) -> Subject | None:
        """None when nobody has said yet."""
        text = self._bucket.get(names.SUBJECT)
        return None if text is None else subjects.decode(bytes(text), self._bucket.path(names.SUBJECT))

    def _alive(self, receiver: str) -> bool:
        return self._live(leases.read(self._bucket, f"{receiver}/{_LEASE}"))

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
        self._sealed: Segment | None = None  # the last one, until roll reports it
        self._doubtful: Segment | None = None  # its put has failed, or seemed to
        self._closed = False

    def append(self, batch: pa.RecordBatch) -> None:
        if self._closed:
            raise WalError(f"{self._bucket.path(self.receiver)}: this log has been closed")
        if not batch.schema.equals(records.STORED):
            raise WalError(f"not a batch of records.stored(): {batch.schema.names}")
        if batch.num_rows == 0:
            return
        if self._doubtful is not None and self._is_there(self._doubtful):
            self._count(self._doubtful)
        segment = Segment(self.receiver, self._next, batch.num_rows, records.body_bytes(batch))
        data = streams.begin(batch.schema) + bytes(streams.encode(batch)) + streams.END
        try:
            self._bucket.put(_path(segment), data)
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

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _is_there(self, segment: Segment) -> bool:
        return self._bucket.size(_path(segment)) is not None

    def _count(self, segment: Segment) -> None:
        self._next = segment.number + 1
        self._sealed, self._doubtful = segment, None


def _path(segment: Segment) -> str:
    return f"{segment.receiver}/{names.sealed_file(segment)}"
