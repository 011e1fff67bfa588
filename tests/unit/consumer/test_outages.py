"""What backing off does while the service behind the handlers fails, in virtual minutes.

One consumer with 8 threads; a call takes 10 ms; 5 messages a second arrive. The service fails for 20 minutes
with some chance, and works for the 40 minutes after that. Delays and attempts are the defaults, unless given.
`python -m tests.unit.consumer.test_outages` prints the table of docs/client.md.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from nsq.config import Config
from nsq.consumer.rdy import Backoff, Outcome, exponential

MINUTES = 60.0
THREADS, CALL, RATE = 8, 0.01, 5.0
OUTAGE = 20 * MINUTES


@dataclass
class Channel:
    """A channel and its one consumer. ``poison`` is the share of messages that fail at every attempt."""

    after: float
    fails: float = 0.0
    poison: float = 0.0
    delay: float = 90.0
    calls: int = 0
    given_up: int = 0
    slowest: float = 0.0
    """The longest time that a message waited before it was begun first."""
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(7)
        self.waiting: deque[tuple[float, int, bool]] = deque()  # published at, attempts before, poison
        self.deferred: list[tuple[float, float, int, bool]] = []
        self.in_work: list[tuple[float, float, int, bool]] = []
        self.restart()

    def restart(self) -> None:
        """Begin with a new consumer, which knows nothing; what was in work comes again."""
        self.waiting.extend((at, attempts, poison) for _, at, attempts, poison in self.in_work)
        self.in_work.clear()
        self.backoff = Backoff(exponential(1.0), Config().max_backoff_duration, self.after)
        self.backoff.set_at_once(THREADS)
        self.successes = 0

    def run(self, seconds: float, arrive_for: float, restarts: tuple[float, ...] = ()) -> Channel:
        """Run until ``seconds`` have passed."""
        arrivals = self._arrivals(arrive_for)
        arrival, restarts_left, now = next(arrivals), list(restarts), 0.0
        while now < seconds:
            until = self.backoff.until
            events = [arrival, self._first(self.deferred), self._first(self.in_work), *restarts_left[:1]]
            now = min([*events, seconds, *([] if until is None else [until])])
            if restarts_left and now >= restarts_left[0]:
                restarts_left.pop(0)
                self.restart()
            while arrival <= now:
                self.waiting.append((arrival, 0, self.chance.random() < self.poison))
                arrival = next(arrivals)
            while self.deferred and self.deferred[0][0] <= now:
                self.waiting.append(heapq.heappop(self.deferred)[1:])
            while self.in_work and self.in_work[0][0] <= now:
                self._ended(now, *heapq.heappop(self.in_work)[1:])
            self.backoff.expire(now)
            self._begin(now)
        return self

    @staticmethod
    def _first(events: list[tuple[float, float, int, bool]]) -> float:
        return events[0][0] if events else float("inf")

    @staticmethod
    def _arrivals(seconds: float) -> Iterator[float]:
        for number in range(int(seconds * RATE)):
            yield number / RATE
        yield float("inf")

    def _begin(self, now: float) -> None:
        allowed = 0 if self.backoff.waiting else 1 if self.backoff.testing else THREADS
        while self.waiting and len(self.in_work) < allowed:
            at, attempts, poison = self.waiting.popleft()
            if attempts >= Config().max_attempts:
                self.given_up += 1
                continue
            if attempts == 0 and not poison:
                self.slowest = max(self.slowest, now - at)
            self.calls += now < OUTAGE
            heapq.heappush(self.in_work, (now + CALL, at, attempts + 1, poison))

    def _ended(self, now: float, at: float, attempts: int, poison: bool) -> None:
        fails = poison or (now <= OUTAGE and self.chance.random() < self.fails)
        if fails:
            heapq.heappush(self.deferred, (now + min(self.delay * attempts, 900.0), at, attempts, poison))
        elif not self.backoff.level:
            self.successes += 1
            return
        outcome = Outcome.FAILURE if fails else Outcome.SUCCESS
        if self.backoff.outcome(outcome, now, first=attempts == 1, successes=self.successes) and fails:
            self.pauses.append(now)
        self.successes = 0


def outage(fails: float, after: float, restart: bool) -> Channel:
    restarts = (OUTAGE / 2,) if restart else ()
    return Channel(after, fails).run(3 * OUTAGE, arrive_for=OUTAGE, restarts=restarts)


#: Share of failures, backoff_after, a restart in mid-outage; the least and the most calls, the most messages
#: given up.
OUTAGES = [
    (0.3, 0.0, False, 500, 3_000, 3),
    (0.3, 0.5, False, 7_500, 9_000, 30),
    (0.5, 0.0, False, 50, 500, 3),
    (0.5, 0.5, False, 50, 1_000, 3),
    (1.0, 0.0, False, 10, 30, 0),
    (1.0, 0.5, False, 10, 30 + 20, 0),
    (1.0, 0.0, True, 20, 60, 0),
    (1.0, 0.5, True, 20, 60 + 2 * 20, 0),
]


@pytest.mark.parametrize(("fails", "after", "restart", "least", "most", "given_up"), OUTAGES)
def test_a_service_that_fails_is_asked_little_and_few_messages_are_given_up(
    fails: float, after: float, restart: bool, least: int, most: int, given_up: int
) -> None:
    got = outage(fails, after, restart)
    assert least <= got.calls <= most
    assert got.given_up <= given_up
    assert not got.waiting


def test_poison_messages_delay_no_other() -> None:
    """5 % of the messages fail at every attempt, and come back while others arrive."""
    got = Channel(after=0.5, poison=0.05, delay=2.0).run(120.0, arrive_for=60.0)
    assert (got.slowest, got.pauses) == (0.0, [])
    assert got.given_up > 10
    assert Channel(after=0.0, poison=0.05, delay=2.0).run(120.0, arrive_for=60.0).slowest > 10.0


if __name__ == "__main__":
    print("fails after restart  calls given_up slowest")
    for fails, after, restart, *_ in OUTAGES:
        got = outage(fails, after, restart)
        print(f"{fails:5.0%} {after:5} {restart!s:7} {got.calls:6} {got.given_up:8} {got.slowest:7.1f}")
