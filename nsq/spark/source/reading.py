"""The work of a task: read its slices of the log. A task gets the log's location, and nothing else of the
query. Imports pyarrow, never pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsq.errors import SegmentLost
from nsq.log import Logger
from nsq.spark.rows import Field
from nsq.spark.source.offsets import Slice
from nsq.spark.wal import Segment, open_wal, records

if TYPE_CHECKING:
    from nsq.spark.wal.log import Wal

log = Logger("nsq.spark.source")


class Portion(NamedTuple):
    """A task's share of a batch."""

    location: str
    slices: tuple[Slice, ...]
    fail_on_data_loss: bool


def read(portion: Portion, columns: Sequence[Field]) -> Iterator[pa.RecordBatch]:
    """Yield Spark's rows of a portion, with these columns in this order."""
    names = [column.name for column in columns]
    # Spark requires exactly the schema that it asked for, including nullability.
    schema = pa.schema([records.ROW.field(column.name).with_nullable(column.nullable) for column in columns])
    wal = open_wal(portion.location)
    for piece in portion.slices:
        try:
            row = records.rows(_cut(wal, piece), names)
            yield pa.RecordBatch.from_arrays(row.columns, schema=schema) if names else row
        except SegmentLost as error:
            if portion.fail_on_data_loss:
                raise SegmentLost(f"{error}; failOnDataLoss=false goes on without it") from None
            log.warning("%s; going on without it", str(error))  # an error keeps objects alive


def _cut(wal: Wal, piece: Slice) -> pa.RecordBatch:
    return wal.read(piece.segment).slice(piece.first, piece.rows)


def newest(wal: Wal, segment: Segment) -> int | None:
    """The time of a segment's newest message, in nanoseconds since 1970; None if it cannot be read."""
    try:
        return int(pc.max(wal.read(segment).column("timestamp_ns")).as_py())
    except SegmentLost:
        return None


def published(wal: Wal, piece: Slice) -> float | None:
    """The time of a slice's first message, in seconds since 1970; None if it is lost."""
    try:
        first = _cut(wal, piece)
    except SegmentLost:
        return None
    return int(first.column("timestamp_ns")[0].as_py()) / 1e9
