"""What a write-ahead log can do, wherever it is kept: a directory (``directory.py``) or an object store
(``objects.py``).

    <wal>/identity.json             which log this is; a checkpoint remembers it
    <wal>/subject.json              which topic and channel it is for
    <wal>/owner                     held by the one query that reads and deletes
    <wal>/<receiver>/…              one folder per life of a receiver, which alone writes there

Messages become durable batch by batch in a receiver's ``Log``. Every now and then the log is *rolled*: what
it holds is sealed into a segment, which never changes again and is read until it is deleted. Segments of one
receiver are numbered from 1, without holes, so "everything up to segment 7 of that receiver" is a position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from nsq.spark.wal.subject import Subject

if TYPE_CHECKING:
    import pyarrow as pa


class Segment(NamedTuple):
    """A sealed file. Ordered by receiver and number. ``bytes`` counts bodies, not the file."""

    receiver: str
    number: int
    rows: int
    bytes: int


class ReceiverFolder(NamedTuple):
    """What one receiver has left behind, or is still writing."""

    receiver: str
    alive: bool  # somebody holds its lock
    open_bytes: int  # of the file that is not sealed yet
    segments: int


class Claim(Protocol):
    """A lock that ends with its process."""

    def leaving(self) -> None:
        """Tell whoever wants it that it is about to be free: a restart then waits instead of failing."""

    def check(self) -> None:
        """Raises WalOwned when somebody else has taken it: a lease can be lost, a file lock cannot."""

    def release(self) -> None: ...


class Log(Protocol):
    """Where one receiver writes. Not for two threads at once."""

    receiver: str

    @property
    def open_rows(self) -> int:
        """Rows that are durable, but in no segment yet."""

    @property
    def open_bytes(self) -> int: ...

    def append(self, batch: pa.RecordBatch) -> None:
        """Durable on return. Raises WalError, and then holds what it held before."""

    def roll(self) -> Segment | None:
        """Seal what was appended since the last time; None when that is nothing."""

    def close(self) -> Segment | None:
        """Roll, and give up the receiver's lock."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Wal(Protocol):
    """Any number of processes may use one at a time; only one of them may ``own`` it."""

    location: str

    def prepare(self, subject: Subject | None = None) -> str:
        """Make it where it is not there yet; its identity. Raises WalForeign when it is for another
        ``subject``; a log that does not say is for this one from now on.
        """

    def own(self, description: str, patience: float) -> Claim:
        """Become the one who reads and deletes. Raises WalOwned, with the other's description, when that one
        does not leave within ``patience`` seconds (half a minute when it has said that it is leaving). Where
        one cannot tell at once whether the other is alive, with leases, it takes as long as that takes.
        """

    def log(self, receiver: str) -> Log:
        """Begin a receiver's log; its name must be new: ``names.new_receiver``."""

    def segments(self) -> list[Segment]:
        """All that are sealed, in order."""

    def receivers(self) -> list[ReceiverFolder]: ...

    def recover(self) -> list[Segment]:
        """Seal whatever complete batches dead receivers left unsealed; what was sealed by this call."""

    def read(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Its batches, as they were appended. Raises SegmentLost, naming the file."""

    def delete(self, segments: Iterable[Segment]) -> None:
        """Those that are gone already are none of its business."""

    def discard_empty(self) -> None:
        """Remove the folders of dead receivers that hold nothing any more."""
