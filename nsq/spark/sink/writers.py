"""The writers that Spark drives: ``df.write.format("nsq")`` and ``writeStream``.

Loaded only when something is written, as this imports pyspark.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nsq.errors import ConfigError
from nsq.spark.sink.task import Columns, SinkOptions, publish_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("nsq.spark")

#: What the tasks of a write have said; None for one that did not come to its end.
Messages = list[WriterCommitMessage | None]


@dataclasses.dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What one task has published."""

    messages: int
    bytes: int


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
        return TaskReport(*publish_rows(self._options, self._columns, iterator))

    def commit(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        done = _reports(messages)
        count, size = sum(report.messages for report in done), sum(report.bytes for report in done)
        what = _what(batchId)
        log.info("%s: %d messages, %d bytes published by %d tasks", what, count, size, len(done))

    def abort(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        done = _reports(messages)
        log.warning(
            "%s failed: %d of its %d tasks have reported their %d messages as published, others may have "
            "published theirs; all these stay published, and are published again when it is run again",
            *(_what(batchId), len(done), len(messages), sum(report.messages for report in done)),
        )


def _what(batch: int | None) -> str:
    return "the write" if batch is None else f"batch {batch}"


def _reports(messages: Messages) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


class BatchWriter(_Writer, DataSourceArrowWriter):
    pass


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    append = '.outputMode("append")'
    ignored = ("checkpointLocation", "queryName")
