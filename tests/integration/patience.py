"""Waits with a timeout for other processes and threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
_PAUSE = 0.01


def eventually(look: Callable[[], T], holds: Callable[[T], object] = bool, within: float = PATIENCE) -> T:
    """Poll until the check holds for the value, and return it; fail with the last value."""
    pause, deadline = threading.Event(), time.monotonic() + within
    while True:
        seen = look()
        if holds(seen):
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within:g} s; last seen: {seen!r}")
        pause.wait(_PAUSE)
