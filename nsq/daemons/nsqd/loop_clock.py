"""The core's clock on an event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from nsq.daemons.nsqd.core.clock import Timer


class LoopClock:
    """``time.monotonic`` rather than ``loop.time``: uvloop's stands still while the loop is busy."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = time.monotonic
        self.time_ns = time.time_ns
        self.call_soon: Callable[[Callable[[], None]], object] = loop.call_soon

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        # Up to the next millisecond: loops count in those, and ringing early would only mean setting it
        # again.
        delay = max(0, math.ceil((when - time.monotonic()) * 1000)) / 1000
        return self._loop.call_later(delay, action)
