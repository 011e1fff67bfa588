"""The writers that Spark drives: ``df.write.format("nsq")`` and ``writeStream``.

Loaded only when something is written, as this imports pyspark.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from nsq.errors import ConfigError
from nsq.spark.sink.task import Columns, SinkOptions, publish_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("nsq.spark")


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


class BatchWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell_end("the write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell_end("the write", messages, failed=True)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    append = '.outputMode("append")'
    ignored = ("checkpointLocation", "queryName")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _tell_end(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _tell_end(f"batch {batchId}", messages, failed=True)


def _tell_end(what: str, messages: Sequence[WriterCommitMessage | None], failed: bool = False) -> None:
    done = [message for message in messages if isinstance(message, TaskReport)]
    count = sum(message.messages for message in done)
    if failed:
        log.warning(
            "%s failed: %d of its %d tasks have reported their %d messages as published, others may have "
            "published theirs; all these stay published, and are published again when it is run again",
            what,
            len(done),
            len(messages),
            count,
        )
    else:
        size = sum(message.bytes for message in done)
        log.info("%s: %d messages, %d bytes published by %d tasks", what, count, size, len(done))
