"""Batch reads of the log: ``spark.read.format("nsq")``. They receive nothing, delete nothing, and are no
readers: what they plan to read may be deleted before they have read it.

A read is bounded by positions, which choose segments, and by times, which choose rows: those of the options,
and those of the query's conditions on ``timestamp`` and ``timestamp_ns``. Segments without a message of these
times are not read.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from nsq.errors import ConfigError, SegmentLost, UsageError, WalError, WalForeign
from nsq.log import Logger
from nsq.spark import options, rows
from nsq.spark.rows import Field
from nsq.spark.source.offsets import ALWAYS, Offset, Slice, TimeRange, between, names_of, tasks
from nsq.spark.source.options import COMMITTED, EARLIEST, LATEST, NOWHERE, ReadOptions
from nsq.spark.wal import Subject, open_wal, readers
from nsq.spark.wal.names import Listing, Position, ReceiverState
from nsq.spark.wal.store import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from nsq.spark.wal.log import Wal

log = Logger("nsq.spark.source")

#: The setting with which Spark tells a source the conditions of a query, and the module that it then runs.
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


# What Spark calls


def reader_of(given: Mapping[str, str], columns: Sequence[Field]) -> LogReader:
    """The reader for this process of Spark. One with ``pushFilters`` is refused, unless ``PUSHDOWN`` is set:
    then Spark pushes filters in a process that runs another module."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    pushing = _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)
    return (FilteringReader if pushing else LogReader)(given, columns)


class LogReader(DataSourceReader):
    """Reads the log, without the conditions of a query: Spark itself applies them."""

    def __init__(self, given: Mapping[str, str], columns: Sequence[Field]) -> None:
        chosen = ReadOptions.of(given)
        self._given = dict(given)
        self._columns = rows.checked(columns)
        self._times = ALWAYS.narrowed(chosen.starting_timestamp, chosen.ending_timestamp)

    def partitions(self) -> list[InputPartition]:
        from nsq.spark.source.reading import Portion

        chosen = ReadOptions.of(self._given)
        wal = open_wal(chosen.wal)
        strict, times = chosen.fail_on_data_loss, self._times
        portions = [Portion(wal.location, tuple(task), strict, times) for task in plan(chosen, wal, times)]
        # Spark needs a partition even if there is nothing to read.
        return [InputPartition(portion) for portion in portions or [Portion(wal.location, (), strict)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from nsq.spark.source.reading import read

        return read(partition.value, self._columns)


class FilteringReader(LogReader):
    """Also applies the conditions of a query on the time."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Take the conditions that ``narrowed_by`` can apply; return the others, which Spark applies."""
        others = []
        for condition in filters:
            times = narrowed_by(condition, self._times)
            if times is None:
                others.append(condition)
            else:
                self._times = times
        return others


def narrowed_by(condition: Filter, times: TimeRange) -> TimeRange | None:
    """Those of ``times`` that fulfil a condition; None if it does not compare a column of time."""
    match condition:
        case (
            EqualTo((column,), value)
            | EqualNullSafe((column,), value)
            | GreaterThan((column,), value)
            | GreaterThanOrEqual((column,), value)
            | LessThan((column,), value)
            | LessThanOrEqual((column,), value)
        ):
            pass
        case _:
            return None
    if column == "timestamp" and isinstance(value, datetime.datetime) and value.tzinfo is not None:
        first = options.moment(value)
        after = first + 1000  # Spark's timestamps have microseconds
    elif column == "timestamp_ns" and isinstance(value, int):
        first, after = value, value + 1
    else:
        return None
    kind = type(condition)
    since = None if kind in (LessThan, LessThanOrEqual) else after if kind is GreaterThan else first
    until = None if kind in (GreaterThan, GreaterThanOrEqual) else first if kind is LessThan else after
    return times.narrowed(since, until)


# Which slices of the log are read


def plan(chosen: ReadOptions, wal: Wal, times: TimeRange) -> list[list[Slice]]:
    """The tasks of a read. Raises SegmentLost if the log lacks some of it."""
    place = shown(wal.location)
    identity = wal.identity()
    if identity is None:
        raise WalError(f"there is no log at {place}")
    if chosen.starting_position == LATEST or chosen.ending_position == EARLIEST:
        raise ConfigError("startingPosition=latest or endingPosition=earliest leaves nothing to read")
    if chosen.channel and chosen.subscription:
        Subject(chosen.subscription, chosen.channel).check(wal.subject(), place)
    start = position(chosen.starting_position, chosen.reader, wal, identity)
    end = position(chosen.ending_position, chosen.reader, wal, identity)
    listing = wal.listing(start.at if start else {}, {*(start.at if start else ()), *(end.at if end else ())})
    slices, lost = bounded(start, end, listing)
    if start is None and chosen.starting_timestamp is not None:
        lost += deleted_since(listing.receivers, chosen.starting_timestamp)
    if lost:
        text = f"{place} lacks a part of what is to be read: {', '.join(lost)}"
        if chosen.fail_on_data_loss:
            raise SegmentLost(f"{text}; failOnDataLoss=false goes on without it")
        log.warning("%s; going on without it", text)
    within = {file.segment for file in listing.files if times.overlaps(file.oldest, file.newest)}
    wanted = [piece for piece in slices if piece.segment in within]
    log.info(
        "reading %d of %d segments of %s; conditions on the time leave segments out if %s is true",
        *(len(wanted), len(slices), place, PUSHDOWN),
    )
    return tasks(wanted, chosen.target_partition_bytes, chosen.min_partitions)


def position(text: str, reader: str, wal: Wal, identity: str) -> Offset | None:
    """The position that an option names; None for the start or the end of the log."""
    if text == COMMITTED:
        known = wal.readers()
        if reader not in known:
            there = ", ".join(sorted(known)) or "none"
            raise UsageError(f"the log {shown(wal.location)} has no reader {reader!r}; there are: {there}")
        return Offset(identity, known[reader].at)
    if text == NOWHERE:
        return Offset(identity)
    if not text.startswith("{"):
        return None
    found = Offset.of_json(json.loads(text))
    if found.wal != identity:
        raise WalForeign(
            f"the position belongs to the log {found.wal}, but {shown(wal.location)} is the log {identity}: "
            "give option wal the place of that log"
        )
    return found


def bounded(start: Offset | None, end: Offset | None, listing: Listing) -> tuple[list[Slice], list[str]]:
    """The slices between two positions, and what of them is lost, as text."""
    segments = [file.segment for file in listing.files]
    held = {each.receiver: Position(each.first - 1) for each in listing.receivers}
    told: list[str] = []
    if end is None:
        after = start.at if start else {}
        told = readers.lost(after, listing.receivers) if start else []
        start = Offset("", {receiver: max(at, after.get(receiver, at)) for receiver, at in held.items()})
        end = Offset("", {segment.receiver: Position(segment.number) for segment in segments})
    elif start is None:
        start, end = Offset("", held), Offset("", {name: at for name, at in end.at.items() if name in held})
    slices, lost = between(start, end, segments)
    return slices, told + names_of(lost)


def deleted_since(receivers: Collection[ReceiverState], since: int) -> list[str]:
    """The messages of that time or later that are deleted, as text."""
    return [
        f"messages of receiver {each.receiver} up to {_shown(each.deleted)}"
        for each in receivers
        if each.first > 1 and each.deleted >= since
    ]


def _shown(moment: int) -> str:
    return str(options.EPOCH + datetime.timedelta(microseconds=moment // 1000))
