"""``spark.read.format("nsq_stats")``: what waits where, one row for each channel of each nsqd.

    (spark.read.format("nsq_stats").option("lookupd", "10.0.0.7:4161").load()
       .groupBy("topic", "channel").sum("depth", "in_flight"))

The columns are those of ``depths.COLUMNS``. ``nsqd`` is the HTTP address that was asked; latencies are
seconds, and there if nsqd measures them. An nsqd that does not answer is a row with an ``error``.

Loaded only when something is read, as this imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nsq.errors import ApiError, ConfigError
from nsq.http.nsqd import NsqdApi
from nsq.spark.arrow import require_arrow
from nsq.spark.batch import depths
from nsq.spark.batch.nodes import all_nodes
from nsq.spark.batch.options import StatsOptions
from nsq.transport.tls import context_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class NsqStatsDataSource(DataSource):
    """Register it with ``spark.dataSource.register``, or ``nsq.spark.register``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        require_arrow()

    @classmethod
    def name(cls) -> str:
        return "nsq_stats"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in depths.COLUMNS.items())

    def reader(self, schema: StructType) -> StatsReader:
        return stats_reader(self.options, schema)


class Asked(InputPartition):
    """One nsqd, or none if there is none at all: Spark makes a partition even then."""

    def __init__(self, nsqd: str) -> None:
        self.nsqd = nsqd


class StatsReader(DataSourceReader):
    """Each action asks anew."""

    def __init__(self, options: StatsOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        nsqds = list(options.nsqd)
        if options.lookupd:
            nsqds += [node.http_address for node in all_nodes(options.lookupd, options.config)]
        return [Asked(nsqd) for nsqd in dict.fromkeys(nsqds)] or [Asked("")]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Asked)
        for row in self._rows(partition.nsqd) if partition.nsqd else ():
            yield depths.projected(row, self._columns)

    def _rows(self, nsqd: str) -> Iterator[depths.Row]:
        options = self._options
        try:
            api = NsqdApi(nsqd, timeout=options.timeout, tls=context_of(options.config))
            stats = api.stats(options.topic, options.channel, include_clients=False)
        except ApiError as error:
            if options.fail_fast:
                raise
            yield depths.failed(nsqd, error)
            return
        yield from depths.rows(nsqd, stats, options.channel)


def stats_reader(options: Mapping[str, str], schema: StructType) -> StatsReader:
    for name in schema.fieldNames():
        if name not in depths.COLUMNS:
            raise ConfigError(f"there is no column {name!r}; there are {', '.join(depths.COLUMNS)}")
    return StatsReader(StatsOptions.of(options), schema.fieldNames())
