"""The work of a task: read its slices of the log. A task gets the log's location, and nothing else of the
query. Imports pyarrow, never pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsq.errors import SegmentLost
from nsq.log import Logger
from nsq.spark.rows import Field
from nsq.spark.source.offsets import ALWAYS, Slice, TimeRange
from nsq.spark.wal import open_wal, records

log = Logger("nsq.spark.source")


class Portion(NamedTuple):
    """A task's share of a batch. Of its slices only messages of these times are read."""

    location: str
    slices: tuple[Slice, ...]
    fail_on_data_loss: bool
    times: TimeRange = ALWAYS


def read(portion: Portion, columns: Sequence[Field]) -> Iterator[pa.RecordBatch]:
    """Yield Spark's rows of a portion, with these columns in this order."""
    names = [column.name for column in columns]
    needed = records.needed(names if portion.times == ALWAYS else [*names, "timestamp_ns"])
    # Spark requires exactly the schema that it asked for, including nullability.
    schema = pa.schema([records.ROW.field(column.name).with_nullable(column.nullable) for column in columns])
    wal = open_wal(portion.location)
    for piece in portion.slices:
        try:
            batch = wal.read(piece.segment, needed).slice(piece.first, piece.rows)
        except SegmentLost as error:
            if portion.fail_on_data_loss:
                raise SegmentLost(f"{error}; failOnDataLoss=false goes on without it") from None
            log.warning("%s; going on without it", str(error))  # an error keeps objects alive
            continue
        row = records.rows(batch if portion.times == ALWAYS else _within(batch, portion.times), names)
        yield pa.RecordBatch.from_arrays(row.columns, schema=schema) if names else row


def _within(batch: pa.RecordBatch, times: TimeRange) -> pa.RecordBatch:
    moments = batch.column("timestamp_ns")
    inside = pc.and_(pc.greater_equal(moments, times.since), pc.less(moments, times.until))
    return batch if pc.all(inside).as_py() else batch.filter(inside)
