"""The options of nsqadmin, as flags and as keys of its config file."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from nsq.daemons.serve.listen import address_of
from nsq.daemons.serve.logs import FORMATS, TEXT, checked_level
from nsq.errors import ConfigError, UsageError
from nsq.flags import check, duration, flag, repeated
from nsq.http.message import parse_url
from nsq.http.nsqlookupd import nsqlookupd_address
from nsq.http.secret import GIVEN, SECRET_TO

_A_YEAR = 365 * 86400
#: The port of an nsqd that is given without one.
NSQD_PORT = 4151


@dataclass(frozen=True, kw_only=True)
class NsqadminOptions:
    """The values of the flags; durations are seconds. A wrong value raises ConfigError."""

    http_address: str = flag(
        "0.0.0.0:4171", "address:port, or path of a Unix socket, to listen on for HTTP clients"
    )
    base_path: str = flag("/", "URL path of nsqadmin behind a proxy, such as /nsqadmin")
    lookupd_http_addresses: tuple[str, ...] = repeated(
        str,
        "address:port or URL of an nsqlookupd that knows the cluster",
        name="lookupd-http-address",
        key="nsqlookupd_http_addresses",
    )
    nsqd_http_addresses: tuple[str, ...] = repeated(
        str,
        "address:port or URL of an nsqd, for a cluster without nsqlookupd",
        name="nsqd-http-address",
        key="nsqd_http_addresses",
    )

    http_client_connect_timeout: float = duration(
        2.0, "maximum time to connect to an nsqd or nsqlookupd", low=0.001, high=_A_YEAR
    )
    http_client_request_timeout: float = duration(
        5.0, "maximum time for the whole reply of an nsqd or nsqlookupd", low=0.001, high=_A_YEAR
    )
    http_client_tls_insecure_skip_verify: bool = flag(
        False, "accept any certificate of nsqd and nsqlookupd over https"
    )
    http_client_tls_root_ca_file: str = flag(
        "", "path of the CA certificates for verifying nsqd and nsqlookupd"
    )
    http_client_tls_cert: str = flag("", "path of the client certificate for nsqd and nsqlookupd")
    http_client_tls_key: str = flag("", "path of the key of the client certificate")

    http_secret_file: str = flag(
        "", "path of a file with the secret for nsqds and nsqlookupds that have --http-logins"
    )
    http_secret_to: str = flag(
        GIVEN,
        "where the secret may go over plain HTTP: to the given addresses, or to any that an nsqlookupd tells",
        choices=SECRET_TO,
    )
    http_logins: str = flag("", "path of the file of the logins of this nsqadmin: see `nsq secret`")
    tls_cert: str = flag("", "path of the certificate with which nsqadmin serves https instead of http")
    tls_key: str = flag("", "path of the key of the TLS certificate")

    client_opts: tuple[str, ...] = repeated(
        str,
        "option of the NSQ client for live tail and redrive, as key,value in go-nsq's names: tls_v1,true",
        name="client-opt",
        key="client_opts",
    )
    allow_hosts: tuple[str, ...] = repeated(
        str,
        "host name that browsers may use for this nsqadmin, besides addresses and private names",
        name="allow-host",
        key="allow_hosts",
    )
    admin_users: tuple[str, ...] = repeated(
        str,
        "user, as named in --acl-http-header, who may change things and read messages (default: every user)",
        name="admin-user",
        key="admin_users",
    )
    acl_http_header: str = flag("X-Forwarded-User", "HTTP header in which a proxy names the user")
    allow_config_from_cidr: str = flag(
        "127.0.0.1/8", "network from which /config may be used (empty: any network)"
    )
    notification_http_endpoint: str = flag("", "URL to which nsqadmin POSTs every administrative action")

    graphite_url: str = flag("", "URL of a Graphite server, for charts")
    proxy_graphite: bool = flag(False, "have nsqadmin, not the browser, ask Graphite for charts")
    statsd_counter_format: str = flag(
        "stats.counters.%s.count", "name of a counter in Graphite; %s becomes its name in nsqd"
    )
    statsd_gauge_format: str = flag(
        "stats.gauges.%s", "name of a gauge in Graphite; %s becomes its name in nsqd"
    )
    statsd_prefix: str = flag("nsq.%s", "--statsd-prefix of the nsqds; %s becomes an nsqd's address")
    statsd_interval: float = duration(60.0, "--statsd-interval of the nsqds", low=1.0, high=_A_YEAR)
    use_statsd_prefixes: bool = flag(
        True,
        "use statsd's prefixes in names in Graphite",
        deprecated="use --statsd-counter-format and --statsd-gauge-format",
    )
    use_statsd_prefix: bool = flag(
        True,
        "use statsd's prefixes in names in Graphite",
        deprecated="use --statsd-counter-format and --statsd-gauge-format",
    )

    log_level: str = flag("info", "log verbosity: debug, info, warning, error or fatal", parse=checked_level)
    log_prefix: str = flag("[nsqadmin] ", "start of every log line")
    log_format: str = flag(TEXT, "log format: text or json", choices=FORMATS)
    log_file: str = flag("", "path of a file to log to instead of stderr; SIGHUP reopens it")
    verbose: bool = flag(False, "log debug lines", deprecated="use --log-level=debug")
    dev_static_dir: str = flag("", "directory of the web page's files, instead of the package's own")
    template_dir: str = flag("", "has no effect", deprecated="use --dev-static-dir")

    def __post_init__(self) -> None:
        checked_level(self.log_level)
        check(self)
        address_of("--http-address", self.http_address)
        object.__setattr__(self, "base_path", "/" + self.base_path.strip("/"))
        self._check_upstreams()
        for host in self.allow_hosts:
            if not re.fullmatch(r"[A-Za-z0-9._-]+", host):
                raise ConfigError(
                    f"--allow-host {host!r} is not a host name: give it without scheme and port"
                )
        if self.allow_config_from_cidr:
            config_network(self.allow_config_from_cidr)
        if bool(self.http_client_tls_cert) != bool(self.http_client_tls_key):
            raise ConfigError(
                "--http-client-tls-cert and --http-client-tls-key go together: give both or neither"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key go together: give both or neither")
        if self.http_logins and self.admin_users:
            raise ConfigError(
                "--admin-user is for nsqadmin behind a proxy: with --http-logins, those with the role all "
                "are the admins"
            )
        for name in ("graphite_url", "notification_http_endpoint"):
            if getattr(self, name):
                _url(name, getattr(self, name))
        if self.graphite_url and "://" not in self.graphite_url:  # browsers ask it too
            object.__setattr__(self, "graphite_url", f"http://{self.graphite_url}")
        if self.proxy_graphite and not self.graphite_url:
            raise ConfigError("--proxy-graphite needs --graphite-url")
        if not (self.use_statsd_prefixes and self.use_statsd_prefix):
            object.__setattr__(self, "statsd_counter_format", "%s")
            object.__setattr__(self, "statsd_gauge_format", "%s")

    def _check_upstreams(self) -> None:
        if bool(self.lookupd_http_addresses) == bool(self.nsqd_http_addresses):
            raise ConfigError(
                "give --lookupd-http-address=127.0.0.1:4161 for every nsqlookupd, or "
                "--nsqd-http-address=127.0.0.1:4151 for every nsqd, and not both kinds"
            )
        try:
            for address in self.lookupd_http_addresses:
                nsqlookupd_address(address)
            for address in self.nsqd_http_addresses:
                parse_url(address, NSQD_PORT)
        except UsageError as error:
            raise ConfigError(str(error)) from None

    @property
    def prefix(self) -> str:
        """The beginning of every path: empty, or like ``/nsq``."""
        return self.base_path.rstrip("/")


def config_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigError(f"--allow-config-from-cidr {text!r} is not a network: {error}") from None


def _url(name: str, text: str) -> None:
    try:
        parse_url(text)
    except UsageError as error:
        raise ConfigError(f"--{name.replace('_', '-')}: {error}") from None
