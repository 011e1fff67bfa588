"""``spark.read.format("nsq")`` with mode=peek: a look at messages over a temporary channel, where that takes
nothing from other channels.

A channel gets a copy of every message, so a temporary one of our own takes nothing away: as long as there is
another channel. A topic without any keeps its messages for the first one there is: if that were ours, they
would be gone with it. Ephemeral channels do not count, as they may leave at any moment.

Another client may still delete the last lasting channel between the question and the look. So it is asked
again when the look has begun, which then ends at once: what was published in those moments can be lost, and
the error says so.

Loaded only when something is read, as this imports pyspark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsq.config import Config
from nsq.consumer.consumer import Consumer
from nsq.errors import ConfigError, ConnectionFailed, NsqError, UsageError
from nsq.http.nsqd import NsqdApi
from nsq.message import Message
from nsq.spark import lookups
from nsq.spark.lookups import Place
from nsq.spark.options import Nsqds, count, names, option, seconds
from nsq.spark.rows import checked, fields
from nsq.transport import addresses
from nsq.transport.tls import context_of
from nsq.wire.names import EPHEMERAL, check_topic, is_ephemeral

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeekOptions(Nsqds):
    """Durations are seconds here."""

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


#: Messages of a batch of rows.
_CHUNK = 1000


class PeekReader(DataSourceReader):
    """Each action looks anew, and sees what comes while it looks. Raises ConfigError, in one line, unless a
    look is what was asked for.
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
        """Also says, before anything is run, why there is nothing to see or it must not be looked at."""
        options = self._options
        # All nsqds at once: one task keeps the limit.
        return [InputPartition(safe_places(places(options), options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from nsq.spark.wal import records

        topic = self._options.topic
        seen = peek(self._options, partition.value)
        for start in range(0, len(seen), _CHUNK):
            batch = records.stored_messages(topic, seen[start : start + _CHUNK])
            yield records.rows(batch, topic, self._columns)


#: Longer than any look: an nsqd that was lost is not dialed again, as its channels were not checked then.
_NEVER = 3600.0


def peek(options: PeekOptions, found: Sequence[Place]) -> list[Message]:
    """Messages that come within the time, copies of what other channels get."""
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
        connecting = options.config.handshake_timeout
        if not consumer.wait_until_connected(connecting, connections=len(safe)):
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
    """All nsqds in question. Raises ConfigError for one whose HTTP address has to be given."""
    if options.nsqd_http:
        found = list(map(Place, options.nsqd, options.nsqd_http))
    else:
        found = [_beside(tcp, options.config) for tcp in options.nsqd]
    having = lookups.nodes_of([options.topic])
    found += lookups.found_by_any(options.lookupd, options.config, having)
    return list({place.tcp: place for place in found}.values())


def _beside(tcp: str, config: Config) -> Place:
    """The HTTP address as nsqd has it by default, if it is one of the same nsqd."""
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
    """Those that have the topic; the others are left out, as looking would create it there.

    Raises UsageError when looking would take messages, and when no nsqd has the topic.
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
