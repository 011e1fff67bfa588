"""What ``df.write.format("nsq")`` and ``writeStream`` can be told. Imports neither pyspark nor pyarrow."""

from __future__ import annotations

import dataclasses

from nsq.errors import ConfigError
from nsq.spark.options import Options, duration, names, option, require_address, size, whole
from nsq.wire.commands import Limits
from nsq.wire.names import check_topic

_MIB = 1 << 20

NONE, PARTITION = "none", "partition"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkOptions(Options):
    """Durations are seconds here, sizes bytes."""

    topic: str = option("The topic to publish to; without it, each row's column topic.", default="")
    nsqd: tuple[str, ...] = option("nsqds, host:port, separated by commas.", names, default=())
    lookupd: tuple[str, ...] = option("nsqlookupds, host:port, separated by commas.", names, default=())
    mpub_messages: int = option("The most messages published at once.", whole, default=500, low=1)
    mpub_bytes: int = option(
        "The most bytes published at once; a larger message travels alone.", size, default=_MIB, low=1
    )
    pipeline: int = option(
        "Full publishes that a task has under way while it makes the next one.", whole, default=8, low=1
    )
    retries: int = option(
        "How often a publish is tried anew that failed, or was not answered.", whole, default=3, low=0
    )
    timeout: float = option(
        "The longest a publish may take each time, trying one nsqd after the other.",
        duration,
        default=30.0,
        low=0.001,
    )
    resume: str = option(
        "partition: a batch that is run again after a crash leaves out the partitions it had published "
        "completely. Only for plans that make the same partitions every time.",
        default=NONE,
        choices=(NONE, PARTITION),
    )

    def __post_init__(self) -> None:
        require_address(self.nsqd, self.lookupd)
        if self.topic:
            check_topic(self.topic)
        most = Limits().max_body_size
        if self.mpub_bytes > most:
            raise ConfigError(
                f"mpubBytes is {self.mpub_bytes}, but must be at most {most} (nsqd's --max-body-size)"
            )
