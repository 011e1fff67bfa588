"""The options of ``spark.readStream.format("nsq")``. Imports neither pyspark nor pyarrow."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import ClassVar

from nsq.errors import ConfigError, WalForeign
from nsq.options import OptionHelp
from nsq.spark.options import LASTING, MOMENT, Nsqds, count, names, octets, option, seconds, switch
from nsq.spark.source.offsets import Offset
from nsq.spark.wal.readers import DEFAULT, check_reader
from nsq.wire.names import check_channel, check_topic

_MIB = 1 << 20
_GIB = 1 << 30

EARLIEST, LATEST, COMMITTED = "earliest", "latest", "committed"
#: The startOffset of the first batch of a checkpoint, as JSON.
NOWHERE = "null"


def _topics(text: str) -> tuple[str, ...]:
    return tuple(check_topic(name) for name in names(text))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{text!r} is not a regular expression: {error}") from None
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(Nsqds):
    """The options of a stream. As fields, durations are in seconds and sizes in bytes."""

    instead_of_kafka: ClassVar[Mapping[str, str]] = {
        "kafka.bootstrap.servers": "nsqd or lookupd",
        "kafka.group.id": "channel",
        "groupidprefix": "channel",
        "subscribe": "topic or topics",
        "subscribepattern": "topicsPattern",
        "assign": "topic, with nsqd: NSQ has no partitions",
        "startingoffsets": "startingPosition",
        "startingoffsetsbytimestamp": "startingTimestamp",
        "endingoffsets": "trigger(availableNow=True), which reads what there is and ends; or spark.read",
        "endingtimestamp": "trigger(availableNow=True), which reads what there is and ends; or spark.read",
        "maxoffsetspertrigger": "maxMessagesPerTrigger",
        "minoffsetspertrigger": "minMessagesPerTrigger",
        "includeheaders": "always on: column headers",
        "polltimeoutms": "linger",
        "fetchoffset.numretries": "reconnectMax",
    }
    one_of: ClassVar[Mapping[tuple[str, ...], str]] = {
        **Nsqds.one_of,
        ("topic", "topics", "topics_pattern"): "option topic is missing: .option('topic', …), or one of "
        "topics and topicsPattern",
    }

    topic: str = option("The topic to read.", check_topic, default="")
    topics: tuple[str, ...] = option(
        "Instead of topic: several, separated by commas. One may be added later.", _topics, default=()
    )
    topics_pattern: str = option(
        "Instead of topic: all topics whose whole name matches this regular expression, also new ones, which "
        "are looked for every 5 s.",
        _pattern,
        default="",
    )
    channel: str = option(
        "The channel to read from; its other consumers take a share of the messages.", check_channel
    )
    wal: str = option(
        "The log, which keeps messages until Spark has committed them: a directory, or an object store: s3://bucket/folder."
    )
    nsqd_http: tuple[str, ...] = option(
        "The HTTP addresses of the nsqds of option nsqd, which are asked for the depth of the channel; by "
        "default one port further: 4151 for 4150.",
        names,
        default=(),
    )

    reader: str = option(
        "The name under which this query reads the log. A second query on the same log needs another.",
        check_reader,
        default=DEFAULT,
    )
    key_header: str = option(
        "Partitioned NSQ: the header that column key shows. NSQ sends no keys: publishers have to put them "
        "into a header.",
        default="key",
    )
    starting_position: str = option(
        "Where a checkpoint without offsets begins: earliest (all that the log holds, the default of a new "
        "reader), latest (what comes from now on), committed (after what this reader has committed). Needed "
        "when the reader has read the log before.",
        default="",
        choices=("", EARLIEST, LATEST, COMMITTED),
    )
    starting_timestamp: int | None = option(
        "Instead of startingPosition: begin with the first segment that holds a message of that time or "
        "later: 2026-03-01T07:30 (UTC), or milliseconds since 1970.",
        MOMENT,
        default=None,
    )

    max_messages_per_trigger: int | None = count(None, "The most rows of a batch.")
    max_bytes_per_trigger: int | None = octets(None, "The most bytes of bodies of a batch.")
    min_messages_per_trigger: int = count(0, "A batch waits until there are so many rows …", low=0)
    max_trigger_delay: float = seconds(900.0, "… but no longer than this.")
    linger: float = seconds(0.25, "How long a batch waits for more rows after the first one.")
    min_partitions: int = count(1, "The least number of tasks of a batch that has enough rows.")
    target_partition_bytes: int = octets(32 * _MIB, "The bytes of bodies in one task.")

    receivers: int = count(1, "Receiver processes.", low=0)
    max_in_flight: int = count(
        20_000,
        "The most messages in flight per receiver and topic, over all its connections; fewer if bodies are "
        "large, so that all topics of a receiver together hold about 256 MiB.",
    )
    commit_interval: float = seconds(0.5, "How long received messages are collected before they are stored.")
    segment_bytes: int = octets(64 * _MIB, "The most bytes of bodies in a segment.")
    wal_max_bytes: int = octets(
        20 * _GIB,
        "The size of the log at which receiving pauses; living receivers share it evenly.",
    )
    retention: float = option(
        "How long a segment stays in the log after it was sealed and every reader has committed it, of the "
        "newest 200,000; 0: it is deleted at once.",
        LASTING,
        default=86_400.0,
        low=0,
    )
    retention_bytes: int = octets(
        10 * _GIB,
        "The most bytes of such segments, at most half of walMaxBytes: the oldest are deleted first.",
        low=0,
    )
    fsync: bool = switch(
        True,
        "false: leave it to the operating system when bytes reach the disk; a power cut may lose messages.",
    )

    fail_on_data_loss: bool = switch(True, "false: go on when a file of the log is gone, with a warning.")
    dead_letter_topic: str = option(
        "With maxAttempts: the topic for messages that were delivered more often.", default=""
    )
    available_now_idle: float = seconds(
        2.0,
        "AvailableNow: the run ends when no row has come for so long and nsqd has no more messages; with "
        "receivers=0, whatever nsqd has.",
    )
    available_now_timeout: float = seconds(
        0.0, "AvailableNow: the longest to receive the backlog; 0: no limit."
    )
    wait_for_in_flight: bool = switch(
        True, "AvailableNow: also wait for messages that other clients hold, and for deferred ones."
    )

    def __post_init__(self) -> None:
        if self.starting_position and self.starting_timestamp is not None:
            raise ConfigError("startingPosition and startingTimestamp are both given: leave one of them out")
        if sum(map(bool, (self.topic, self.topics, self.topics_pattern))) > 1:
            raise ConfigError("of topic, topics and topicsPattern only one can be given")
        if self.dead_letter_topic:
            if self.wants(check_topic(self.dead_letter_topic)):
                raise ConfigError(
                    f"deadLetterTopic is {self.dead_letter_topic!r}, which this stream reads: it would get "
                    "its dead letters again for ever; give another topic"
                )
            if not self.config.max_attempts:
                raise ConfigError("deadLetterTopic needs maxAttempts above 0: with 0 no message is given up")

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics of topic or topics; empty with topicsPattern."""
        return (self.topic,) if self.topic else self.topics

    @property
    def subscription(self) -> str:
        """The topics as text: ``orders``, ``clicks,orders`` or ``~shop_.*``."""
        return f"~{self.topics_pattern}" if self.topics_pattern else ",".join(sorted(self.named_topics))

    def wants(self, topic: str) -> bool:
        if self.topics_pattern:
            return re.fullmatch(self.topics_pattern, topic) is not None
        return topic in self.named_topics

    @property
    def starting(self) -> str:
        """startingPosition or startingTimestamp as text; empty when neither is given."""
        return self.starting_position if self.starting_timestamp is None else str(self.starting_timestamp)


def _position(text: str) -> str:
    """Check a position: a word, or an offset as JSON."""
    if text.startswith("{"):
        try:
            Offset.of_json(json.loads(text))
        except (ValueError, WalForeign):
            raise ConfigError(f"{text[:200]!r} is not an offset of this source") from None
    elif text not in (EARLIEST, LATEST, COMMITTED, NOWHERE):
        raise ConfigError(f"{text!r} is not {EARLIEST}, {LATEST}, {COMMITTED}, or an offset as JSON")
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions(SourceOptions):
    """The options of a batch read. Those of a stream that ``describe`` does not list are accepted too, so
    that one set of options serves both, and have no effect."""

    instead_of_kafka: ClassVar[Mapping[str, str]] = {
        **SourceOptions.instead_of_kafka,
        "endingoffsets": "endingPosition",
        "endingoffsetsbytimestamp": "endingTimestamp",
    }
    one_of: ClassVar[Mapping[tuple[str, ...], str]] = {}

    channel: str = option("The channel of the log.", check_channel, default="")
    reader: str = option("The reader whose position committed is.", check_reader, default=DEFAULT)
    starting_position: str = option(
        "The first row: earliest (the first that the log holds), committed (the first that option reader has "
        "not committed), or after an offset: startOffset or endOffset of a stream's progress, as JSON.",
        _position,
        default=EARLIEST,
    )
    starting_timestamp: int | None = option(
        "No messages before that time: 2026-03-01T07:30 (UTC), or milliseconds since 1970.",
        MOMENT,
        default=None,
    )
    ending_position: str = option(
        "The last row: latest (the last that the log holds), committed (the last that option reader has "
        "committed), or that of an offset.",
        _position,
        default=LATEST,
    )
    ending_timestamp: int | None = option(
        "Only messages before that time.",
        MOMENT,
        default=None,
    )

    def __post_init__(self) -> None:
        """Positions and times may both be given; what a stream alone needs is checked there."""

    @classmethod
    def describe(cls) -> list[OptionHelp]:
        lines = {line.name: line for line in super().describe()}
        return [lines[name] for name in _OF_A_READ]


_OF_A_READ = (
    *("wal", "startingPosition", "startingTimestamp", "endingPosition", "endingTimestamp", "reader"),
    *("minPartitions", "targetPartitionBytes", "failOnDataLoss"),
)
