"""Declares options: the kind of value, its range, and how to read it from text.

    max_in_flight: int = options.count(1, 0, 1000, "How many messages may be here at once.")

A field declared like this carries an ``Option``, which checks values and parses text. Three modules use it:
``Config`` (keywords and strings), ``flags`` (Go's command lines and TOML) and Spark's options. Must import
nothing heavy: ssl is loaded only when a value may be an SSLContext.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from nsq.errors import ConfigError

METADATA = "nsq.option"


# Values as text, in Go's spelling


SECOND_NS = 10**9
MILLISECOND_NS = 10**6
_UNITS = {"ns": 1, "us": 10**3, "ms": MILLISECOND_NS, "s": SECOND_NS}
_UNITS |= {"m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}
_UNITS |= {"\u00b5s": 10**3, "\u03bcs": 10**3}  # the micro sign and the Greek letter
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO]?(?:_?[0-7])+|0|[1-9](?:_?[0-9])*)"
)
_OLD_OCTAL = re.compile(r"[+-]?0[0-7_]+")
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE
)
_BOOLEANS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True)
_BOOLEANS |= dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)
_INT64 = range(-(2**63), 2**63)
_OUT_OF_RANGE = "value out of range"
A_DURATION = "a duration such as 100ms, 2s or 1m30s"


def parse_duration(text: str) -> float:
    """Return the seconds of a Go duration: ``parse_duration("1m30s") == 90.0``."""
    size = _nanoseconds(text[1:] if text[:1] in ("-", "+") else text)
    signed = -size if size is not None and text.startswith("-") else size
    if signed is None or signed not in _INT64:
        raise ConfigError(f"parse error (want {A_DURATION})")
    return signed / SECOND_NS


def _nanoseconds(text: str) -> int | None:
    """Parse a duration without a sign; None if ``text`` is not a duration."""
    if text == "0":
        return 0
    total = 0
    position = 0
    while position < len(text):
        part = _DURATION_PART.match(text, position)
        # int() raises an error of its own beyond some thousand digits; no duration needs hundreds.
        if part is None or not (part[1] or part[2]) or len(part[0]) > 300:
            return None
        fraction = part[2] or ""
        unit = _UNITS[part[3]]
        total += int(part[1] or 0) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
        position = part.end()
    return total if text else None


def format_duration(seconds: float) -> str:
    """Format a duration as Go does, rounded to nanoseconds: ``format_duration(90.0) == "1m30s"``."""
    from fractions import Fraction  # which takes as long to import as all of this module

    # A float times 1e9 rounds twice; a Fraction keeps every nanosecond that a float of this size can hold.
    nanoseconds = round(Fraction(seconds) * SECOND_NS)
    sign = "-" if nanoseconds < 0 else ""
    size = abs(nanoseconds)
    if size == 0:
        return "0s"
    for unit, limit in (("ns", 10**3), ("µs", 10**6), ("ms", 10**9)):
        if size < limit:
            return sign + _decimal(size, _UNITS[unit]) + unit
    minutes, below_a_minute = divmod(size, _UNITS["m"])
    hours, minutes_left = divmod(minutes, 60)
    front = f"{hours}h{minutes_left}m" if hours else f"{minutes}m" if minutes else ""
    return sign + front + _decimal(below_a_minute, _UNITS["s"]) + "s"


def _decimal(size: int, unit: int) -> str:
    whole, fraction = divmod(size, unit)
    digits = str(fraction).zfill(len(str(unit)) - 1).rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)


def parse_integer(text: str) -> int:
    """Parse an integer. ``int`` would take spaces and other scripts' digits, and refuse octal ``010``."""
    if not _INTEGER.fullmatch(text):
        raise ConfigError("parse error (want an integer)")
    return check_int64(int(text, 8 if _OLD_OCTAL.fullmatch(text) else 0))


def check_int64(value: int) -> int:
    if value not in _INT64:
        raise ConfigError(_OUT_OF_RANGE)
    return value


def format_plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_number(value: float) -> str:
    return str(value).removesuffix(".0")


def parse_number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ConfigError("parse error (want a number)")
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise ConfigError(_OUT_OF_RANGE)
    return value


def parse_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ConfigError("parse error (want true or false)")
    return _BOOLEANS[text]


def quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# Kinds of values


class Kind(NamedTuple):
    """One type of value: how to check it, read it from text and TOML, name it, and show it in a usage.

    ``keep`` returns the value to store or raises TypeError; ``parse`` reads it from text. A TOML file may
    hold text, which ``parse`` reads too, or a value of the types ``in_toml``.
    """

    wanted: str
    keep: Callable[[Any], Any]
    parse: Callable[[str], Any]
    word: str = "value"
    show: Callable[[Any], str] = format_plain
    in_toml: tuple[type, ...] = (bool, int, float)
    wanted_in_toml: str = "a string"

    def read_toml(self, value: Any) -> Any:
        if not isinstance(value, str) and type(value) not in self.in_toml:
            raise ConfigError(f"want {self.wanted_in_toml}")
        text = format_plain(value)
        # A bare integer, quoted or not, means milliseconds, as in existing nsqd.cfg files.
        if self is SECONDS and re.fullmatch("-?[0-9]+", text):
            return check_int64(int(text) * MILLISECOND_NS) / SECOND_NS
        return self.parse(text)


def _kept_as(make: Callable[[Any], Any], *types: type) -> Callable[[object], Any]:
    """Return a function that accepts values of these types and converts them by ``make``. A boolean is no
    number.
    """

    def keep(value: object) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise TypeError
        return make(value)

    return keep


def _keep_tls(value: object) -> object:
    if isinstance(value, bool):
        return value
    import ssl

    if not isinstance(value, ssl.SSLContext):
        raise TypeError
    return value


def _keep_strategy(value: object) -> object:
    if not isinstance(value, str) and not callable(value):
        raise TypeError
    return value


_FLOAT = _kept_as(float, int, float)
SECONDS = Kind(
    "a number of seconds (Config.from_strings reads durations such as 1m30s)",
    _FLOAT,
    parse_duration,
    "duration",
    format_duration,
    (int,),
    f"{A_DURATION}, or whole milliseconds",
)
NUMBER = Kind("a number", _FLOAT, parse_number, "float", format_number, (int, float), "a number")
WHOLE = Kind("a whole number", _kept_as(int, int), parse_integer, "int", format_plain, (int,), "an integer")
YES_NO = Kind(
    "True or False", _kept_as(bool, bool), parse_boolean, "", format_plain, (bool,), "true or false"
)
TEXT = Kind("a str", _kept_as(lambda value: value, str), str, "string", quote, ())
PATH = Kind("a path", os.fsdecode, str)
TLS = Kind("True, False or an ssl.SSLContext", _keep_tls, parse_boolean)
STRATEGY = Kind("a name or a function", _keep_strategy, str)


# Declaring an option


class OptionHelp(NamedTuple):
    """One line of a table of options; ``range`` is empty when any value of the type is allowed."""

    name: str
    default: str
    range: str
    help: str


@dataclass(frozen=True)
class Option:
    """The declaration of one option. ``also`` lists allowed values outside the range."""

    help: str
    kind: Kind
    low: float = -math.inf
    high: float = math.inf
    also: tuple[object, ...] = ()
    choices: tuple[str, ...] = ()
    secret: bool = False
    default: str = ""

    @property
    def range(self) -> str:
        """The range in words; empty when any value of the type is allowed."""
        words = ", ".join(choice or "empty" for choice in self.choices)
        if math.isfinite(self.low):
            bounded = math.isfinite(self.high)
            words = (
                f"{self.show(self.low)} to {self.show(self.high)}"
                if bounded
                else f"at least {self.show(self.low)}"
            )
        return ", or ".join([*(self.show(value) for value in self.also), words]) if words else ""

    def show(self, value: object) -> str:
        if isinstance(value, (int, float)) and self.kind is SECONDS:
            return f"{value:.10g} s" if value else "0"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def checked(self, name: str, value: Any) -> Any:
        """Return the value to store; ConfigError if it is of the wrong type or out of range."""
        if value is None and None in self.also:
            return None
        try:
            kept = self.kind.keep(value)
        except TypeError:
            raise ConfigError(f"{name} is {self._quoted(value)}, but must be {self.kind.wanted}") from None
        if kept in self.also:
            return kept
        if isinstance(kept, str) and self.choices and kept not in self.choices:
            raise ConfigError(f"{name} is {self._quoted(kept)}, but must be one of: {self.range}")
        # "Not inside" instead of "outside": NaN compares false with everything.
        if isinstance(kept, (int, float)) and not (self.low <= kept <= self.high and math.isfinite(kept)):
            raise ConfigError(f"{name} is {self._quoted(value)}, but must be {self.range or 'finite'}")
        return kept

    def parsed(self, name: str, text: str) -> Any:
        try:
            return self.kind.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{name} is {self._quoted(text)}: {error}") from None

    def _quoted(self, value: object) -> str:
        if self.secret:
            return f"a secret {type(value).__name__}"
        shown = repr(value)
        return shown if len(shown) <= 100 else f"{shown[:100]}…"


def closest(name: str, known: Iterable[str], cutoff: float) -> str:
    """Return the known name that was probably meant; empty when none is close."""
    import difflib

    return next(iter(difflib.get_close_matches(name.lower(), known, n=1, cutoff=cutoff)), "")


def declare(default: Any, option: Option) -> Any:
    metadata = {METADATA: option}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def seconds(default: float, low: float, high: float, text: str, *, also: tuple[object, ...] = ()) -> Any:
    return declare(default, Option(text, SECONDS, low, high, also))


def count(
    default: int | None, low: float, high: float, text: str, *, also: tuple[object, ...] = (), shown: str = ""
) -> Any:
    return declare(default, Option(text, WHOLE, low, high, also, default=shown))


def share(default: float, text: str) -> Any:
    return declare(default, Option(text, NUMBER, 0.0, 1.0))


def switch(text: str, *, default: bool = False) -> Any:
    return declare(default, Option(text, YES_NO))


def text(default: str | Callable[[], str], text: str, *, shown: str = "") -> Any:
    return declare(default, Option(text, TEXT, default=shown))


def choice(default: str, choices: tuple[str, ...], text: str, *, kind: Kind = TEXT) -> Any:
    return declare(default, Option(text, kind, choices=choices))


def maybe(kind: Kind, text: str) -> Any:
    return declare(None, Option(text, kind, also=(None,)))
