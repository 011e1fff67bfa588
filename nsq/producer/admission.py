"""How many publishes are under way: the bound on them, and what flush waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nsq.errors import Closed, QueueFull


class Admission:
    """A publish enters, is settled when its caller knows what became of it, and leaves when nothing of it
    is kept.

    Leaving can come much later than being settled: what was given up on a silent connection keeps its place
    in the order of answers. ``flush`` waits for what had entered when it was called, so each publish
    belongs to an era, and each flush begins a new one.
    """

    def __init__(
        self, limit: int, clock: Callable[[], float], patient: Callable[[], bool] = lambda: True
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._patient = patient
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._settlement = threading.Condition(self._lock)
        self.inside = 0  # have not left yet
        self._era = 0
        self._unsettled: dict[int, int] = {0: 0}
        self._waiting = 0  # for room
        self._flushing = 0
        self._closed = False

    def enter(self, deadline: float) -> int:
        """The era it belongs to. QueueFull when there is no room by the deadline, or at once if not
        patient.
        """
        with self._lock:
            if self.inside >= self._limit and not self._closed and self._patient():
                self._await_room(deadline)
            if self._closed:
                raise Closed("the producer is closed")
            if self.inside >= self._limit:
                raise QueueFull(
                    f"{self.inside} publishes are unanswered, as many as max_pending allows, "
                    "and none was answered in time"
                )
            self.inside += 1
            self._unsettled[self._era] += 1
            return self._era

    def _await_room(self, deadline: float) -> None:
        self._waiting += 1
        self._room.wait_for(
            lambda: self._closed or self.inside < self._limit, max(0.0, deadline - self._clock())
        )
        self._waiting -= 1

    def leave(self, count: int = 1) -> None:
        with self._lock:
            self.inside -= count
            if self._waiting:
                self._room.notify(count)

    def settle(self, era: int, *, leaving: bool = False) -> None:
        with self._lock:
            self._unsettled[era] -= 1
            if self._flushing and not self._unsettled[era]:
                self._settlement.notify_all()
            if leaving:
                self.inside -= 1
                if self._waiting:
                    self._room.notify()

    def flush(self, deadline: float) -> int:
        """Wait for all that have entered; how many of them are unsettled still."""
        with self._lock:
            flushed = self._era
            self._era += 1
            self._unsettled[self._era] = 0
            self._flushing += 1
            self._settlement.wait_for(
                lambda: not self._count_until(flushed), max(0.0, deadline - self._clock())
            )
            self._flushing -= 1
            left = self._count_until(flushed)
            self._unsettled = {era: n for era, n in self._unsettled.items() if n or era == self._era}
            return left

    @property
    def unsettled(self) -> int:
        with self._lock:
            return sum(self._unsettled.values())

    def _count_until(self, last: int) -> int:
        return sum(count for era, count in self._unsettled.items() if era <= last)

    def close(self) -> bool:
        """Nobody enters any more; whether it was open."""
        with self._lock:
            was_open = not self._closed
            self._closed = True
            self._room.notify_all()
            return was_open

    @property
    def closed(self) -> bool:
        return self._closed
