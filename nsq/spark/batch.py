"""Batch reads with ``spark.read``: ``format("nsq")`` peeks at messages, ``format("nsq_stats")`` reads depths.

Imports pyspark, so it is loaded only when something is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nsq.config import Config
from nsq.errors import ApiError, ConfigError, ConnectionFailed, NsqError, UsageError
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.spark import lookups
from nsq.spark.lookups import Place
from nsq.spark.options import Nsqds, count, names, option, seconds, switch
from nsq.spark.rows import checked, fields, require_arrow
from nsq.transport import addresses
from nsq.transport.tls import context_of
from nsq.wire.names import EPHEMERAL, check_channel, check_topic, is_ephemeral

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from nsq.message import Message

# Peeking: reads messages through a temporary channel, and refuses where that would take them from others.
#
# Every channel gets a copy of each message, so our temporary channel takes nothing away, as long as the topic
# has another channel. A topic without channels keeps its messages for the first one: if that were ours, they
# would be lost with it. Ephemeral channels do not count, because they may vanish at any moment.
#
# Another client may delete the last lasting channel between that check and the peek. So we check again after
# connecting, and stop at once if the channel is gone: messages published in those moments can be lost, and
# the error says so.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeekOptions(Nsqds):
    """The options of a peek. As fields, durations are in seconds."""

    mode: str = option("peek, which looks at messages and takes none.", choices=("peek",))
    topic: str = option("The topic to look at.", check_topic)
    nsqd_http: tuple[str, ...] = option(
        "Their HTTP addresses, in the same order; by default the port above that of each nsqd.",
        names,
        default=(),
    )
    limit: int = count(1000, "The most rows.")
    timeout: float = seconds(10.0, "How long to look, if there are fewer.", low=0.001)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nsqd_http and len(self.nsqd_http) != len(self.nsqd):
            raise ConfigError("nsqdHttp must have as many addresses as nsqd")


#: Rows per Arrow batch.
_CHUNK = 1000


class PeekReader(DataSourceReader):
    """Reads with mode=peek. Each action peeks anew, and sees the messages that come meanwhile. Raises
    ConfigError without that mode.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        if "mode" not in {name.lower() for name in given}:
            raise ConfigError(
                "spark.read would take messages again with every action: spark.readStream with "
                '.trigger(availableNow=True) takes them once, .option("mode", "peek") looks without taking'
            )
        self._options = PeekOptions.of(given)
        self._columns = [field.name for field in checked(fields(schema))]

    def partitions(self) -> list[InputPartition]:
        """One partition with all nsqds. Raises UsageError when there is no topic, or a peek is not safe."""
        options = self._options
        # One task, so that the limit holds for all nsqds together.
        return [InputPartition(safe_places(places(options), options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from nsq.spark.wal import records

        topic = self._options.topic
        seen = peek(self._options, partition.value)
        for start in range(0, len(seen), _CHUNK):
            batch = records.stored_messages(topic, seen[start : start + _CHUNK])
            yield records.rows(batch, topic, self._columns)


#: Longer than any peek, so that a lost nsqd is not dialed again: its channels may have changed.
_NEVER = 3600.0


def peek(options: PeekOptions, found: Sequence[Place]) -> list[Message]:
    """Receive copies of the messages that come within the timeout."""
    from nsq.consumer.consumer import Consumer

    safe = safe_places(found, options)
    arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
    seen: list[Message] = []
    consumer = Consumer(
        options.topic,
        f"nsq-peek-{uuid.uuid4().hex[:12]}{EPHEMERAL}",
        nsqd=[place.tcp for place in safe],
        config=dataclasses.replace(
            options.config,
            max_in_flight=min(options.limit, 500),
            reconnect_initial=_NEVER,
            reconnect_max=_NEVER,
            max_attempts=0,
        ),
    )
    consumer.add_handler(arrived.put)
    try:
        consumer.start()
        if not consumer.wait_until_connected(options.config.handshake_timeout, connections=len(safe)):
            raise ConnectionFailed(
                f"not every nsqd of topic {options.topic!r} was reached: {consumer.health().summary}"
            )
        try:
            safe_places(safe, options)
        except UsageError as error:
            raise UsageError(
                f"a channel was deleted while the look began; what was published then may be lost: {error}"
            ) from None
        deadline = time.monotonic() + options.timeout
        with contextlib.suppress(queue.Empty):
            while len(seen) < options.limit:
                seen.append(arrived.get(timeout=max(0.0, deadline - time.monotonic())))
    finally:
        consumer.stop(5.0)
    return seen


def places(options: PeekOptions) -> list[Place]:
    """The nsqds to peek at. Raises ConfigError when the HTTP address of one must be given."""
    if options.nsqd_http:
        found = list(map(Place, options.nsqd, options.nsqd_http))
    else:
        found = [_beside(tcp, options.config) for tcp in options.nsqd]
    found += lookups.places_or_raise(options.lookupd, options.config, [options.topic])
    return list({place.tcp: place for place in found}.values())


def _beside(tcp: str, config: Config) -> Place:
    """The nsqd at ``tcp``, with HTTP on the next port. Raises ConfigError if another nsqd answers there."""
    wanted = f"give the address of {tcp}'s HTTP API, where it is asked for its channels: option nsqdHttp"
    if addresses.is_unix(tcp):
        raise ConfigError(wanted)
    host, port = addresses.split(tcp)
    http = addresses.join(host, port + 1)
    try:
        told = NsqdApi(http, tls=context_of(config)).info().tcp_port
    except NsqError as error:
        raise ConfigError(f"{wanted} ({error})") from None
    if told != port:
        raise ConfigError(f"{wanted} ({http} is that of an nsqd with port {told})")
    return Place(tcp, http)


def safe_places(found: Iterable[Place], options: PeekOptions) -> list[Place]:
    """The nsqds that have the topic; a peek would create it on the others.

    Raises UsageError when a peek would take messages, and when no nsqd has the topic.
    """
    topic, safe = options.topic, []
    for place in found:
        for told in lookups.stats_of(place.http, options.config, topic)["topics"]:
            if told["topic_name"] == topic:
                if all(is_ephemeral(channel["channel_name"]) for channel in told["channels"]):
                    raise UsageError(
                        f"topic {topic!r} has no lasting channel on {place.tcp}: a look would take what the "
                        "topic keeps for its first one. Create the channel that it is meant for, then look"
                    )
                safe.append(place)
    if not safe:
        raise UsageError(f"no nsqd has a topic {topic!r}: there is nothing to look at")
    return safe


# Stats: one row for each channel of each nsqd. ``nsqd`` is the HTTP address that was asked; latencies are in
# seconds, and null unless nsqd measures them. An nsqd that does not answer is a row with an ``error``.


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
    """The options of format "nsq_stats". ``nsqd`` and ``lookupd`` are HTTP addresses or URLs; all nsqds that
    the nsqlookupds list are asked. As fields, durations are in seconds.
    """

    topic: str = option("Only this topic.", check_topic, default="")
    channel: str = option("Only this channel, of the topic.", check_channel, default="")
    timeout: float = seconds(5.0, "How long an nsqd may take to answer.", low=0.001)
    fail_fast: bool = switch(False, "true: fail if an nsqd does not answer, instead of a row that says so.")

    def __post_init__(self) -> None:
        if not self.nsqd and not self.lookupd:
            raise ConfigError(
                "option lookupd or nsqd is missing: .option('lookupd', 'host:4161'), or "
                ".option('nsqd', 'host:4151') with the port of its HTTP API"
            )
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
        listed = lookups.places_or_raise(options.lookupd, options.config)
        nsqds = [*options.nsqd, *(place.http for place in listed)]
        # Spark needs a partition even if there is no nsqd.
        return [InputPartition(nsqd) for nsqd in dict.fromkeys(nsqds)] or [InputPartition("")]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        options, nsqd = self._options, partition.value
        if not nsqd:
            return
        try:
            told = lookups.stats_of(nsqd, options.config, options.topic, options.channel, options.timeout)
            found = list(stats_rows(nsqd, told, options.channel))
        except ApiError as error:
            if options.fail_fast:
                raise
            found = [{"nsqd": nsqd, "error": str(error)}]
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
