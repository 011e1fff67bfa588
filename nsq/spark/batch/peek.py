"""``spark.read.format("nsq")``: a look at messages that takes none away.

Loaded only when something is read, as this imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsq.errors import ConfigError
from nsq.message import Message
from nsq.spark.batch.options import PEEK, PeekOptions
from nsq.spark.batch.peeking import peek
from nsq.spark.batch.safety import Place, asking, places, safe_places

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Sight(InputPartition):
    """All nsqds at once: one task keeps the limit."""

    def __init__(self, found: Sequence[Place]) -> None:
        self.found = tuple(found)


class PeekReader(DataSourceReader):
    """Each action looks anew, and sees what comes while it looks."""

    def __init__(self, options: PeekOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> list[InputPartition]:
        """Also says, before anything is run, why there is nothing to see or it must not be looked at."""
        found = places(self._options)
        ask = asking(self._options.config)
        return [Sight(safe_places(found, self._options.topic, ask))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Sight)
        return _rows(peek(self._options, partition.found), self._options.topic, self._columns)


def _rows(messages: Sequence[Message], topic: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from nsq.spark.wal import records

    stored = records.batches(
        topic,
        [message.id for message in messages],
        [message.timestamp for message in messages],
        [message.attempts for message in messages],
        [message.nsqd_address for message in messages],
        [message.body for message in messages],
    )
    for batch in stored:
        yield records.rows(batch, topic, columns)


def peek_reader(options: Mapping[str, str], schema: StructType) -> PeekReader:
    """Raises ConfigError, in one line, unless a look is what was asked for."""
    given = {name.lower(): text for name, text in options.items()}
    if "mode" not in given:
        raise ConfigError(
            "spark.read would take messages from the channel again with every action: "
            "spark.readStream with .trigger(availableNow=True) takes what is there once, and "
            f'spark.read with .option("mode", "{PEEK}") looks without taking'
        )
    return PeekReader(PeekOptions.of(options), _columns(schema))


def _columns(schema: StructType) -> list[str]:
    from nsq.spark.wal.records import COLUMNS

    for name in schema.fieldNames():
        if name not in COLUMNS:
            raise ConfigError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
    return list(schema.fieldNames())
