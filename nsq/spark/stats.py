"""``spark.read.format("nsq_stats")`` has one row for each channel of each nsqd. Latencies are in seconds, and
null unless nsqd measures them. An nsqd that does not answer is a row with an ``error``.

Imports pyspark, so it is loaded only when something is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nsq.errors import ApiError, ConfigError
from nsq.http.nsqd import NsqdStats
from nsq.spark import lookups
from nsq.spark.lookups import Place
from nsq.spark.options import Nsqds, names, option, seconds, switch
from nsq.spark.rows import require_arrow
from nsq.spark.source.backlog import next_port
from nsq.wire.names import check_channel, check_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


#: Name, Spark's type, and the key in nsqd's stats of a channel.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatsOptions(Nsqds):
    """The options of format "nsq_stats". All nsqds that the nsqlookupds list are asked. As fields, durations
    are in seconds.
    """

    nsqd_http: tuple[str, ...] = option(
        "The HTTP addresses or URLs of the nsqds of option nsqd, in the same order; without it, one port "
        "further: 4151 for 4150.",
        names,
        default=(),
    )
    topic: str = option("Only this topic.", check_topic, default="")
    channel: str = option("Only this channel, of the topic.", check_channel, default="")
    timeout: float = seconds(5.0, "How long an nsqd may take to answer.", low=0.001)
    fail_fast: bool = switch(False, "true: fail if an nsqd does not answer, instead of a row that says so.")

    def __post_init__(self) -> None:
        if self.nsqd_http and len(self.nsqd_http) != len(self.nsqd):
            raise ConfigError("nsqdHttp must have as many addresses as nsqd")
        if self.channel and not self.topic:
            raise ConfigError(f"channel is {self.channel!r}, but of which topic? Give the option topic")


class NsqStatsDataSource(DataSource):
    """Format "nsq_stats". Register it with ``spark.dataSource.register``, or ``nsq.spark.register``."""

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
    """Reads stats; each action asks anew. Raises ConfigError for an unknown column."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        for name in schema.fieldNames():
            if name not in COLUMNS:
                raise ConfigError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        self._options = StatsOptions.of(given)
        self._columns = schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        http = options.nsqd_http or map(next_port, options.nsqd)
        given = (Place(*both, told=False) for both in zip(options.nsqd, http, strict=False))
        listed = lookups.places_or_raise(options.lookupd, options.config)
        places = {place.tcp: place for place in [*listed, *given]}
        # Spark needs a partition even if there is no nsqd.
        return [InputPartition(place) for place in places.values()] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        options, place = self._options, partition.value
        if place is None:
            return
        try:
            stats = lookups.stats_of(
                place.http, options, options.topic, options.channel, options.timeout, told=place.told
            )
            found = list(stats_rows(place.tcp, stats, options.channel))
        except ApiError as error:
            if options.fail_fast:
                raise
            found = [{"nsqd": place.tcp, "error": str(error)}]
        for row in found:
            yield tuple(row.get(name) for name in self._columns)


def stats_rows(nsqd: str, stats: NsqdStats, channel: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row per channel. A topic without channels gets one row, unless ``channel`` is given."""
    for topic in stats["topics"]:
        alone: list[Any] = [topic] if not topic["channels"] and not channel else []
        for each in [*topic["channels"], *alone]:
            # None unless nsqd is configured to measure it.
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
