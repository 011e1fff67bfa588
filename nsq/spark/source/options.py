"""What ``spark.readStream.format("nsq")`` can be told. Imports neither pyspark nor pyarrow."""

from __future__ import annotations

import dataclasses

from nsq.spark.options import Options, duration, names, option, require_address, size, whole, yes_no
from nsq.wire.names import check_channel, check_topic

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """Durations are seconds here, sizes bytes."""

    topic: str = option("The topic to read.", check_topic)
    channel: str = option(
        "The channel to read it from; every other reader of that channel takes a share.", check_channel
    )
    wal: str = option(
        "Where messages are kept until Spark is done with them: a directory, or a URI of pyarrow.fs."
    )
    nsqd: tuple[str, ...] = option("nsqds, host:port, separated by commas.", names, default=())
    lookupd: tuple[str, ...] = option("nsqlookupds, host:port, separated by commas.", names, default=())
    nsqd_http: tuple[str, ...] = option(
        "Where the nsqds of option nsqd answer HTTP, for the depth of the channel; without it, one port "
        "further: 4151 for 4150.",
        names,
        default=(),
    )

    max_messages_per_trigger: int | None = option("The most rows of a batch.", whole, default=None, low=1)
    max_bytes_per_trigger: int | None = option(
        "The most bytes of bodies of a batch.", size, default=None, low=1
    )
    min_messages_per_trigger: int = option(
        "Wait for that many rows before a batch …", whole, default=0, low=0
    )
    max_trigger_delay: float = option("… but no longer than this.", duration, default=900.0, low=0)
    linger: float = option(
        "How long a batch waits for more once there is something.", duration, default=0.25, low=0
    )
    min_partitions: int = option(
        "Split a batch into at least so many tasks where it can be.", whole, default=1, low=1
    )
    target_partition_bytes: int = option(
        "Bytes of bodies that make a task of their own.", size, default=32 * _MIB, low=1
    )

    receivers: int = option("Receiver processes.", whole, default=1, low=0)
    max_in_flight: int = option("Messages in flight per receiver.", whole, default=2500, low=1)
    commit_interval: float = option(
        "The longest a received message waits for its fsync.", duration, default=0.1, low=0
    )
    segment_bytes: int = option(
        "A segment is sealed when it has so many bytes, at the latest.", size, default=32 * _MIB, low=1
    )
    wal_max_bytes: int = option(
        "Receiving pauses while the log holds that much.", size, default=1024 * _MIB, low=1
    )
    fsync: bool = option(
        "false: leave it to the operating system when bytes reach the disk; a power cut may lose messages.",
        yes_no,
        default=True,
    )

    fail_on_data_loss: bool = option(
        "false: go on when a file of the log is gone, with a warning.", yes_no, default=True
    )
    dead_letter_topic: str = option(
        "With maxAttempts: where a message goes that was tried more often.", default=""
    )
    available_now_idle: float = option(
        "AvailableNow: how long nothing may come before what is missing of the backlog counts as gone.",
        duration,
        default=2.0,
        low=0,
    )
    available_now_timeout: float = option(
        "AvailableNow: the longest to receive the backlog; 0: no limit.", duration, default=0.0, low=0
    )
    wait_for_in_flight: bool = option(
        "AvailableNow: also wait for what other clients of the channel hold, or what is deferred.",
        yes_no,
        default=True,
    )

    def __post_init__(self) -> None:
        require_address(self.nsqd, self.lookupd)
