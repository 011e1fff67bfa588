"""Waits with a timeout for other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
_SHORTEST, _LONGEST = 0.005, 0.05


def eventually(look: Callable[[], T], holds: Callable[[T], object] = bool, within: float = PATIENCE) -> T:
    """Poll until the check holds for the value, and return it; fail with the last value."""
    began = time.monotonic()
    while True:
        seen = look()
        if holds(seen):
            return seen
        if time.monotonic() > began + within:
            raise AssertionError(f"not so within {within:g} s; last seen: {seen!r}")
        nap(began)


def nap(began: float) -> None:
    """Sleep before another poll: a tenth of the time since the first, so that a long wait costs few polls."""
    time.sleep(min(max(_SHORTEST, (time.monotonic() - began) / 10), _LONGEST))
