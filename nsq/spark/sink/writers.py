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
from nsq.spark.sink.rows import Columns
from nsq.spark.sink.task import SinkOptions, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("nsq.spark")


@dataclasses.dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What one task has done."""

    partition: int
    messages: int
    bytes: int
    seconds: float


class _Writer:
    """Publishes every row. Raises ConfigError, in one line, for what cannot be published as asked."""

    append = '.mode("append")'
    ignored: tuple[str, ...] = ()

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(f"what is published cannot be overwritten: {self.append}")
        self._options = SinkOptions.of(given, ignored=self.ignored)
        columns = [(field.name, field.dataType.typeName()) for field in schema.fields]
        self._columns = Columns.of(columns, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        context = TaskContext.get()
        started = time.monotonic()
        outcome = Task(self._options, self._columns).run(iterator)
        published = TaskReport(
            partition=context.partitionId() if context else 0,
            messages=outcome.messages,
            bytes=outcome.bytes,
            seconds=time.monotonic() - started,
        )
        log.info("published %s", published, extra=dataclasses.asdict(published))
        return published


class BatchWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report("the write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _report_abort("the write", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    append = '.outputMode("append")'
    ignored = ("checkpointLocation", "queryName")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _report(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _report_abort(f"batch {batchId}", messages)


def _published(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


def _report(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = _published(messages)
    log.info(
        "%s: %d messages, %d bytes published by %d tasks",
        what,
        sum(message.messages for message in done),
        sum(message.bytes for message in done),
        len(done),
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
