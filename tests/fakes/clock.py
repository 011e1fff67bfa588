"""Clocks that a test controls."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

EPOCH_NS = 1_700_000_000_000_000_000


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeTimer:
    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """A clock with timers, for nsqd's core. ``advance`` fires every timer at its time, in order, as an event
    loop does.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self._start = self._now = now
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()

    # The interface for the core.

    def now(self) -> float:
        return self._now

    def time_ns(self) -> int:
        return EPOCH_NS + round((self._now - self._start) * 1e9)

    def call_at(self, when: float, action: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(when, action)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_soon(self, action: Callable[[], None], /) -> None:
        self._soon.append(action)

    # The interface for tests.

    def run_due(self) -> None:
        """Run deferred calls, and fire timers that are due now."""
        rounds = 0
        while self.busy:
            rounds += 1
            assert rounds < 100_000, "the same moment goes on for ever"
            if self._soon:
                self._soon.popleft()()
            else:
                heapq.heappop(self._timers)[2].action()

    def step(self) -> None:
        """Run the present deferred calls once, without those that they defer."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        self.run_due()
        while (when := self.next_timer) is not None and when <= end:
            self._now = max(self._now, when)
            self.run_due()
        self._now = end

    def advance_without_calls(self, seconds: float) -> None:
        """Let time pass within a call, as work does."""
        self._now += seconds

    @property
    def next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def busy(self) -> bool:
        """Whether a call or timer is due now."""
        return bool(self._soon) or self._due()

    @property
    def idle(self) -> bool:
        """Whether there are no deferred calls and no timers."""
        return not self._soon and self.next_timer is None

    def _due(self) -> bool:
        when = self.next_timer
        return when is not None and when <= self._now
