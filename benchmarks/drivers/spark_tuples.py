"""Format "nsq_tuples": reads the same log with the same reader, and gives Spark single rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nsq.spark import rows
from nsq.spark.source.stream import NsqDataSource, NsqStreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType


class TupleReader(NsqStreamReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class NsqTuples(NsqDataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq_tuples"

    def streamReader(self, schema: StructType) -> TupleReader:  # noqa: N802 - Spark's name
        return TupleReader(self.options, rows.fields(schema))
