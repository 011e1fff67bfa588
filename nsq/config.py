"""Config: every option of a consumer or a producer, checked when the Config is made, then immutable.

    Config(max_in_flight=200, msg_timeout=90.0)                      # times are seconds
    Config.from_strings({"max-in-flight": "200", "msg-timeout": "1m30s"})
    Config.from_environ()                                            # NSQ_MAX_IN_FLIGHT=200; only when asked

Names and meanings are those of go-nsq; ``describe()`` tells the differences. Must import nothing heavy: ssl
and certifi are loaded only when TLS is used.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar

import nsq.options as options
from nsq.errors import ConfigError
from nsq.options import METADATA, Option, OptionHelp, parse_boolean
from nsq.other_clients import option_here

if TYPE_CHECKING:
    import ssl

#: Maps the step of backing off, from 1 up, to the seconds to wait.
BackoffStrategy = Callable[[int], float]
#: Maps a message's attempts, from 1 up, and what its handler raised to the seconds until it comes again. The
#: error is None if the handler asked for the requeue.
RequeueStrategy = Callable[[int, BaseException | None], float]

LINEAR = "linear"
EXPONENTIAL = "exponential"
FULL_JITTER = "full_jitter"

_MIB = 1024 * 1024


T = TypeVar("T")


def _host_name() -> str:
    return os.uname().nodename


def _short_host_name() -> str:
    return _host_name().partition(".")[0]


def _user_agent() -> str:
    # Imported here: the package imports this module, and is complete only when a Config is made.
    from nsq import __version__

    return f"nsq-python/{__version__}"


# The options


@dataclass(frozen=True, kw_only=True, repr=False)
class Config:
    """The options of a consumer or producer; ``Config.describe()`` explains each of them.

    Immutable: ``dataclasses.replace`` makes and checks a changed copy. Can be pickled unless it holds an
    ``ssl.SSLContext``. Its repr shows the options that differ from the defaults, and no secret.
    """

    # The connection to an nsqd
    dial_timeout: float = options.seconds(
        5.0, 0.001, 300.0, "Time to reach an nsqd. go-nsq: 1 s, which a single lost packet uses up."
    )
    handshake_timeout: float = options.seconds(
        15.0, 0.001, 300.0, "Time until a connection is ready: dialing, TLS, IDENTIFY, AUTH, SUB."
    )
    read_timeout: float = options.seconds(
        60.0, 0.1, 300.0, "Silence after which a connection counts as dead; longer than heartbeat_interval."
    )
    write_timeout: float = options.seconds(
        5.0, 0.1, 300.0, "Time an nsqd may take to accept each MiB that is written to it. go-nsq: 1 s."
    )
    local_address: str | None = options.maybe(
        options.TEXT, "IP address to connect from, with or without a port."
    )
    heartbeat_interval: float = options.seconds(
        30.0,
        1.0,
        300.0,
        "How often nsqd sends a heartbeat, which the client answers; -1 turns heartbeats off: then a "
        "connection that died in silence is not noticed.",
        also=(-1.0,),
    )
    reconnect_initial: float = options.seconds(
        0.25, 0.001, 3600.0, "Pause before a lost or refused connection is dialed again, at first."
    )
    reconnect_max: float = options.seconds(
        60.0, 0.001, 3600.0, "Longest pause before a lost or refused connection is dialed again."
    )
    max_frame_size: int = options.count(
        64 * _MIB,
        1024,
        2**31 - 1,
        "Bytes of the largest frame accepted from an nsqd; a larger one ends the connection.",
    )

    # How a client identifies itself
    client_id: str = options.text(
        _short_host_name, "Name of this client in nsqd's statistics.", shown="short host name"
    )
    hostname: str = options.text(_host_name, "Host name in nsqd's statistics.", shown="host name")
    user_agent: str = options.text(_user_agent, "Program in nsqd's statistics.", shown="nsq-python/VERSION")
    topology_region: str = options.text("", "Region this client runs in.")
    topology_zone: str = options.text("", "Zone this client runs in.")

    # Requests to nsqd
    msg_timeout: float = options.seconds(
        0.0, 1.0, math.inf, "Time nsqd waits for a message's answer; 0 is nsqd's own default.", also=(0.0,)
    )
    sample_rate: int = options.count(0, 0, 99, "Percentage of the messages to receive; 0 means all.")
    output_buffer_size: int | None = options.count(
        None,
        64,
        math.inf,
        "Bytes nsqd collects before it sends; None is nsqd's default (16384), -1 sends at once.",
        also=(None, -1),
    )
    output_buffer_timeout: float = options.seconds(
        0.025,
        0.001,
        300.0,
        "Longest time nsqd holds a message back for more; 0 is nsqd's own default, -1 switches it off: "
        "then a message may wait for output_buffer_size to fill. "
        "go-nsq asks for 250 ms, which is then what a message usually waits.",
        also=(0.0, -1.0),
    )
    low_latency: bool = options.switch(
        "Have nsqd send every message at once (output_buffer_size=-1): less delay, less throughput."
    )

    # TLS, compression, authorization
    tls: bool | ssl.SSLContext = options.declare(  # noqa: RUF009 - a field, as all of these
        False, Option("Encrypt connections to nsqd; an ssl.SSLContext brings its own settings.", options.TLS)
    )
    tls_ca_file: str | None = options.maybe(
        options.PATH, "Authorities that may sign nsqd's certificate, instead of certifi's."
    )
    tls_cert_file: str | None = options.maybe(options.PATH, "This client's certificate.")
    tls_key_file: str | None = options.maybe(
        options.PATH, "Key of this client's certificate, unless tls_cert_file contains it."
    )
    tls_server_name: str | None = options.maybe(
        options.TEXT, "Name expected in nsqd's certificate, instead of the host dialed."
    )
    tls_min_version: str = options.choice("TLSv1.2", ("TLSv1.2", "TLSv1.3"), "Oldest TLS version accepted.")
    tls_verify: bool = options.switch(
        "Check nsqd's certificate and name; if not, any server can pose as your nsqd.", default=True
    )
    deflate: bool = options.switch("Compress connections with deflate.")
    deflate_level: int = options.count(6, 1, 9, "Compression level of deflate.")
    snappy: bool = options.switch("Compress connections with snappy; not together with deflate.")
    auth_secret: str = options.declare("", Option("Secret to authorize with.", options.TEXT, secret=True))
    lookupd_authorization: str = options.choice(
        "https",
        ("https", "always", "never"),
        "When nsqlookupd is sent the auth_secret: over https only, even unencrypted, or never.",
    )

    http_secret: str = options.declare(
        "",
        Option(
            "Secret for the HTTP APIs, in place of the auth_secret for nsqlookupd.", options.TEXT, secret=True
        ),
    )

    # Discovery
    lookupd_poll_interval: float = options.seconds(
        60.0,
        0.01,
        300.0,
        "How often the nsqlookupds are asked. Sooner at first while none lists an nsqd.",
    )
    lookupd_poll_jitter: float = options.share(
        0.3, "Random share of lookupd_poll_interval, so that clients spread out."
    )
    lookupd_poll_timeout: float = options.seconds(
        5.0, 0.1, 300.0, "Time for the answer of an nsqlookupd; all are asked at the same time. go-nsq: 60 s."
    )
    cluster: str = options.choice(
        "detect",
        ("detect", "original", "partitioned"),
        "Which NSQ the nsqlookupds belong to; detect asks them, and follows a change.",
    )
    prune: bool = options.switch(
        "Disconnect from an nsqd that three complete rounds in a row did not list; a round with a failed "
        "lookup is not complete."
    )

    # Consuming
    max_in_flight: int | None = options.count(
        None,
        0,
        2**31 - 1,
        "Messages handled or waiting here at once; 0 pauses, None follows from the "
        "number of handler threads.",
        also=(None,),
        shown="from the handler threads",
    )
    rate: float = options.declare(
        0.0,
        Option(
            "Messages that handlers begin a second, at most, in this consumer; 0: no limit.",
            options.NUMBER,
            0.0,
        ),
    )
    max_attempts: int = options.count(
        5,
        0,
        65535,
        "Attempts after which a message is given up, and lost without dead_letters; 0 never gives up.",
    )
    max_age: float = options.seconds(
        0.0,
        1.0,
        math.inf,
        "Age after which a message is given up instead of handled, in seconds since its publish; 0: never.",
        also=(0.0,),
    )
    default_requeue_delay: float = options.seconds(
        90.0, 0.0, 3600.0, "Delay of a requeued message; requeue_strategy says how it grows."
    )
    requeue_strategy: str | RequeueStrategy = options.choice(  # noqa: RUF009
        LINEAR,
        (LINEAR, EXPONENTIAL),
        "How default_requeue_delay grows: times the attempts so far, doubled at each attempt, or a function "
        "from the attempts and the handler's error to seconds.",
        kind=options.STRATEGY,
    )
    max_requeue_delay: float = options.seconds(900.0, 0.0, 3600.0, "Longest delay of a requeued message.")
    requeue_jitter: float = options.share(
        0.0, "Random share added to the delay of a requeued message, so that messages spread out."
    )
    auto_touch: bool = options.switch(
        "Touch a message while its handler runs, as long as nsqd allows; not while it waits for one."
    )
    backoff_after: float = options.declare(
        0.5,
        Option(
            "Share of failures among the last calls of handlers at which the consumer backs off; 0: at each "
            "failure, as go-nsq. Only a message's first failure counts.",
            options.NUMBER,
            0.0,
            0.9,
        ),
    )
    backoff_strategy: str | BackoffStrategy = options.choice(  # noqa: RUF009
        EXPONENTIAL,
        (EXPONENTIAL, FULL_JITTER),
        "How long to back off: a name, or a function from the step (1, 2, …) to seconds.",
        kind=options.STRATEGY,
    )
    backoff_multiplier: float = options.seconds(
        1.0,
        0.0,
        3600.0,
        "Seconds that the named strategies double at every step: with 1, pauses of 2, 4, 8 … seconds.",
    )
    max_backoff_duration: float = options.seconds(
        120.0, 0.0, 3600.0, "Longest pause of backing off; 0 turns backoff off."
    )
    low_rdy_idle_timeout: float = options.seconds(
        10.0, 1.0, 300.0, "Idle time after which an nsqd's RDY may go to another one."
    )
    low_rdy_timeout: float = options.seconds(
        30.0, 1.0, 300.0, "Time after which an nsqd's RDY may go to another one even if it is busy."
    )
    rdy_redistribute_interval: float = options.seconds(5.0, 0.001, 5.0, "How often RDY is redistributed.")

    # Publishing
    publish_timeout: float = options.seconds(
        10.0, 0.001, 3600.0, "Time for one publish: connecting, sending and nsqd's answer."
    )
    publish_connections: int = options.count(
        16,
        0,
        1024,
        "Connections to each nsqd on which one blocking publish at a time makes its own round trip, besides "
        "the one that all share; 0: all share that one.",
    )
    max_pending: int = options.count(10_000, 1, 2**31 - 1, "Publishes that may wait for an answer at once.")
    max_pending_bytes: int = options.count(
        64 * _MIB,
        1,
        2**62,
        "Bytes of the publishes that may wait for an answer at once; each thread may exceed it by one "
        "publish.",
    )
    coalesce: bool = options.switch(
        "Send publishes for one topic that wait together as one MPUB; none is delayed for that.", default=True
    )
    max_msg_size: int = options.count(
        _MIB, 1, 2**31 - 1, "Bytes of the largest message accepted for publishing; as nsqd's --max-msg-size."
    )
    max_body_size: int = options.count(
        5 * _MIB, 1, 2**31 - 1, "Bytes of the largest batch; as nsqd's --max-body-size."
    )
    max_defer: float = options.seconds(
        3600.0, 0.0, math.inf, "Longest time a message may be deferred; as nsqd's --max-defer-timeout."
    )
    retry_uncertain: bool = options.switch(
        "Publish again what was sent but not answered; a message may then arrive twice."
    )

    def __new__(cls, *_: object, **options: object) -> Self:
        # Before __init__, whose TypeError would give no hint.
        cls._refuse_unknown(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, option in _OPTIONS.items():
            object.__setattr__(self, name, option.checked(name, getattr(self, name)))
        check_rate(self.rate)
        self._check_connection()
        self._check_tls()
        if self.low_latency and self.output_buffer_size not in (None, -1):
            raise ConfigError(
                f"low_latency turns buffering off, but output_buffer_size is {self.output_buffer_size}: "
                "give one of them"
            )

    def _check_connection(self) -> None:
        if self.heartbeat_interval >= self.read_timeout:
            raise ConfigError(
                f"heartbeat_interval is {self.heartbeat_interval:g} s, but must be less than read_timeout, "
                f"which is {self.read_timeout:g} s"
            )
        if self.reconnect_initial > self.reconnect_max:
            raise ConfigError(
                f"reconnect_initial is {self.reconnect_initial:g} s, but must not exceed reconnect_max, "
                f"which is {self.reconnect_max:g} s"
            )
        if self.snappy and self.deflate:
            raise ConfigError("snappy and deflate exclude each other: choose one")
        for name in ("auth_secret", "http_secret"):
            if any(character in getattr(self, name) for character in "\r\n\0"):
                raise ConfigError(
                    f"{name} contains a line break or a NUL; was it read from a file and not stripped?"
                )

    def _check_tls(self) -> None:
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise ConfigError("tls_key_file needs the certificate that belongs to it: give tls_cert_file too")
        details = [name for name in _FIELDS if name.startswith("tls_")]
        given = [name for name in details if getattr(self, name) != _FIELDS[name].default]
        if given and self.tls is False:
            raise ConfigError(f"{given[0]} is given but tls is not: add tls=True")
        in_context = [name for name in given if name != "tls_server_name"]
        if in_context and self.tls is not True:
            raise ConfigError(
                f"{in_context[0]} has no effect beside an ssl.SSLContext: set it up in the context"
            )

    # Making a Config

    @classmethod
    def of(cls, config: Config | None, options: Mapping[str, Any]) -> Config:
        """Return ``config`` (or the defaults) with these options changed."""
        if config is None:
            return cls(**options)
        if not isinstance(config, Config):
            raise ConfigError(f"config is a {type(config).__name__}, but must be a Config")
        cls._refuse_unknown(options)
        return dataclasses.replace(config, **options) if options else config

    @classmethod
    def from_strings(cls, texts: Mapping[str, str]) -> Config:
        """Read text in Go's spelling: ``{"max-in-flight": "200", "msg_timeout": "1m30s", "tls": "true"}``.

        A duration needs a unit: a bare number would mean milliseconds to go-nsq, but seconds to us.
        """
        values: dict[str, Any] = {}
        for given, text in texts.items():
            name = given.replace("-", "_")
            if name in values:
                raise ConfigError(f"{name} is given twice, with - and with _")
            cls._refuse_unknown([name])
            if not isinstance(text, str):
                raise ConfigError(f"{name} is not text; values of other types are keyword arguments")
            values[name] = _OPTIONS[name].parsed(name, text)
        return cls(**values)

    @classmethod
    def from_environ(cls, prefix: str = "NSQ_", environ: Mapping[str, str] | None = None) -> Config:
        """Read environment variables such as NSQ_MAX_IN_FLIGHT=200.

        Variables that resemble no option are ignored: Kubernetes sets NSQ_SERVICE_HOST and others for a
        service called nsq. A variable that looks like a misspelt option is an error.
        """
        variables = os.environ if environ is None else environ
        texts = {
            name[len(prefix) :].lower(): text for name, text in variables.items() if name.startswith(prefix)
        }
        known = {
            name: text
            for name, text in texts.items()
            # NSQ_TLS_V1 is meant for us, NSQ_PORT belongs to Kubernetes.
            if option_here(name, arguments=False) or options.closest(name, _FIELDS, 0.8)
        }
        try:
            return cls.from_strings(known)
        except ConfigError as error:
            raise ConfigError(f"environment variables {prefix}*: {error}") from None

    @classmethod
    def from_flags(cls, given: Iterable[str], defaults: Mapping[str, str] | None = None) -> Config:
        """Read ``key,value`` texts as Go's tools take them, with go-nsq's names and spellings or ours.

        A key alone means true. ``defaults`` has the form that ``from_strings`` takes.
        """
        texts = dict(defaults or {})
        for each in given:
            key, comma, value = each.partition(",")
            name, text = _from_go(key.replace("-", "_"), value if comma else "true")
            texts[name] = text
        return cls.from_strings(texts)

    # Describing options

    @classmethod
    def describe(cls) -> list[OptionHelp]:
        """Return every option with its default, its range and its purpose."""
        return [
            OptionHelp(
                name, option.default or option.show(_default_of(name)) or '""', option.range, option.help
            )
            for name, option in _OPTIONS.items()
        ]

    def __repr__(self) -> str:
        shown = []
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if value != _default_of(name):
                shown.append(f"{name}={'***' if option.secret else repr(value)}")
        return f"Config({', '.join(shown)})"

    @classmethod
    def _refuse_unknown(cls, names: Iterable[str]) -> None:
        for name in names:
            if name not in _FIELDS:
                meant = options.closest(name.replace("-", "_"), _FIELDS, 0.6)
                hint = option_here(name) or (f"did you mean {meant}?" if meant else "")
                raise ConfigError(f"there is no option {name!r}" + (f"; {hint}" if hint else ""))


def check_rate(rate: float) -> None:
    """Refuse a rate that is too low for a consumer, which holds a message while it waits."""
    if rate < 0 or 0 < rate < 1 / 60 or math.isnan(rate):
        raise ConfigError(
            f"rate is {rate:g} messages a second, but must be 0, or at least 1/60: what is rarer than one a "
            "minute is a schedule, for cron and nsq pub"
        )


def checked_function(name: str, value: T) -> T:
    """Refuse a value that cannot be called. None means not given."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name} is {value!r}; it must be a function")
    return value


def checked_functions(name: str, given: object) -> list[Any]:
    """Return an option that is one function or several as a list."""
    if given is None:
        return []
    functions: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for function in functions:
        if not callable(function):
            raise ConfigError(f"{name} is {function!r}; it must be a function, or a list of functions")
    return functions


_FIELDS = {field.name: field for field in dataclasses.fields(Config)}
_OPTIONS: dict[str, Option] = {name: field.metadata[METADATA] for name, field in _FIELDS.items()}


class Options(TypedDict, total=False):
    """The options as keyword arguments of a client, for type checkers and editors."""

    dial_timeout: float
    handshake_timeout: float
    read_timeout: float
    write_timeout: float
    local_address: str | None
    heartbeat_interval: float
    reconnect_initial: float
    reconnect_max: float
    max_frame_size: int
    client_id: str
    hostname: str
    user_agent: str
    topology_region: str
    topology_zone: str
    msg_timeout: float
    sample_rate: int
    output_buffer_size: int | None
    output_buffer_timeout: float
    low_latency: bool
    tls: bool | ssl.SSLContext
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_server_name: str | None
    tls_min_version: str
    tls_verify: bool
    deflate: bool
    deflate_level: int
    snappy: bool
    auth_secret: str
    lookupd_authorization: str
    http_secret: str
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_poll_timeout: float
    cluster: str
    prune: bool
    max_in_flight: int | None
    rate: float
    max_attempts: int
    max_age: float
    default_requeue_delay: float
    max_requeue_delay: float
    requeue_strategy: str | RequeueStrategy
    requeue_jitter: float
    auto_touch: bool
    backoff_after: float
    backoff_strategy: str | BackoffStrategy
    backoff_multiplier: float
    max_backoff_duration: float
    low_rdy_idle_timeout: float
    low_rdy_timeout: float
    rdy_redistribute_interval: float
    publish_timeout: float
    publish_connections: int
    max_pending: int
    max_pending_bytes: int
    coalesce: bool
    max_msg_size: int
    max_body_size: int
    max_defer: float
    retry_uncertain: bool


class SignatureWithOptions:
    """The ``__signature__`` of a client: notebooks and help() show every option in place of ``**options``.

    These are the options of ``Config`` and of ``more``, a TypedDict; or with ``inner`` every argument of that
    client but ``without``.
    """

    def __init__(
        self, inner: type[Any] | None = None, *, without: str = "", more: type[Any] | None = None
    ) -> None:
        self._inner, self._without = inner, without
        self._more = () if more is None else tuple(more.__annotations__)

    def __get__(self, _: object, client: type[Any]) -> inspect.Signature:
        shown = inspect.signature(client.__init__)
        own = list(shown.parameters.values())[1:]
        if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
            return shown.replace(parameters=own)
        hidden = [*shown.parameters, self._without]
        more = [each for each in self._options() if each.name not in hidden]
        return shown.replace(parameters=[*own[:-1], *more])

    def _options(self) -> Iterable[inspect.Parameter]:
        if self._inner is not None:
            return inspect.signature(self._inner).parameters.values()
        keyword, defaults = inspect.Parameter.KEYWORD_ONLY, Config()
        names = (*self._more, *_FIELDS)
        return [inspect.Parameter(name, keyword, default=getattr(defaults, name, None)) for name in names]


def _default_of(name: str) -> Any:
    field = _FIELDS[name]
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


# go-nsq's names and spellings

_GO_NAMES = {
    "local_addr": "local_address",
    "tls_v1": "tls",
    "tls_root_ca_file": "tls_ca_file",
    "tls_cert": "tls_cert_file",
    "tls_key": "tls_key_file",
}
#: We do not support TLS below 1.2.
_GO_TLS_VERSIONS = dict.fromkeys(("ssl3.0", "tls1.0", "tls1.1", "tls1.2"), "TLSv1.2") | {"tls1.3": "TLSv1.3"}
#: Our values for options whose 0 means no limit or nsqd's default in go-nsq, and is out of range here.
_GO_ZEROS = {
    "dial_timeout": "5m",
    "heartbeat_interval": "30s",
    "lookupd_poll_timeout": "5m",
    "max_msg_size": str(2**31 - 1),
    "output_buffer_size": "16384",
}


def _from_go(name: str, value: str) -> tuple[str, str]:
    """Translate go-nsq's name and value to ours."""
    name = _GO_NAMES.get(name, name)
    if name == "tls_insecure_skip_verify":
        return "tls_verify", "false" if parse_boolean(value) else "true"
    if name == "skip_lookupd_authorization":  # in go-nsq true means that the secret is sent
        return "lookupd_authorization", "always" if parse_boolean(value) else "never"
    if name == "tls_min_version":
        return name, _GO_TLS_VERSIONS.get(value, value)
    if name in _GO_ZEROS and re.fullmatch("0[a-z]*", value):
        return name, _GO_ZEROS[name]
    if name in _OPTIONS and _OPTIONS[name].kind is options.SECONDS and re.fullmatch("-?[0-9]+", value):
        # A bare number means milliseconds; -1 switches a feature off.
        return name, f"{value}s" if value == "-1" else f"{value}ms"
    return name, value
