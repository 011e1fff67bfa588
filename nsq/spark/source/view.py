"""The log as one reader sees it: its unread segments, the receivers' folders, and which segments may be
deleted because every reader has committed them. Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsq.errors import WalError
from nsq.log import Logger
from nsq.spark.source.offsets import Offset, Slice, unread
from nsq.spark.source.options import SourceOptions
from nsq.spark.source.reader import Reader
from nsq.spark.wal.names import Listing, Position, ReceiverState, Segment, SegmentFile
from nsq.spark.wal.readers import ReaderState, deletable

if TYPE_CHECKING:
    from nsq.spark.wal.log import Wal

log = Logger("nsq.spark.source")

#: The shortest time between two deletions of committed segments, in seconds, unless the log is full or keeps
#: none.
DELETING = 30.0
#: The same while the log is full for receivers, which take some seconds to see that it is not.
RELIEVING = 5.0


@dataclass(eq=False)
class LogView:
    """What the last listing of the log found. ``listed_at`` is on the monotonic clock. ``receivers_full``
    returns whether a receiver has paused because the log, its share of it or the disk is full.
    """

    options: SourceOptions
    wal: Wal
    reader: Reader
    receivers_full: Callable[[], bool]

    def __post_init__(self) -> None:
        self.files: list[SegmentFile] = []
        self.receivers: list[ReceiverState] = []
        self.size = 0  # bytes of the log's segments
        self.listed_at = float("-inf")
        self._deleted_at = float("-inf")

    @property
    def segments(self) -> list[Segment]:
        return [file.segment for file in self.files]

    @property
    def full(self) -> bool:
        return self.size >= self.options.wal_max_bytes

    def refresh(self, after: Mapping[str, Position] | None = None, known: Collection[str] = ()) -> Listing:
        """List what this reader has not committed, or what is ``after`` other positions. ``known`` are the
        receivers that it knows."""
        after = self.reader.state.at if after is None else after
        listing = self.wal.listing(after, known)
        if any(not each.alive and not each.closed for each in listing.receivers):
            self.wal.close_dead()
        self.files = listing.files
        self.receivers, self.size = listing.receivers, listing.size
        self.listed_at = time.monotonic()
        if self.full or self.receivers_full():
            self.delete_committed()
        return listing

    def unread(self, read: Offset) -> list[Slice]:
        """The sealed rows after ``read``, in the order in which they are read."""
        return unread(read, self.segments)

    def oldest(self, read: Offset) -> int | None:
        """The time of the oldest message in a segment that is not read completely, in nanoseconds since 1970;
        None when there is no such segment."""
        done = ReaderState(read.at).has_committed
        return min((file.oldest for file in self.files if not done(file.segment)), default=None)

    def awaits_commit(self, read: Offset) -> bool:
        """Whether the log holds a segment that Spark has read completely but not committed."""
        done, committed = ReaderState(read.at).has_committed, self.reader.state.has_committed
        return any(done(segment) and not committed(segment) for segment in self.segments)

    def delete_committed(self) -> None:
        """Delete the segments that every reader has committed and that retention does not keep."""
        options, now = self.options, time.monotonic()
        relieving = not self.full and self.receivers_full()
        pause = RELIEVING if relieving else DELETING
        if options.retention and not self.full and now - self._deleted_at < pause:
            return
        self._deleted_at = now
        most = self.size if relieving else options.wal_max_bytes
        deleted: list[Segment] = []
        try:
            # Our own state from memory: saving it may have failed.
            states = (self.wal.readers() | {options.reader: self.reader.state}).values()
            files = self.wal.files_of_readers()
            deleted = self.wal.delete(deletable(files, states, now=time.time(), most=most // 2))
            self.wal.discard_empty(states)
        except WalError as error:
            # They only take space; the next commit tries again.
            log.warning("segments that were committed cannot be deleted: %s", error)
        gone = set(deleted)
        self.files = [file for file in self.files if file.segment not in gone]
