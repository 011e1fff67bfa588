"""The options of nsqlookupd, as flags and as keys of its config file."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from nsq.daemons.serve.listen import address_of
from nsq.daemons.serve.logs import FORMATS, TEXT, checked_level
from nsq.flags import check, duration, flag


@dataclass(frozen=True, kw_only=True)
class NsqlookupdOptions:
    """The values of the flags; durations are seconds. A wrong value raises ConfigError."""

    tcp_address: str = flag("0.0.0.0:4160", "address:port, or path of a Unix socket, to listen on for nsqds")
    http_address: str = flag(
        "0.0.0.0:4161", "address:port, or path of a Unix socket, to listen on for HTTP clients"
    )
    broadcast_address: str = flag(socket.gethostname, "address of this nsqlookupd that it gives to nsqds")
    inactive_producer_timeout: float = duration(
        300.0, "time after which an nsqd that sends nothing is no longer listed", low=0
    )
    tombstone_lifetime: float = duration(
        45.0, "time that a tombstoned nsqd is hidden while it stays registered", low=0
    )
    legacy_get: bool = flag(
        False, "accept GET for actions under their names from before 1.0, such as /create_topic"
    )
    http_logins: str = flag("", "path of the file of the logins for HTTP: see `nsq secret`")
    log_level: str = flag("info", "log verbosity: debug, info, warning, error or fatal", parse=checked_level)
    log_prefix: str = flag("[nsqlookupd] ", "start of every log line")
    log_format: str = flag(TEXT, "log format: text or json", choices=FORMATS)
    log_file: str = flag("", "path of a file to log to instead of stderr; SIGHUP reopens it")
    verbose: bool = flag(False, "log debug lines", deprecated="use --log-level=debug")

    def __post_init__(self) -> None:
        address_of("--tcp-address", self.tcp_address)
        address_of("--http-address", self.http_address)
        checked_level(self.log_level)
        check(self)
