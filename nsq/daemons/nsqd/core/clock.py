"""Time as the core sees it: two clocks and a way to be called later."""

from __future__ import annotations

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
    whoever is woken too early looks at what is due and sets it again.
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
