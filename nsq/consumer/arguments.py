"""What users hand to a consumer beside its options, checked where they hand it over. Pure."""

from __future__ import annotations

import math
from typing import TypeVar

from nsq.errors import ConfigError, UsageError

C = TypeVar("C")

#: Seconds; threads cannot be asked to wait very much longer.
_FOR_EVER = 10.0**9


def checked_whole(name: str, value: int, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number from {least} up")
    return value


def checked_callable(name: str, value: C) -> C:
    """None means not given."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name} is {value!r}; it must be a function")
    return value


def checked_seconds(timeout: float) -> float:
    """For a wait; infinity will do."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout):
        raise UsageError(f"timeout is {timeout!r}; it must be a number of seconds")
    return min(float(timeout), _FOR_EVER)
