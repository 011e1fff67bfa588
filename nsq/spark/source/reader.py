"""A reader's place in the log: which offsets of Spark's checkpoint fit it, where a new checkpoint begins, and
what is committed. Spark's checkpoint and the reader's state in the log must agree; where they do not, this
refuses with the ways out. Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsq.errors import WalError, WalForeign, WalOwned
from nsq.log import Logger
from nsq.spark.source.offsets import Offset
from nsq.spark.source.options import COMMITTED, EARLIEST, LATEST, SourceOptions
from nsq.spark.wal.names import Listing, Position
from nsq.spark.wal.readers import ReaderState
from nsq.spark.wal.store import shown

if TYPE_CHECKING:
    from nsq.spark.wal.claim import Claim
    from nsq.spark.wal.log import Wal

log = Logger("nsq.spark.source")

#: What a state says instead of the option while the beginning is being chosen.
_CHOOSING = "?"


@dataclass(eq=False)
class Reader:
    """One run of one query under its name."""

    options: SourceOptions
    wal: Wal
    identity: str
    claim: Claim

    def __post_init__(self) -> None:
        self.state = self.wal.readers().get(self.options.reader, ReaderState())
        self._beginning: Offset | None = None
        self._compared = False  # whether ``compare`` has compared the checkpoint with the state
        self._foreign = False  # whether we have warned that the checkpoint belongs to another log

    def parse(self, given: Mapping[str, Any]) -> Offset:
        """Parse an offset. Raises WalOwned when another process has taken the name over, WalForeign when the
        offset belongs to another log.
        """
        self.claim.check()
        offset = Offset.of_json(given)
        if offset.wal == self.identity:
            return offset
        text = f"the checkpoint belongs to the log {offset.wal}, but {shown(self.wal.location)} is the log "
        text += self.identity
        if self.options.fail_on_data_loss:
            raise WalForeign(
                f"{text}: give option wal the old place; or, if that log is lost, failOnDataLoss=false goes "
                "on with this one"
            )
        if not self._foreign:
            self._foreign = True
            log.warning("%s; its unread messages are lost, going on with this one", text)
        return Offset(self.identity, foreign=True)

    def begin(self, read: Offset, list_all: Callable[[], Listing]) -> Offset:
        """Return ``read`` itself, or the chosen beginning if the checkpoint has no offsets. ``list_all``
        lists all segments."""
        if read.begun:
            self.compare(read, read)
            return read
        if self._beginning is None:
            self._beginning = self._choose_beginning(list_all)
        return self._beginning

    def _choose_beginning(self, list_all: Callable[[], Listing]) -> Offset:
        options, state = self.options, self.state
        # No batch has begun yet: a beginning that was chosen holds. The earliest one may be chosen again.
        if not state.begun and state.starting == options.starting not in ("", EARLIEST):
            return Offset(self.identity, state.at)
        if state.begun and not options.starting:
            raise WalForeign(
                f"reader {options.reader!r} has read the log {shown(self.wal.location)} before, but this "
                "checkpoint begins anew: a sink that remembers batch numbers, such as Parquet files, would "
                "leave out new rows without an error. Give the query its old checkpoint back. Or give it an "
                "empty sink as well as the new checkpoint, and one of the options startingPosition=earliest "
                "(all that the log holds), startingPosition=committed (what was not read yet), "
                "startingPosition=latest or startingTimestamp, or a name of its own: option reader"
            )
        if state.begun:
            log.warning(
                "reader %r has read the log %s before, and begins anew with %s: rows are left out if "
                "its sink remembers batch numbers, as Parquet files do, and is not empty",
                *(options.reader, shown(self.wal.location), options.starting),
            )
        else:
            log.info(
                "reader %r begins to read the log %s. Its sink must be new too: a folder of files that "
                "remembers batches of another checkpoint would leave rows out (nsq-spark doctor --sink)",
                *(options.reader, shown(self.wal.location)),
            )
        # Saved before the log is listed: from now on, nothing that is listed is deleted.
        self.save({} if options.starting_position != COMMITTED else state.at, begun=False, starting=_CHOOSING)
        listing = list_all()
        at = {each.receiver: Position(each.first - 1) for each in listing.receivers if not each.ended}
        if options.starting_timestamp is not None:
            passed = set()
            for file in listing.files:
                receiver, number, *_ = file.segment
                if receiver not in passed and file.newest < options.starting_timestamp:
                    at[receiver] = Position(number)
                else:
                    passed.add(receiver)
        elif options.starting_position == LATEST:
            at |= {file.segment.receiver: Position(file.segment.number) for file in listing.files}
        elif options.starting_position == COMMITTED:
            ended = {each.receiver for each in listing.receivers if each.ended}
            at = {receiver: position for receiver, position in state.at.items() if receiver not in ended}
        self.save(at, begun=False)
        return Offset(self.identity, at)

    def end(self, start: Offset, end: Offset) -> dict[str, Any]:
        """``end`` as JSON for Spark. The start of a new checkpoint does not contain the chosen beginning, so
        the first end does, as its origins.
        """
        chosen = self._beginning.at if self._beginning is not None and not start.begun else {}
        missing = {name: at for name, at in chosen.items() if name in end.at and name not in end.origins}
        return dataclasses.replace(end, origins={**end.origins, **missing}).to_json()

    def compare(self, reached: Offset, committed: Offset) -> None:
        """Raise WalForeign when the checkpoint has not ``reached`` what this reader has committed: then the
        reader committed with another checkpoint.
        """
        state = self.state
        if self._compared or reached.foreign:
            return
        self._compared = True
        if not state.updated and reached.begun:
            self._refuse_unknown()
        if not state.begun:
            if committed.at:
                self.save(committed.at, begun=True)
            return
        # A later offset leaves receivers out that have ended.
        known = {each.receiver for each in self.wal.receivers() if not each.ended} | reached.at.keys()
        if any(at > reached.position(name) for name, at in state.at.items() if name in known):
            raise WalForeign(
                f"the checkpoint is older than what reader {self.options.reader!r} of the log "
                f"{shown(self.wal.location)} has committed: give the query the checkpoint that it used "
                "last, or, if two queries read this log in turn, give each a name of its own: option reader"
            )

    def _refuse_unknown(self) -> None:
        """Raise WalForeign: the checkpoint has offsets, but the log does not know this reader."""
        text = (
            f"the log {shown(self.wal.location)} does not know the reader {self.options.reader!r}, of which "
            "the checkpoint has offsets: it was removed, or had another name, so rows that it has not read "
            "may be deleted"
        )
        if self.options.fail_on_data_loss:
            raise WalForeign(
                f"{text}. Give the query the name that it had (option reader); or failOnDataLoss=false goes "
                "on with what the log holds"
            )
        log.warning("%s; going on with what the log holds", text)

    def save(self, at: Mapping[str, Position], *, begun: bool, starting: str | None = None) -> None:
        options = self.options
        starting = options.starting if starting is None else starting
        self.state = ReaderState(
            dict(at), begun, starting, time.time(), options.retention, options.retention_bytes
        )
        self.wal.save_reader(self.options.reader, self.state)

    def note_committed(self, committed: Offset) -> None:
        try:
            self.save(committed.at, begun=True)
        except WalOwned:
            raise
        except WalError as error:
            # Spark's checkpoint has the position, and the next deletion may free the space that is missing.
            log.warning("the position of reader %s cannot be noted: %s", self.options.reader, error)
