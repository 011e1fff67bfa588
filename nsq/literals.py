"""Durations, numbers and booleans in Go's spelling, for command lines, config files and option strings.

Pure; imports nothing of the package but errors.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction

from nsq.errors import ConfigError

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
