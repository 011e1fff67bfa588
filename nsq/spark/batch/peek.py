"""``spark.read.format("nsq")``: a look at messages that takes none away.

Loaded only when something is read, as this imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsq.errors import ConfigError
from nsq.spark.batch.peeking import PEEK, PeekOptions, asking, peek, places, safe_places
from nsq.spark.rows import checked, fields

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Messages of a batch of rows.
_CHUNK = 1000


class PeekReader(DataSourceReader):
    """Each action looks anew, and sees what comes while it looks. Raises ConfigError, in one line, unless a
    look is what was asked for.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        if "mode" not in {name.lower() for name in given}:
            raise ConfigError(
                "spark.read would take messages from the channel again with every action: "
                "spark.readStream with .trigger(availableNow=True) takes what is there once, and "
                f'spark.read with .option("mode", "{PEEK}") looks without taking'
            )
        self._options = PeekOptions.of(given)
        self._columns = [field.name for field in checked(fields(schema))]

    def partitions(self) -> list[InputPartition]:
        """Also says, before anything is run, why there is nothing to see or it must not be looked at."""
        options = self._options
        # All nsqds at once: one task keeps the limit.
        return [InputPartition(safe_places(places(options), options.topic, asking(options.config)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from nsq.spark.wal import records

        topic = self._options.topic
        seen = peek(self._options, partition.value)
        for start in range(0, len(seen), _CHUNK):
            batch = records.stored_messages(topic, seen[start : start + _CHUNK])
            yield records.rows(batch, topic, self._columns)
