"""Shared by all tools: reading flags, logging to stderr, making consumers and producers, ending on a signal.

Only this module of the tools imports ``nsq.flags``; the other tools take ``flag`` and the like from here.
It imports neither consumer, producer nor HTTP client: most commands need one of them at most.
Exit statuses are those of Go's tools: 0 after a signal and for --help, 1 after an error, 2 for flags that
cannot be parsed.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import nsq
import nsq.flags as flags
from nsq import NsqError, __version__
from nsq.errors import ConfigError
from nsq.flags import FlagExit, duration, flag, repeated
from nsq.gc_settings import tune_gc
from nsq.log import Logger
from nsq.threads.signals import SignalWatch
from nsq.threads.stop_signals import held_stop
from nsq.work.stopping import stop_all

if TYPE_CHECKING:
    from nsq import Config, Consumer, Producer
    from nsq.http.nsqd import NsqdApi
    from nsq.http.nsqlookupd import NsqlookupdApi
    from nsq.http.secret import HttpSecret
    from nsq.transport.base import Stream

__all__ = [
    "COMPATIBLE_VERSION",
    "VERSION",
    "ConsumerFlags",
    "ConsumerOptFlags",
    "HttpFlags",
    "LogFlags",
    "ProducerFlags",
    "SignalWatch",
    "SourceFlags",
    "check_ranges",
    "duration",
    "exit_status",
    "flag",
    "log",
    "repeated",
    "run",
    "run_command",
    "run_consumers",
    "stop_all",
]

log = Logger("nsq.tools")

#: The version of Go's tools whose flags and output these have.
COMPATIBLE_VERSION = "1.3.0"
VERSION = f"v{COMPATIBLE_VERSION} (nsq for Python {__version__})"
#: The status that a shell reports for a program whose reader has gone away.
_BROKEN_PIPE = 128 + signal.SIGPIPE
_INTERRUPTED = 128 + signal.SIGINT
#: Seconds in place of a timeout of 0, which means no limit to Go's tools: no message's timeout is as long.
_NO_LIMIT = 3600.0
#: As in ``nsq.http.secret``, which is imported later.
SECRET_TO = ("given", "any")

OptionsT = TypeVar("OptionsT")

check_ranges = flags.check


# From the command line to the exit status


def run(
    options_class: type[OptionsT],
    argv: Sequence[str] | None,
    prog: str,
    work: Callable[[OptionsT], int],
    *,
    has_version: bool = True,
) -> int:
    """Read the flags, do the work, and return the exit status. A tool's ``main`` is a call of this."""
    version = f"{prog} v{COMPATIBLE_VERSION}" if has_version else None
    if argv is None:
        open_standard_streams()
    try:
        arguments = sys.argv[1:] if argv is None else argv
        parsed = flags.parse(options_class, arguments, prog=prog, version=version, config_flag=False)
        rest = parsed.rest
    except FlagExit as end:
        if not end.rest:
            return _ended(end)
        rest = end.rest  # perhaps the flags that are missing are among these
    if rest:
        switch = "; a switch has its value after =, as in --name=true" if rest[0] in ("true", "false") else ""
        return _ended(FlagExit(1, f"{prog}: unknown arguments: {' '.join(rest)}{switch}\n"))
    if argv is None:
        tune_gc()
    if held_stop():  # it came during the imports; others are held back until the tool's SignalWatch
        return 0
    options = parsed.options
    with logging_to_stderr(getattr(options, "log_prefix", ""), getattr(options, "log_level", "info")):
        for warning in parsed.warnings:
            log.warning("%s", warning)
        return exit_status(lambda: work(options))


def open_standard_streams() -> None:
    """Open /dev/null for streams that are closed at the start (``2>&-``), where Python has None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the process


def run_command(
    options_class: type[OptionsT],
    argv: Sequence[str],
    prog: str,
    synopsis: str,
    work: Callable[[OptionsT, tuple[str, ...]], int],
) -> int:
    """The same for a command of ``nsq``, which takes arguments too; ``synopsis`` is for ``parse_command``."""
    try:
        options, words = flags.parse_command(options_class, argv, prog=prog, synopsis=synopsis)
    except FlagExit as end:
        return _ended(end)
    prefix, level = getattr(options, "log_prefix", ""), getattr(options, "log_level", "warning")
    with logging_to_stderr(prefix, level):
        return exit_status(lambda: work(options, words))


def _ended(end: FlagExit) -> int:
    def write() -> int:
        stream = sys.stdout if end.stream == "stdout" else sys.stderr
        stream.write((f"{_stamp(time.time())} " if end.status == 1 else "") + end.text)
        return end.status

    return exit_status(write)


def exit_status(work: Callable[[], int]) -> int:
    """Return the status of the work, or of the error that ended it."""
    try:
        status = work()
        sys.stdout.flush()
    except BrokenPipeError:
        status = _BROKEN_PIPE
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except FlagExit as end:
        status = _ended(end)
    except (NsqError, OSError) as error:
        log.critical("%s", error)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Otherwise Python fails again at its exit, and exits with another status.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y/%m/%d %H:%M:%S")


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Format(logging.Formatter):
    """``PREFIX2026/11/23 16:00:00.123456 INFO: message``, as Go's tools log. Control characters are escaped,
    because a name from a daemon must not control a terminal.
    """

    def __init__(self, prefix: str) -> None:
        prefix = prefix.replace("%", "%%").replace("<PID>", "%(process)d")
        super().__init__(f"{prefix}%(asctime)s %(levelname)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created).strftime("%Y/%m/%d %H:%M:%S.%f")


LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


@contextmanager
def logging_to_stderr(prefix: str = "", level: str = "info") -> Iterator[None]:
    """Send the package's log to stderr within the block."""
    logging.addLevelName(logging.CRITICAL, "FATAL")
    logger = logging.getLogger("nsq")
    before = logger.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format(prefix))
    logger.addHandler(handler)
    logger.setLevel(LEVELS[level])
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


# Flags that several tools have


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogFlags:
    log_level: str = flag("info", "debug, info, warn, error or fatal", parse=str.lower, choices=tuple(LEVELS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFlags:
    """The flags for the source of messages: nsqds, or nsqlookupds to find them."""

    nsqd_tcp_address: tuple[str, ...] = repeated(str, "nsqd TCP address (may be given multiple times)")
    lookupd_http_address: tuple[str, ...] = repeated(
        str, "lookupd HTTP address (may be given multiple times)"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        exactly_one_kind(self, "nsqd_tcp_address", "lookupd_http_address")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretFlags:
    http_secret_file: str = flag(
        "", "path of a file with the secret for daemons that have --http-logins (default: $NSQ_HTTP_SECRET)"
    )

    @property
    def _secret_option(self) -> dict[str, str]:
        """The secret as an option of the client, which asks nsqlookupds with it."""
        from nsq.http.secret import secret_of_program

        secret = secret_of_program(self.http_secret_file)
        return {"http_secret": secret} if secret else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerOptFlags(SecretFlags):
    consumer_opt: tuple[str, ...] = repeated(
        str, "option of the consumer: key,value in go-nsq's names (may be given multiple times)"
    )

    def consumer_config(self) -> Config:
        """Read the options of the consumer. By default it gives no message up, because that would finish a
        message that the tool has neither shown, written nor sent.
        """
        defaults = {"max_attempts": "0", **self._secret_option}
        return config_of("--consumer-opt", self._consumer_texts, defaults)

    @property
    def _consumer_texts(self) -> Sequence[str]:
        return self.consumer_opt

    def consumer_of(
        self, prog: str, topic: str, channel: str, *, max_in_flight: int, **given: Any
    ) -> Consumer:
        config, agent = self.consumer_config(), _user_agent(prog)
        return nsq.Consumer(
            topic, channel, config=config, user_agent=agent, max_in_flight=max_in_flight, **given
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerFlags(SourceFlags, ConsumerOptFlags):
    reader_opt: tuple[str, ...] = repeated(str, "", deprecated="use --consumer-opt")
    max_backoff_duration: float | None = duration(
        None, "", deprecated="use --consumer-opt=max_backoff_duration,…"
    )
    max_in_flight: int = flag(200, "max number of messages to allow in flight", low=1, high=2**31 - 1)
    ordered: bool = flag(False, "consume an ordered topic of a partitioned NSQ, each partition in order")

    @property
    def _consumer_texts(self) -> Sequence[str]:
        older = list(self.reader_opt)
        if self.max_backoff_duration is not None:
            older.append(f"max_backoff_duration,{self.max_backoff_duration}s")
        return [*older, *self.consumer_opt]

    def consumer(
        self,
        prog: str,
        topic: str,
        channel: str,
        *,
        threads: int = 1,
        max_in_flight: int | None = None,
    ) -> Consumer:
        return self.consumer_of(
            prog,
            topic,
            channel,
            max_in_flight=max_in_flight or self.max_in_flight,
            nsqd=self.nsqd_tcp_address,
            nsqlookupd=self.lookupd_http_address,
            threads=threads,
            ordered=self.ordered,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProducerFlags(SecretFlags):
    producer_opt: tuple[str, ...] = repeated(
        str,
        "option of the producer: key,value in go-nsq's names (may be given multiple times)",
    )

    def producer(self, prog: str, *addresses: str, nsqlookupd: Sequence[str] = ()) -> Producer:
        """Make a Producer without a limit on message sizes: nsqd knows its own limit."""
        defaults = {"max_msg_size": str(2**31 - 1), **self._secret_option}
        config = config_of("--producer-opt", self.producer_opt, defaults)
        return nsq.Producer(*addresses, nsqlookupd=nsqlookupd, config=config, user_agent=_user_agent(prog))


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpFlags(SecretFlags):
    http_secret_to: str = flag(
        SECRET_TO[0],
        "where the secret may go over plain HTTP: to the given addresses, or to any that an nsqlookupd tells",
        choices=SECRET_TO,
    )
    http_client_connect_timeout: float = duration(2.0, "timeout for HTTP connect (0 for an hour)", low=0.0)
    http_client_request_timeout: float = duration(5.0, "timeout for HTTP request (0 for an hour)", low=0.0)

    @property
    def connect_timeout(self) -> float:
        return self.http_client_connect_timeout or _NO_LIMIT

    @property
    def request_timeout(self) -> float:
        return self.http_client_request_timeout or _NO_LIMIT

    # ``told``: whether an nsqlookupd told the address, and not the user.

    def nsqd_api(self, address: str, *, told: bool) -> NsqdApi:
        from nsq.http.nsqd import NsqdApi

        return NsqdApi(address, told=told, **self._http_options())

    def lookupd_api(self, address: str, *, told: bool = False) -> NsqlookupdApi:
        from nsq.http.nsqlookupd import NsqlookupdApi

        return NsqlookupdApi(address, told=told, **self._http_options())

    @property
    def tls(self) -> Any:
        """The context for HTTPS servers; None for that of the public CAs."""
        return None

    @property
    def http_secret(self) -> HttpSecret | None:
        from nsq.http.secret import HttpSecret, secret_of_program, verifies

        text = secret_of_program(self.http_secret_file)
        own_authorities = verifies(self.tls)
        return HttpSecret(text, self.http_secret_to, own_authorities) if text else None

    def _http_options(self) -> dict[str, Any]:
        return {
            "timeout": self.request_timeout,
            "transport": _QuickTransport(self.connect_timeout),
            "tls": self.tls,
            "secret": self.http_secret or "",
        }


class _QuickTransport:
    """A transport with a shorter timeout for connecting than for the whole request."""

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def connect(self, address: str, *, timeout: float) -> Stream:
        from nsq.transport.dialing import default_transport

        return default_transport.connect(address, timeout=min(timeout, self._longest))


def exactly_one_kind(options: object, one: str, other: str) -> None:
    """Raise ConfigError unless exactly one of the two flags is given."""
    flag_one, flag_other = (f"--{name.replace('_', '-')}" for name in (one, other))
    if not getattr(options, one) and not getattr(options, other):
        raise ConfigError(f"{flag_one} or {flag_other} required")
    if getattr(options, one) and getattr(options, other):
        raise ConfigError(f"use {flag_one} or {flag_other} not both")


def _user_agent(prog: str) -> str:
    return f"{prog}/{COMPATIBLE_VERSION} nsq-python/{__version__}"


def config_of(flag_name: str, given: Iterable[str], defaults: Mapping[str, str]) -> Config:
    """Read the ``key,value`` texts of a flag; ``defaults`` has the values of keys not given. A mistake exits
    with status 2, as with any flag that cannot be parsed.
    """
    try:
        return nsq.Config.from_flags(given, defaults)
    except ConfigError as error:
        raise FlagExit(2, f"{flag_name}: {error}\n") from None


# Until a signal


def run_consumers(
    consumers: Sequence[Consumer],
    watch: SignalWatch,
    ended: Callable[[], object],
    producers: Iterable[Producer] = (),
) -> None:
    """Start the consumers, wait for SIGTERM, SIGINT or until ``ended`` after a ``watch.wake``, and stop them.

    If the stop uses up its time, or a later signal comes, close their producers at once. Raises the nsqd's
    error if every nsqd refuses a consumer.
    """
    for consumer in consumers:
        consumer.wake_at_end(watch)
        consumer.start()
    refusal = None
    while refusal is None and not ended() and watch.wait() is None:
        refusal = next((consumer.refusal for consumer in consumers if consumer.refusal), None)
    if not stop_all(consumers, watch):
        for producer in producers:
            producer.close(0.0)
    if refusal is not None:
        raise refusal
