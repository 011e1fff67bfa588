"""Time as the core sees it: two clocks and a way to be called later."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is due and can be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The daemon gives the event loop's; tests give one they turn by hand."""

    def now(self) -> float:
        """Monotonic seconds."""

    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Call once when ``now()`` has reached ``when``."""

    def call_soon(self, action: Callable[[], None], /) -> object:
        """Call once the work at hand is done: what many events ask for is then done once."""


class Alarm:
    """One pending wake-up that only ever moves to the earliest moment asked for.

    Setting it for later than it is set already costs a comparison, so it can be set for every message;
    an action that is called too early looks at what is due and sets it again.
    """

    __slots__ = ("_action", "_clock", "_timer", "_when")

    def __init__(self, clock: Clock, action: Callable[[], None]) -> None:
        self._clock = clock
        self._action = action
        self._timer: Timer | None = None
        self._when = float("inf")

    def set(self, when: float) -> None:
        if when >= self._when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._when = when
        self._timer = self._clock.call_at(when, self._ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._when = float("inf")

    def _ring(self) -> None:
        self._timer = None
        self._when = float("inf")
        self._action()


Work = Callable[[], None]


class RoundRobin:
    """Calls one portion of work each time the loop comes round: all that have work take turns."""

    def __init__(self, call_soon: Callable[[Work], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Work] = deque()
        self._asked = False

    def ask(self, portion: Work) -> None:
        """Call once, on another turn. A portion that leaves more to do asks again."""
        self._waiting.append(portion)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._asked:
            self._asked = True
            self._call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._asked = False
        portion = self._waiting.popleft()
        try:
            portion()
        finally:
            self._go_on()


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
