"""What ``spark.read`` of nsq and nsq_stats can be told. Imports neither pyspark nor pyarrow."""

from __future__ import annotations

import dataclasses

from nsq.errors import ConfigError
from nsq.spark.options import Options, duration, names, option, require_address, whole, yes_no
from nsq.wire.names import check_channel, check_topic

PEEK = "peek"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeekOptions(Options):
    """Durations are seconds here."""

    mode: str = option("peek, which looks at messages and takes none.", choices=(PEEK,))
    topic: str = option("The topic to look at.", check_topic)
    nsqd: tuple[str, ...] = option("nsqds, host:port, separated by commas.", names, default=())
    nsqd_http: tuple[str, ...] = option(
        "Their HTTP addresses, in the same order; by default the port above that of each nsqd.",
        names,
        default=(),
    )
    lookupd: tuple[str, ...] = option("nsqlookupds, host:port, separated by commas.", names, default=())
    limit: int = option("The most rows.", whole, default=1000, low=1)
    timeout: float = option("How long to look, if there are fewer.", duration, default=10.0, low=0.001)

    def __post_init__(self) -> None:
        require_address(self.nsqd, self.lookupd)
        if self.nsqd_http and len(self.nsqd_http) != len(self.nsqd):
            raise ConfigError(
                f"nsqdHttp has {len(self.nsqd_http)} addresses, but must have one for each of the "
                f"{len(self.nsqd)} of nsqd"
            )


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
    timeout: float = option("How long an nsqd may take to answer.", duration, default=5.0, low=0.001)
    fail_fast: bool = option(
        "true: fail if an nsqd does not answer, instead of a row that says so.", yes_no, default=False
    )

    def __post_init__(self) -> None:
        if not self.nsqd and not self.lookupd:
            raise ConfigError(
                "option lookupd or nsqd is missing: .option('lookupd', 'host:4161'), or "
                ".option('nsqd', 'host:4151') with the port of its HTTP API"
            )
        if self.topic:
            check_topic(self.topic)
        if self.channel:
            check_channel(self.channel)
            if not self.topic:
                raise ConfigError(f"channel is {self.channel!r}, but of which topic? Give the option topic")
