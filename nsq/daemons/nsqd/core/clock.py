"""The clock of the core: monotonic time, wall-clock time, and calls at a later time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A source of time: the event loop's in the daemon, a manual one in tests."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def time_ns(self) -> int:
        """Return nanoseconds since the epoch."""

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Call ``action`` once ``now()`` has reached ``when``."""

    def call_soon(self, action: Callable[[], None], /) -> object:
        """Call ``action`` after the current callback, so that it can serve many events at once."""


class Alarm:
    """One pending timer, set to the earliest time that was requested.

    Setting it to a later time costs only a comparison, so the caller can set it for every message. An action
    that is called too early must set it again.
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
        self._timer = self._clock.call_at(when, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._when = float("inf")

    def _fire(self) -> None:
        self._timer = None
        self._when = float("inf")
        self._action()


Work = Callable[[], None]

#: Work that takes more seconds than the first is followed by a pause of at most the second. What took longer
#: stood still, for a slow disk or as nsqd was stopped: nobody gains if its client waits as long again.
_LONG, _LONGEST_PAUSE = 0.02, 0.1


def pause_after(seconds: float) -> float:
    """Return how long to pause after work that took ``seconds`` on the event loop: as long, within limits.

    A request of another client needs several rounds of the loop. If each of them did such work, it would wait
    many times as long.
    """
    return min(seconds, _LONGEST_PAUSE) if seconds > _LONG else 0.0


def call_after(seconds: float, clock: Clock, work: Work) -> None:
    """Call ``work`` in a later round, after the pause for work that took ``seconds``."""
    if pause := pause_after(seconds):
        clock.call_at(clock.now() + pause, work)
    else:
        clock.call_soon(work)


class RoundRobin:
    """Runs one portion of work in each round of the event loop, in the order of the requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Work] = deque()
        self._asked = False

    def ask(self, portion: Work) -> None:
        """Call ``portion`` once, in a later round. If it leaves more to do, it must ask again."""
        self._waiting.append(portion)
        self._go_on(0.0)

    def _go_on(self, took: float) -> None:
        if self._waiting and not self._asked:
            self._asked = True
            call_after(took, self._clock, self._take_turn)

    def _take_turn(self) -> None:
        portion = self._waiting.popleft()
        began = self._clock.now()
        try:
            portion()
        finally:
            self._asked = False
            self._go_on(self._clock.now() - began)


class LoopClock:
    """The event loop's clock. ``time.monotonic``, as uvloop's ``loop.time`` stands still in a busy loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = time.monotonic
        self.time_ns = time.time_ns
        self.call_soon: Callable[[Callable[[], None]], object] = loop.call_soon

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        # Round up to milliseconds, the loop's resolution: a timer that fires early must only be set again.
        delay = max(0, math.ceil((when - time.monotonic()) * 1000)) / 1000
        return self._loop.call_later(delay, action)
