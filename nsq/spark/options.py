"""Options as Spark passes them: strings, with case-insensitive names.

A source or sink declares its options as a frozen dataclass with ``option(…)`` fields: ``maxBytesPerTrigger``
is the field ``max_bytes_per_trigger``. All fields of ``nsq.Config`` are options too, spelt the same way:
``tlsCaFile``, ``authSecret``, ``msgTimeout``. An unknown name is an error, which suggests the nearest name.
Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

from nsq.config import Config
from nsq.errors import ConfigError
from nsq.http.secret import GIVEN, SECRET_TO, secret_of_program
from nsq.options import (
    METADATA,
    SECONDS,
    TEXT,
    WHOLE,
    YES_NO,
    Kind,
    Option,
    OptionHelp,
    closest,
    declare,
    parse_duration,
)
from nsq.wire.commands import Limits
from nsq.wire.names import check_topic

_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_DAYS = re.compile(r"([0-9]{1,5})d")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str) -> int:
    """Parse a number of bytes: ``33554432``, ``32MiB``, ``32m``. Units are powers of 1024, as in Spark."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"invalid size {text!r} (want a number of bytes such as 33554432, 32MiB or 1g)")
    return int(found[1]) * _FACTORS[found[2].lower()]


def names(text: str) -> tuple[str, ...]:
    """Parse a list separated by commas; drops duplicates."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def lasting(text: str) -> float:
    """Parse a duration, which may be in days, to seconds: ``7d``, ``36h``."""
    found = _DAYS.fullmatch(text.strip())
    return int(found[1]) * 86_400.0 if found else parse_duration(text)


def moment(given: str | datetime.datetime) -> int:
    """Convert to nanoseconds since 1970: from ``2026-03-01`` or ``2026-03-01T07:30`` (UTC), from milliseconds
    since 1970, or from a datetime with a time zone.
    """
    if isinstance(given, str):
        if given.strip().isdecimal():
            return int(given) * 1_000_000
        try:
            read = datetime.datetime.fromisoformat(given.strip())
        except ValueError:
            wanted = "2026-03-01, 2026-03-01T07:30 or milliseconds since 1970"
            raise ConfigError(f"{given!r} is not a point in time (want {wanted})") from None
        given = read if read.tzinfo else read.replace(tzinfo=datetime.UTC)
    if given.tzinfo is None:
        raise ConfigError(f"{given!r} has no time zone: add tzinfo=datetime.UTC, or another")
    return (given - EPOCH) // datetime.timedelta(microseconds=1) * 1000


def _shown_size(count: int) -> str:
    """Format a size as an option's value: ``32MiB``."""
    for unit in ("g", "m"):
        if count and not count % _FACTORS[unit]:
            return f"{count // _FACTORS[unit]}{unit.upper()}iB"
    return str(count)


_SIZES = Kind("a number of bytes", WHOLE.keep, size, show=_shown_size)
LASTING = Kind("a duration such as 36h or 7d", SECONDS.keep, lasting, show=SECONDS.show)
MOMENT = Kind("a point in time", lambda value: value, moment)


def option(
    text: str,
    read: Kind | Callable[[str], Any] = TEXT,
    *,
    default: Any = dataclasses.MISSING,
    low: float = -math.inf,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare an option; required unless it has a default. ``low`` is the minimum of a number."""
    kind = read if isinstance(read, Kind) else Kind("", lambda value: value, read)
    return declare(default, Option(text, kind, low, choices=choices))


def seconds(default: float, text: str, *, low: float = 0.0) -> Any:
    return option(text, SECONDS, default=default, low=low)


def count(default: int | None, text: str, *, low: int = 1) -> Any:
    return option(text, WHOLE, default=default, low=low)


def octets(default: int | None, text: str, *, low: int = 1) -> Any:
    return option(text, _SIZES, default=default, low=low)


def switch(default: bool, text: str) -> Any:
    return option(text, YES_NO, default=default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The connection options that sources and sinks share. The repr shows no secrets, like Config's."""

    #: Names of Kafka's options, in lower case, and what to use instead.
    instead_of_kafka: ClassVar[Mapping[str, str]] = {
        "kafka.bootstrap.servers": "nsqd or lookupd",
        "includeheaders": "not needed: column headers is published where it is not null",
    }

    #: Fields of which at least one must be given, and the error if none is.
    one_of: ClassVar[Mapping[tuple[str, ...], str]] = {}

    config: Config = dataclasses.field(default_factory=Config)
    http_secret_file: str = option(
        "A file with the secret for nsqds and nsqlookupds with --http-logins; else $NSQ_HTTP_SECRET.",
        default="",
    )
    http_secret_to: str = option(
        "Where the secret may go over plain HTTP: to given addresses, or to any that an nsqlookupd tells.",
        default=GIVEN,
        choices=SECRET_TO,
    )

    @classmethod
    def of(cls, given: Mapping[str, str], *, ignored: Iterable[str] = ()) -> Self:
        """Parse and check options; ``ignored`` names those that Spark itself adds."""
        skipped = {plain_name(name) for name in ignored}
        own, of_config = cls._fields(), _config_names()
        values: dict[str, Any] = {}
        settings: dict[str, str] = {}
        for name, text in given.items():
            plain = plain_name(name)
            if plain in own:
                field, spelt = own[plain], _camel(own[plain].name)
                declared: Option = field.metadata[METADATA]
                values[field.name] = declared.checked(spelt, declared.parsed(spelt, text))
            elif plain in of_config:
                settings[of_config[plain]] = text
            elif plain not in skipped:
                raise ConfigError(f"there is no option {name!r}{cls._instead(plain)}")
        missing = [
            f"option {_camel(field.name)} is missing: .option({_camel(field.name)!r}, …)"
            for field in own.values()
            if field.default is dataclasses.MISSING and field.name not in values
        ]
        missing += [text for group, text in cls.one_of.items() if not any(values.get(name) for name in group)]
        if missing:
            raise ConfigError("; ".join(missing))
        if "http_secret" in settings:
            raise ConfigError(
                "option httpSecret would be shown in Spark's page: give httpSecretFile, or $NSQ_HTTP_SECRET"
            )
        if secret := secret_of_program(values.get("http_secret_file", ""), "httpSecretFile"):
            settings["http_secret"] = secret
        return cls(config=Config.from_strings(settings), **values)

    @classmethod
    def describe(cls) -> list[OptionHelp]:
        found = []
        for field in cls._fields().values():
            declared: Option = field.metadata[METADATA]
            default = "" if field.default in (dataclasses.MISSING, None, ()) else field.default
            shown = default if isinstance(default, str) else declared.kind.show(default)
            found.append(OptionHelp(_camel(field.name), shown, declared.range, declared.help))
        return found

    @classmethod
    def _fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """The options by plain name, those that all formats share last."""
        declared = [field for field in dataclasses.fields(cls) if METADATA in field.metadata]
        declared.sort(key=lambda field: field.name in Options.__dataclass_fields__)
        return {plain_name(field.name): field for field in declared}

    @classmethod
    def _instead(cls, plain: str) -> str:
        """The end of the error about an unknown option: what to use instead, also for options of Kafka."""
        ours = cls.instead_of_kafka.get(plain)
        if ours is not None:
            return f": that is one of Kafka's; here it is {ours}"
        if plain.startswith("kafka."):
            return ": options that begin with kafka. are those of Kafka's client"
        known = _config_names() | {key: field.name for key, field in cls._fields().items()}
        close = closest(plain, known, 0.6)
        meant = f"; did you mean {_camel(known[close])}?" if close else ""
        own = ", ".join(_camel(field.name) for field in cls._fields().values())
        return (
            f"{meant}{'' if close else ';'} there are {own}, and all fields of nsq.Config, such as tlsCaFile"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nsqds(Options):
    """The options for the addresses of nsqds and nsqlookupds."""

    nsqd: tuple[str, ...] = option("nsqds, host:port, separated by commas.", names, default=())
    lookupd: tuple[str, ...] = option("nsqlookupds, host:port, separated by commas.", names, default=())

    one_of: ClassVar[Mapping[tuple[str, ...], str]] = {
        ("nsqd", "lookupd"): "option nsqd or lookupd is missing: .option('nsqd', 'host:4150') or "
        ".option('lookupd', 'host:4161')"
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkOptions(Nsqds):
    """The options of the sink. As fields, durations are in seconds and sizes in bytes."""

    topic: str = option("The topic to publish to; without it, each row's column topic.", default="")
    mpub_messages: int = count(500, "The most messages published at once.")
    mpub_bytes: int = octets(1 << 20, "The most bytes published at once; a larger message travels alone.")
    pipeline: int = count(8, "The number of full publishes that a task keeps in flight.")
    retries: int = count(3, "How often a publish is repeated after an error or without a reply.", low=0)
    timeout: float = seconds(30.0, "The longest that one attempt may take, over all nsqds.", low=0.001)

    def __post_init__(self) -> None:
        if self.topic:
            check_topic(self.topic)
        most = Limits().max_body_size
        if self.mpub_bytes > most:
            raise ConfigError(
                f"mpubBytes is {self.mpub_bytes}, but must be at most {most} (nsqd's --max-body-size)"
            )


def _config_names() -> dict[str, str]:
    return {plain_name(line.name): line.name for line in Config.describe()}


def plain_name(name: str) -> str:
    """A name without case and separators, for comparing names."""
    return name.replace("_", "").replace("-", "").lower()


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
