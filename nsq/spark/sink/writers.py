"""The writers that Spark drives: ``df.write.format("nsq")`` and ``writeStream``.

Loaded only when something is written, as this imports pyspark.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from nsq.errors import ConfigError
from nsq.spark.sink.columns import Columns
from nsq.spark.sink.markers import Markers
from nsq.spark.sink.options import PARTITION, SinkOptions
from nsq.spark.sink.task import Resumption, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("nsq.spark")

_CHECKPOINT = "checkpointLocation"
_SPARKS_OWN = (_CHECKPOINT, "queryName")

#: As Spark names them; the batch id reaches a task no other way.
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclasses.dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What one task has done."""

    partition: int
    messages: int
    bytes: int
    skipped: int
    seconds: float
    query: str = ""


class BatchWriter(DataSourceArrowWriter):
    """Publishes every row; see ``nsq.spark.sink``."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return _run(Task(self._options, self._columns), iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report("the write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _report_abort("the write", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes every row of every batch; see ``nsq.spark.sink``."""

    def __init__(self, options: SinkOptions, columns: Columns, checkpoint: str) -> None:
        """``checkpoint`` is empty unless partitions are to be resumed."""
        self._options = options
        self._columns = columns
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return _run(Task(self._options, self._columns), iterator, self._resumption())

    def _resumption(self) -> Resumption | None:
        if not self._checkpoint:
            return None
        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH_ID) if context else None
        query = context.getLocalProperty(_QUERY_ID) if context else None
        if context is None or batch is None or query is None:
            raise ConfigError("resume=partition needs to know the batch, which this Spark does not tell")
        return Resumption(Markers.of(self._checkpoint, query), int(batch), context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _report(f"batch {batchId}", messages)
        if self._checkpoint:
            # Not this batch's: until Spark has written down that it is done, it may be run again.
            for query in {message.query for message in _published(messages) if message.query}:
                Markers.of(self._checkpoint, query).forget_before(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _report_abort(f"batch {batchId}", messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise ConfigError('what is published cannot be overwritten: .mode("append")')
    read = SinkOptions.of(options)
    if read.resume == PARTITION:
        raise ConfigError(
            "resume=partition is for streams, which run a batch again with the same number: resume=none"
        )
    return BatchWriter(read, _columns(schema, read))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    if overwrite:
        raise ConfigError('what is published cannot be overwritten: .outputMode("append")')
    read = SinkOptions.of(options, ignored=_SPARKS_OWN)
    checkpoint = ""
    if read.resume == PARTITION:
        checkpoint = {name.lower(): text for name, text in options.items()}.get(_CHECKPOINT.lower(), "")
        if not checkpoint:
            raise ConfigError(
                "resume=partition keeps its notes below the checkpoint: .option('checkpointLocation', …)"
            )
    return StreamWriter(read, _columns(schema, read), checkpoint)


def _columns(schema: StructType, options: SinkOptions) -> Columns:
    return Columns.of([(field.name, field.dataType.typeName()) for field in schema.fields], options.topic)


def _run(task: Task, batches: Iterator[pa.RecordBatch], resumption: Resumption | None) -> TaskReport:
    context = TaskContext.get()
    started = time.monotonic()
    outcome = task.run(batches, resumption)
    published = TaskReport(
        partition=context.partitionId() if context else 0,
        messages=outcome.messages,
        bytes=outcome.bytes,
        skipped=outcome.skipped,
        seconds=time.monotonic() - started,
        query=(context.getLocalProperty(_QUERY_ID) or "") if context else "",
    )
    log.info("published %s", published, extra=dataclasses.asdict(published))
    return published


def _published(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


def _report(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = _published(messages)
    log.info(
        "%s: %d messages, %d bytes published by %d tasks; %d had been published before",
        what,
        sum(message.messages for message in done),
        sum(message.bytes for message in done),
        len(done),
        sum(message.skipped for message in done),
    )


def _report_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = _published(messages)
    log.warning(
        "%s failed: %d of its %d tasks have reported their %d messages as published, others may have "
        "published theirs; all these stay published, and are published again when it is run again",
        what,
        len(done),
        len(messages),
        sum(message.messages for message in done),
    )
