"""nsqd's options: every flag, its default, and the combinations that are refused.

Imports no other module of the daemon.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import zlib
from dataclasses import dataclass

from nsq.daemons.serve.listen import address_of, peer_address_of
from nsq.daemons.serve.logs import FORMATS, TEXT, checked_level
from nsq.errors import ConfigError
from nsq.flags import check, duration, flag, repeated

TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")
_DEFAULT_TLS_VERSION = TLS_VERSIONS[0]
TLS_POLICIES = ("", "require", "require-verify")

TLS_NOT_REQUIRED = "false"
TLS_REQUIRED = "true"
TLS_REQUIRED_EXCEPT_HTTP = "tcp-https"

TOPOLOGY_AWARE = "topology-aware-consumption"
EXPERIMENTS = (TOPOLOGY_AWARE,)

SIGTERM_STOPS, SIGTERM_DRAINS = SIGTERM_MODES = ("shutdown", "drain")

#: What --http-open may name: it shows no messages and changes nothing.
MAY_BE_OPEN = ("/metrics", "/stats", "/info")

PEEK_LOOPBACK, PEEK_ALL, PEEK_OFF = PEEK = ("loopback", "all", "off")

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/A-Z]+")

_TEN_YEARS = 10 * 365 * 86400


def default_node_id() -> int:
    """Compute the default as Go does: the CRC-32 of the host name's MD5, modulo 1024."""
    digest = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % 1024


def parse_tls_version(text: str) -> str:
    version = text.lower() or _DEFAULT_TLS_VERSION
    if version not in TLS_VERSIONS:
        raise ValueError(f"want {', '.join(TLS_VERSIONS)}")
    return version


def parse_tls_required(text: str) -> str:
    if text.lower() == TLS_REQUIRED_EXCEPT_HTTP:
        return TLS_REQUIRED_EXCEPT_HTTP
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return TLS_REQUIRED
    if text in ("", "0", "f", "F", "FALSE", "false", "False"):
        return TLS_NOT_REQUIRED
    raise ValueError("want true, false or tcp-https")


@dataclass(frozen=True, kw_only=True)
class NsqdOptions:
    """One field per flag, with the flag's name. Durations are seconds."""

    tcp_address: str = flag(
        "0.0.0.0:4150", "<addr>:<port>, or the path of a Unix socket, to listen on for TCP clients"
    )
    http_address: str = flag(
        "0.0.0.0:4151",
        "<addr>:<port>, or the path of a Unix socket, to listen on for HTTP clients; empty for none",
    )
    https_address: str = flag(
        "0.0.0.0:4152",
        "<addr>:<port> to listen on for HTTPS clients; used only with --tls-cert; empty for none",
    )
    max_connections: int = flag(
        0, "maximum TCP connections, and maximum HTTP connections (0: no limit)", low=0, high=2**31
    )
    http_logins: str = flag("", "path of the file of the logins for HTTP: see `nsq secret`")
    http_open: tuple[str, ...] = repeated(
        str,
        f"path that needs no login: {', '.join(MAY_BE_OPEN)}",
        name="http-open",
        key="http_open",
        choices=MAY_BE_OPEN,
    )
    http_secret_file: str = flag("", "path of a file with the secret for nsqlookupds that have --http-logins")
    legacy_get: bool = flag(
        False, "accept GET for actions under their names from before 1.0, such as /create_topic"
    )
    allow_pub_origins: tuple[str, ...] = repeated(
        str,
        "origin of web pages that may POST to /pub and /mpub, such as https://shop.example; * for every page",
        name="allow-pub-origin",
        key="allow_pub_origins",
    )
    peek: str = flag(
        PEEK_LOOPBACK,
        "who may see waiting messages with /topic/peek and /channel/peek: loopback, all or off",
        choices=PEEK,
    )
    broadcast_address: str = flag(socket.gethostname, "address that nsqlookupd gives to consumers")
    broadcast_tcp_port: int = flag(
        0, "TCP port that nsqlookupd gives to consumers (default: that of --tcp-address)", low=0, high=65535
    )
    broadcast_http_port: int = flag(
        0, "HTTP port that nsqlookupd gives to consumers (default: that of --http-address)", low=0, high=65535
    )
    lookupd_tcp_addresses: tuple[str, ...] = repeated(
        str,
        "<addr>:<port>, or the path of a Unix socket, of an nsqlookupd to register with",
        name="lookupd-tcp-address",
        key="nsqlookupd_tcp_addresses",
    )
    node_id: int = flag(
        default_node_id,
        "number of this nsqd in message ids, 0 to 1023; by default computed from the host name",
        key="id",
        low=0,
        high=1023,
    )
    data_path: str = flag("", "directory for this nsqd's files (default: the current directory)")

    log_level: str = flag("info", "log verbosity: debug, info, warning, error or fatal", parse=checked_level)
    log_prefix: str = flag("[nsqd] ", "start of every log line")
    log_format: str = flag(TEXT, "log format: text or json", choices=FORMATS)
    log_file: str = flag("", "path of a file to log to instead of stderr; SIGHUP reopens it")
    drain_timeout: float = duration(
        600.0, "maximum time that a drain waits for consumers (0: no limit)", low=0, high=_TEN_YEARS
    )
    sigterm_mode: str = flag(
        SIGTERM_STOPS, "what the first SIGTERM does: shutdown (stop at once) or drain", choices=SIGTERM_MODES
    )
    verbose: bool = flag(False, "log debug lines", deprecated="use --log-level=debug")
    worker_id: int = flag(0, "has no effect", deprecated="use --node-id")

    mem_queue_size: int = flag(
        10_000, "maximum messages of a topic or channel in memory; the others are on disk", low=0, high=2**62
    )
    max_channel_depth: int = flag(
        0,
        "maximum waiting messages of a channel; beyond it the oldest are dropped (0: no limit)",
        low=0,
        high=2**62,
    )
    max_bytes_per_file: int = flag(
        100 * 1024 * 1024, "size in bytes at which nsqd begins a new data file", low=1, high=2**62
    )
    sync_every: int = flag(
        2500, "number of written messages after which nsqd syncs its files to disk", low=1, high=2**62
    )
    sync_timeout: float = duration(
        2.0, "maximum time between a write and its sync to disk", low=0.001, high=_TEN_YEARS
    )
    durable: bool = flag(
        False,
        "confirm a publish only when it is synced to disk, and keep messages on disk until they are finished",
    )
    msg_timeout: float = duration(
        60.0, "time a client has to answer a message before nsqd sends it again", low=0.001, high=_TEN_YEARS
    )
    max_msg_timeout: float = duration(
        900.0, "maximum time a message may stay with a client, TOUCH included", low=0.001, high=_TEN_YEARS
    )
    max_msg_size: int = flag(1024 * 1024, "maximum size of a message in bytes", low=1, high=2**31 - 64)
    max_message_size: int = flag(
        0, "maximum size of a message in bytes", deprecated="use --max-msg-size", low=0
    )
    max_body_size: int = flag(
        5 * 1024 * 1024, "maximum size of a command body (MPUB) in bytes", low=1, high=2**31 - 64
    )
    max_total_body_size: int = flag(
        256 * 1024 * 1024, "maximum total size in bytes of the bodies that nsqd is receiving", low=1
    )
    max_req_timeout: float = duration(3600.0, "maximum delay of REQ", low=0, high=_TEN_YEARS)
    max_defer_timeout: float = duration(
        0, "maximum delay of DPUB and of defer= (default: that of --max-req-timeout)", low=0, high=_TEN_YEARS
    )
    max_heartbeat_interval: float = duration(
        60.0, "maximum time between heartbeats that a client may request", low=0.001, high=_TEN_YEARS
    )
    max_rdy_count: int = flag(2500, "maximum RDY of a client", low=1, high=2**31)
    max_output_buffer_size: int = flag(
        64 * 1024, "maximum output-buffer size in bytes that a client may request"
    )
    output_buffer_timeout: float = duration(
        0.25, "output-buffer timeout of a client that requests none", low=0, high=_TEN_YEARS
    )
    min_output_buffer_timeout: float = duration(
        0.025, "minimum output-buffer timeout that a client may request", low=0, high=_TEN_YEARS
    )
    max_output_buffer_timeout: float = duration(
        30.0, "maximum output-buffer timeout that a client may request", low=0, high=_TEN_YEARS
    )
    max_channel_consumers: int = flag(0, "maximum consumers of one channel (0: no limit)", low=0, high=2**31)

    auth_http_addresses: tuple[str, ...] = repeated(
        str,
        "<addr>:<port> or URL of an auth server; clients must then AUTH",
        name="auth-http-address",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = flag(
        "get", "HTTP method of requests to auth servers: get or post", choices=("get", "post")
    )
    http_client_connect_timeout: float = duration(
        2.0, "maximum time to connect to an auth server or nsqlookupd", low=0.001, high=_TEN_YEARS
    )
    http_client_request_timeout: float = duration(
        5.0, "maximum time for the whole reply of an auth server or nsqlookupd", low=0.001, high=_TEN_YEARS
    )

    statsd_address: str = flag("", "<addr>:<port> of a statsd server to push statistics to, over UDP")
    statsd_prefix: str = flag("nsq.%s", "start of every statsd name; %s becomes this nsqd's address")
    statsd_interval: float = duration(60.0, "time between two pushes to statsd", low=0.001, high=_TEN_YEARS)
    statsd_mem_stats: bool = flag(True, "push memory figures to statsd too")
    statsd_udp_packet_size: int = flag(508, "maximum size of a statsd packet in bytes", low=1, high=65507)
    statsd_exclude_ephemeral: bool = flag(False, "push nothing about ephemeral topics and channels to statsd")
    metrics: bool = flag(True, "serve GET /metrics, for Prometheus")
    metrics_max_series: int = flag(
        20_000, "maximum series of topics and channels in /metrics", low=0, high=2**31
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = repeated(
        float,
        "percentile, such as 0.99, of the time from publication to FIN to show in the statistics",
        name="e2e-processing-latency-percentile",
        separator=",",
    )
    e2e_processing_latency_window_time: float = duration(
        600.0, "time window of the latency percentiles", low=0.001, high=_TEN_YEARS
    )

    tls_cert: str = flag("", "path of the TLS certificate")
    tls_key: str = flag("", "path of the key of the TLS certificate")
    tls_client_auth_policy: str = flag(
        "",
        "whether clients need a certificate: require or require-verify; implies --tls-required",
        choices=TLS_POLICIES,
    )
    tls_root_ca_file: str = flag(
        "", "path of the CA certificates for verifying clients, and auth servers over https"
    )
    tls_required: str = flag(
        TLS_NOT_REQUIRED,
        "refuse clients without TLS: true, false, or tcp-https, which allows plain HTTP",
        parse=parse_tls_required,
        bare="true",
    )
    tls_min_version: str = flag(
        _DEFAULT_TLS_VERSION,
        "minimum TLS version: tls1.0, tls1.1, tls1.2 or tls1.3",
        parse=parse_tls_version,
        choices=TLS_VERSIONS,
    )
    deflate: bool = flag(True, "let clients negotiate deflate")
    max_deflate_level: int = flag(6, "maximum deflate level that a client may request", low=1, high=9)
    snappy: bool = flag(True, "let clients negotiate snappy")

    topology_region: str = flag("", "region of this nsqd, for topology-aware consumption")
    topology_zone: str = flag("", "zone of this nsqd, for topology-aware consumption")
    experiments: tuple[str, ...] = repeated(
        str,
        f"enable an experimental feature: {', '.join(EXPERIMENTS)}",
        name="enable-experiment",
        key="enable_experiment",
        choices=EXPERIMENTS,
    )

    queue_scan_worker_pool_max: int = flag(
        4, "has no effect", deprecated="this nsqd does not scan its queues"
    )
    queue_scan_selection_count: int = flag(
        20, "has no effect", deprecated="this nsqd does not scan its queues"
    )

    def __post_init__(self) -> None:
        if self.max_message_size:
            object.__setattr__(self, "max_msg_size", self.max_message_size)
        if not self.max_defer_timeout:
            object.__setattr__(self, "max_defer_timeout", self.max_req_timeout)
        check(self)
        checked_level(self.log_level)
        if not self.broadcast_address:
            object.__setattr__(self, "broadcast_address", socket.gethostname())
        address_of("--tcp-address", self.tcp_address)
        for flag_name, address in (
            ("--http-address", self.http_address),
            ("--https-address", self.https_address),
        ):
            if address:
                address_of(flag_name, address)
        for address in self.lookupd_tcp_addresses:
            peer_address_of("--lookupd-tcp-address", address)
        if self.lookupd_tcp_addresses and not self.http_address and not self.broadcast_http_port:
            raise ConfigError(
                "--http-address is empty, but nsqlookupd registers no nsqd without an HTTP port: "
                "give --broadcast-http-port, or no --lookupd-tcp-address"
            )
        for origin in self.allow_pub_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allow-pub-origin {origin!r} is not an origin as browsers send it: give a scheme and "
                    "a host in lower case, such as https://shop.example, or * for every page"
                )
        if self.http_open and not self.http_logins:
            raise ConfigError("--http-open needs --http-logins: without it every path is open")
        if self.statsd_address:
            address_of("--statsd-address", self.statsd_address)
        self._check_percentiles()
        self._check_tls()
        if self.data_path and not os.path.isdir(self.data_path):
            raise ConfigError(f"--data-path {self.data_path!r} is not a directory")

    def _check_percentiles(self) -> None:
        """Check the percentiles, and sort them as nsqd shows them: the largest first."""
        for share in self.e2e_processing_latency_percentiles:
            if not 0 < share <= 1:
                raise ConfigError(
                    f"--e2e-processing-latency-percentile is {share}, but must be above 0 and at most 1 "
                    "(0.99 for 99 %)"
                )
        ordered = tuple(sorted(self.e2e_processing_latency_percentiles, reverse=True))
        object.__setattr__(self, "e2e_processing_latency_percentiles", ordered)

    def _check_tls(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key go together: give both or neither")
        if self.requires_tls and not self.tls_cert:
            raise ConfigError("--tls-required and --tls-client-auth-policy need --tls-cert and --tls-key")

    @property
    def requires_tls(self) -> bool:
        """Whether TCP clients must use TLS."""
        return self.tls_required != TLS_NOT_REQUIRED or self.tls_client_auth_policy != ""

    @property
    def requires_https(self) -> bool:
        """Whether HTTP clients must use TLS too."""
        return self.requires_tls and self.tls_required != TLS_REQUIRED_EXCEPT_HTTP
