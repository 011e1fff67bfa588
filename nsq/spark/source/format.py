"""Format "nsq", as Spark finds it: ``spark.readStream.format("nsq")`` and all that goes with the name.

Spark makes one of these for every step of planning, in processes that come and go: it says what there
is, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from nsq.errors import ConfigError, NsqError
from nsq.spark import rows
from nsq.spark.arrow import require_arrow
from nsq.spark.source.options import SourceOptions
from nsq.spark.source.stream import NsqStreamReader

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

#: The option that tells a batch read, which looks without taking anything, from a stream.
MODE = "mode"


class NsqDataSource(DataSource):
    """``readStream`` consumes a topic, ``read`` with mode=peek looks at one, ``write`` and ``writeStream``
    publish."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        require_arrow()

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        """Only called for reading, and where the error of a wrong option can still be that of ``load()``."""
        if MODE not in self.options:
            try:
                SourceOptions.of(self.options)
            except NsqError as error:
                raise ConfigError(
                    f"{error} (this is about readStream; spark.read wants .option('{MODE}', 'peek'))"
                ) from None
        return rows.SCHEMA

    def streamReader(self, schema: StructType) -> NsqStreamReader:
        # An error here would be buried below one of Spark's own: it is raised by the first question.
        return NsqStreamReader(self.options, rows.fields(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        from nsq.spark.batch.peek import peek_reader

        return peek_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from nsq.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from nsq.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
