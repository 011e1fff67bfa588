"""Options as Spark hands them over: text, under names whose case does not count.

A part declares what it takes as a frozen dataclass with ``option(…)`` fields; ``maxBytesPerTrigger`` is the
field ``max_bytes_per_trigger``. Everything that ``nsq.Config`` knows may be given beside them, spelt the same
way: ``tlsCaFile``, ``authSecret``, ``msgTimeout``. An unknown name is an error, with what it probably meant.
Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from nsq.config import Config
from nsq.errors import ConfigError
from nsq.literals import parse_boolean, parse_duration, parse_integer
from nsq.options import METADATA, SECONDS, TEXT, WHOLE, YES_NO, Kind, Option, OptionHelp

_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str) -> int:
    """Bytes: ``33554432``, ``32MiB``, ``32m``. Multiples of 1024, as everywhere in Spark."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"invalid size {text!r} (want a number of bytes such as 33554432, 32MiB or 1g)")
    return int(found[1]) * _FACTORS[found[2].lower()]


def names(text: str) -> tuple[str, ...]:
    """A list separated by commas, without repetitions."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


duration, whole, yes_no = parse_duration, parse_integer, parse_boolean

_SIZES = Kind("a number of bytes", WHOLE.keep, size)
_KINDS = {duration: SECONDS, whole: WHOLE, yes_no: YES_NO, str: TEXT, size: _SIZES}


def option(
    text: str,
    read: Callable[[str], Any] = str,
    *,
    default: Any = dataclasses.MISSING,
    low: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field; without a default it has to be given. ``low`` is the least a number may be."""
    kind = _KINDS.get(read) or Kind("", lambda value: value, read)
    declared = Option(text, kind, -math.inf if low is None else low, choices=choices)
    return dataclasses.field(default=default, metadata={METADATA: declared})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What all parts share: how to connect. Its repr shows no secret, for Config's does not."""

    config: Config = dataclasses.field(default_factory=Config)

    @classmethod
    def of(cls, given: Mapping[str, str], *, ignored: Iterable[str] = ()) -> Self:
        """Read and check them; ``ignored`` are those that Spark itself puts there."""
        skipped = {_plain(name) for name in ignored}
        own, of_config = cls._declared(), _config_names()
        values: dict[str, Any] = {}
        settings: dict[str, str] = {}
        for name, text in given.items():
            plain = _plain(name)
            if plain in own:
                field, option = own[plain]
                spelt = _camel(field)
                values[field] = option.checked(spelt, option.parsed(spelt, text))
            elif plain in of_config:
                settings[of_config[plain]] = text
            elif plain not in skipped:
                raise ConfigError(f"there is no option {name!r}{cls._nearest(plain)}")
        cls._refuse_absence(values)
        return cls(config=Config.from_strings(settings), **values)

    @classmethod
    def describe(cls) -> list[OptionHelp]:
        fields = {field.name: field for field in dataclasses.fields(cls)}
        return [
            OptionHelp(_camel(name), _shown(fields[name].default, option), option.range, option.help)
            for name, option in cls._declared().values()
        ]

    @classmethod
    def _declared(cls) -> dict[str, tuple[str, Option]]:
        return {
            _plain(field.name): (field.name, field.metadata[METADATA])
            for field in dataclasses.fields(cls)
            if METADATA in field.metadata
        }

    @classmethod
    def _nearest(cls, plain: str) -> str:
        spelt = {key: _camel(name) for key, (name, _) in cls._declared().items()}
        spelt |= {key: _camel(name) for key, name in _config_names().items() if key not in spelt}
        close = difflib.get_close_matches(plain, spelt, n=1)
        return f"; did you mean {spelt[close[0]]}?" if close else ""

    @classmethod
    def _refuse_absence(cls, values: Mapping[str, Any]) -> None:
        absent = [
            _camel(field.name)
            for field in dataclasses.fields(cls)
            if METADATA in field.metadata
            and field.default is dataclasses.MISSING
            and field.name not in values
        ]
        if absent:
            raise ConfigError(f"option {absent[0]} is missing: .option({absent[0]!r}, …)")


def require_address(nsqd: tuple[str, ...], lookupd: tuple[str, ...]) -> None:
    """One of them will do."""
    if not nsqd and not lookupd:
        raise ConfigError(
            "option nsqd or lookupd is missing: .option('nsqd', 'host:4150') or "
            ".option('lookupd', 'host:4161')"
        )


def _config_names() -> dict[str, str]:
    return {_plain(line.name): line.name for line in Config.describe()}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _shown(value: Any, option: Option) -> str:
    """As one would write it: ``250ms``, ``32MiB``."""
    if value is dataclasses.MISSING or value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if option.kind is SECONDS:
        return f"{value:g}s" if value >= 1 or not value else f"{value * 1000:g}ms"
    if option.kind is _SIZES and value and not value % _FACTORS["m"]:
        return f"{value // _FACTORS['m']}MiB"
    return str(value)
