"""``spark.read.format("nsq_stats")``: what waits where, one row for each channel of each nsqd.

``nsqd`` is the HTTP address that was asked; latencies are seconds, and there if nsqd measures them. An nsqd
that does not answer is a row with an ``error``.

Loaded only when something is read, as this imports pyspark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nsq.errors import ApiError, ConfigError
from nsq.http.nsqd import NsqdStats
from nsq.spark import lookups
from nsq.spark.options import Options, names, option, seconds, switch
from nsq.spark.registration import require_arrow
from nsq.wire.names import check_channel, check_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Names, Spark's types, and what nsqd calls those that it tells of each channel.
_COLUMNS = (
    ("nsqd", "string", ""),
    ("topic", "string", ""),
    ("channel", "string", "channel_name"),
    ("depth", "bigint", "depth"),
    ("backend_depth", "bigint", "backend_depth"),
    ("in_flight", "bigint", "in_flight_count"),
    ("deferred", "bigint", "deferred_count"),
    ("requeued", "bigint", "requeue_count"),
    ("timed_out", "bigint", "timeout_count"),
    ("message_count", "bigint", "message_count"),
    ("clients", "int", "client_count"),
    ("paused", "boolean", "paused"),
    ("topic_depth", "bigint", ""),
    ("topic_paused", "boolean", ""),
    ("e2e_latency", "map<string,double>", ""),
    ("error", "string", ""),
)
COLUMNS = tuple(name for name, _, _ in _COLUMNS)

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatsOptions(Options):
    """Durations are seconds here."""

    nsqd: tuple[str, ...] = option(
        "HTTP addresses of nsqds, host:4151 or a URL, separated by commas.", names, default=()
    )
    lookupd: tuple[str, ...] = option(
        "HTTP addresses of nsqlookupds, host:4161 or a URL, separated by commas: all nsqds that they list.",
        names,
        default=(),
    )
    topic: str = option("Only this topic.", default="")
    channel: str = option("Only this channel, of the topic.", default="")
    timeout: float = seconds(5.0, "How long an nsqd may take to answer.", low=0.001)
    fail_fast: bool = switch(False, "true: fail if an nsqd does not answer, instead of a row that says so.")

    def __post_init__(self) -> None:
        if not self.nsqd and not self.lookupd:
            raise ConfigError(
                "option lookupd or nsqd is missing: .option('lookupd', 'host:4161'), or "
                ".option('nsqd', 'host:4151') with the port of its HTTP API"
            )
        for name, check in ((self.topic, check_topic), (self.channel, check_channel)):
            if name:
                check(name)
        if self.channel and not self.topic:
            raise ConfigError(f"channel is {self.channel!r}, but of which topic? Give the option topic")


class NsqStatsDataSource(DataSource):
    """Register it with ``spark.dataSource.register``, or ``nsq.spark.register``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        require_arrow()

    @classmethod
    def name(cls) -> str:
        return "nsq_stats"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind, _ in _COLUMNS)

    def reader(self, schema: StructType) -> StatsReader:
        return StatsReader(self.options, schema)


class StatsReader(DataSourceReader):
    """Each action asks anew. Raises ConfigError for a column that there is not."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        for name in schema.fieldNames():
            if name not in COLUMNS:
                raise ConfigError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        self._options = StatsOptions.of(given)
        self._columns = schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        listed = lookups.found_by_any(options.lookupd, options.config, lookups.nodes_of())
        nsqds = [*options.nsqd, *(place.http for place in listed)]
        # Spark wants a partition even where there is no nsqd.
        return [InputPartition(nsqd) for nsqd in dict.fromkeys(nsqds)] or [InputPartition("")]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        options, nsqd = self._options, partition.value
        if not nsqd:
            return
        try:
            told = lookups.stats_of(nsqd, options.config, options.topic, options.channel, options.timeout)
            found = list(rows(nsqd, told, options.channel))
        except ApiError as error:
            if options.fail_fast:
                raise
            found = [{"nsqd": nsqd, "error": str(error)}]
        for row in found:
            yield tuple(row.get(name) for name in self._columns)


def rows(nsqd: str, stats: NsqdStats, channel: str = "") -> Iterator[Row]:
    """A topic that has no channel yet is a row without one, unless a certain channel is wanted."""
    for topic in stats["topics"]:
        alone: list[Any] = [topic] if not topic["channels"] and not channel else []
        for each in [*topic["channels"], *alone]:
            # None unless nsqd was told to measure it.
            percentiles = (each.get("e2e_processing_latency") or {}).get("percentiles") or []
            latency = {f"p{one['quantile'] * 100:g}": one["value"] * 1e-9 for one in percentiles}
            yield {
                "nsqd": nsqd,
                "topic": topic["topic_name"],
                "topic_depth": topic["depth"],
                "topic_paused": topic["paused"],
                "e2e_latency": latency or None,
                **{name: each.get(theirs) for name, _, theirs in _COLUMNS if theirs},
            }
