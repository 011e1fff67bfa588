"""Who may send how much: RDY over all connections of a consumer. Pure: facts in, orders out.

nsqd takes RDY as a window on what may be in flight, so an order is given only where the window changes. What
can arrive is bounded at every moment: the sum of max(rdy, in flight) never exceeds ``max_in_flight``, except
for what was in flight already when that was lowered. Windows shrink before others grow, and grow only into
what is free.

Must not import anything that knows a socket, a thread or a clock: ``now`` and chance are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from nsq.consumer.backoff import Backoff, Outcome


@dataclass(frozen=True)
class Order:
    """Give the connection this RDY."""

    key: Hashable
    rdy: int


@dataclass
class _Lane:
    """What is known of one connection. Times are when the thing last happened."""

    key: Hashable
    max_rdy: int
    connected_at: float
    rdy: int = 0
    granted_at: float = 0.0
    last_message_at: float = 0.0  # or when it connected
    has_sent_at: float = 0.0
    closing: bool = False
    target: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Pace:
    """The flow's own settings, in seconds; see the options of the same names."""

    low_rdy_idle_timeout: float = 10.0
    low_rdy_timeout: float = 30.0


@dataclass
class Flow:
    """Every method that takes ``now`` and ``in_flight`` returns the orders that follow from what it was told.

    ``in_flight`` maps connections to how many messages they have in flight at the moment; a missing one has
    none. ``pick`` chooses one of several keys.
    """

    max_in_flight: int
    backoff: Backoff
    pick: Callable[[list[Hashable]], Hashable]
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}
        self._expected = 0
        self._probe: Hashable | None = None
        self._turns: list[Hashable] = []  # who may have a message, while there are too few for all
        self.paused = False
        #: Some window is smaller than it should be, for want of room: worth another look when a message is
        #: done.
        self.short = False

    # Facts.

    def connected(
        self, key: Hashable, max_rdy: int, now: float, in_flight: Mapping[Hashable, int]
    ) -> list[Order]:
        self._lanes[key] = _Lane(key, max_rdy, connected_at=now, last_message_at=now)
        return self.decide(now, in_flight)

    def closing(self, key: Hashable, now: float, in_flight: Mapping[Hashable, int]) -> list[Order]:
        """It takes no more messages, and its answers still count."""
        if key in self._lanes:
            self._lanes[key].closing = True
            self._lanes[key].rdy = 0  # nsqd stops by itself after CLS
        return self.decide(now, in_flight)

    def disconnected(self, key: Hashable, now: float, in_flight: Mapping[Hashable, int]) -> list[Order]:
        self._lanes.pop(key, None)
        return self.decide(now, in_flight)

    def expect(self, connections: int, now: float, in_flight: Mapping[Hashable, int]) -> list[Order]:
        """So many connections there will be shortly: shares are cut for all of them, not for the
        first ones.
        """
        self._expected = connections
        return self.decide(now, in_flight)

    def is_idle(self, key: Hashable, now: float) -> bool:
        """Whether a message from it would be news: its share is then worth another look."""
        lane = self._lanes.get(key)
        return lane is not None and now - lane.last_message_at >= self.pace.low_rdy_idle_timeout

    def received(self, key: Hashable, now: float) -> None:
        lane = self._lanes.get(key)
        if lane is not None:
            lane.last_message_at = lane.has_sent_at = now

    def outcome(self, outcome: Outcome, now: float, in_flight: Mapping[Hashable, int]) -> list[Order]:
        if not self.backoff.outcome(outcome, now):
            return []
        self._probe = None
        return self.decide(now, in_flight)

    def set_max_in_flight(
        self, max_in_flight: int, now: float, in_flight: Mapping[Hashable, int]
    ) -> list[Order]:
        self.max_in_flight = max_in_flight
        return self.decide(now, in_flight)

    def pause(self, paused: bool, now: float, in_flight: Mapping[Hashable, int]) -> list[Order]:
        self.paused = paused
        return self.decide(now, in_flight)

    def tick(self, now: float, in_flight: Mapping[Hashable, int]) -> list[Order]:
        """Time has passed: end waits, and take windows from those who do not use them."""
        self.backoff.expire(now)
        self._rotate(now, in_flight)
        return self.decide(now, in_flight)

    # What follows.

    def rdy(self, key: Hashable) -> int:
        lane = self._lanes.get(key)
        return lane.rdy if lane is not None else 0

    def reason(self, key: Hashable) -> str:
        """Why the connection has the RDY it has, for people."""
        lane = self._lanes.get(key)
        if lane is None:
            return "not connected"
        if lane.rdy < lane.target:
            return f"{lane.reason}; waits for messages in flight to finish before it gets {lane.target}"
        return lane.reason

    def decide(self, now: float, in_flight: Mapping[Hashable, int]) -> list[Order]:
        """Shrink what is too large, then grow what is too small into what is free."""
        lanes = [lane for lane in self._lanes.values() if not lane.closing]
        self._aim(lanes, now, in_flight)
        windows = {lane.key: min(lane.rdy, lane.target) for lane in lanes}
        used = sum(max(windows.get(lane.key, 0), in_flight.get(lane.key, 0)) for lane in self._lanes.values())
        free = self.max_in_flight - used
        if free < 0:
            for lane in sorted(lanes, key=lambda lane: -lane.rdy):
                free += _give_back(lane.key, windows, in_flight.get(lane.key, 0), -free)
        for lane in sorted(lanes, key=lambda lane: lane.rdy):
            free -= _grow(lane, windows, in_flight.get(lane.key, 0), free)
        self.short = free < 0 or any(windows[lane.key] < lane.target for lane in lanes)
        changed = [lane for lane in lanes if windows[lane.key] != lane.rdy]
        changed.sort(key=lambda lane: windows[lane.key] > lane.rdy)  # the shrinking ones first
        return [self._grant(lane, windows[lane.key], now) for lane in changed]

    def _grant(self, lane: _Lane, rdy: int, now: float) -> Order:
        if lane.rdy == 0:
            lane.granted_at = now
        lane.rdy = rdy
        return Order(lane.key, rdy)

    # Targets.

    def _aim(self, lanes: list[_Lane], now: float, in_flight: Mapping[Hashable, int]) -> None:
        if max(len(lanes), self._expected) <= self.max_in_flight:
            self._turns.clear()
        stopped = self._why_stopped(now)
        if stopped:
            _set_all(lanes, 0, stopped)
        elif self.backoff.testing:
            self._aim_at_probe(lanes)
        elif max(len(lanes), self._expected) > self.max_in_flight:
            self._aim_at_few(lanes)
        else:
            self._aim_at_shares(lanes, now, in_flight)
        for lane in lanes:
            if lane.target > lane.max_rdy:
                lane.target = lane.max_rdy
                lane.reason += f", limited by the nsqd's max_rdy_count of {lane.max_rdy}"

    def _why_stopped(self, now: float) -> str:
        if self.paused:
            return "paused"
        if self.max_in_flight <= 0:
            return "max_in_flight is 0"
        if self.backoff.until is not None:
            left = max(0.0, self.backoff.until - now)
            return f"backing off for {left:.3g} s more (level {self.backoff.level})"
        return ""

    def _aim_at_probe(self, lanes: list[_Lane]) -> None:
        keys = [lane.key for lane in lanes]
        if self._probe not in keys:
            self._probe = self._most_recent_sender(lanes)
        _set_all(lanes, 0, f"backing off (level {self.backoff.level}): another connection tests the waters")
        if self._probe is not None:
            lane = self._lanes[self._probe]
            lane.target = 1
            lane.reason = f"backing off (level {self.backoff.level}): tests the waters with one message"

    def _most_recent_sender(self, lanes: list[_Lane]) -> Hashable | None:
        """An nsqd without messages would keep the test, and the consumer with it, waiting for its next
        one."""
        if not lanes:
            return None
        latest = max(lane.has_sent_at for lane in lanes)
        return self.pick([lane.key for lane in lanes if lane.has_sent_at == latest])

    def _aim_at_few(self, lanes: list[_Lane]) -> None:
        """More connections than messages allowed: some have one, and lose it to others in ``_rotate``."""
        many = f"{max(len(lanes), self._expected)} connections share a max_in_flight of {self.max_in_flight}"
        waiting = [lane.key for lane in lanes if lane.key not in self._turns]
        present = {lane.key for lane in lanes}
        self._turns = [key for key in self._turns if key in present][: self.max_in_flight]
        while waiting and len(self._turns) < self.max_in_flight:
            # Whoever may send already goes on: a turn that moves costs two orders and brings nothing.
            sending = [key for key in waiting if self._lanes[key].rdy]
            waiting.remove(chosen := self._next_of(sending or waiting))
            self._turns.append(chosen)
        _set_all(lanes, 0, f"{many}: waits for its turn")
        _set_all((self._lanes[key] for key in self._turns), 1, f"{many}: has its turn")

    def _aim_at_shares(self, lanes: list[_Lane], now: float, in_flight: Mapping[Hashable, int]) -> None:
        """Equal shares for those who have messages; one for each of the others, so that they can show
        some.
        """
        idle = [lane for lane in lanes if self.is_idle(lane.key, now) and not in_flight.get(lane.key, 0)]
        if len(idle) == len(lanes):
            idle = []
        busy = [lane for lane in lanes if lane not in idle]
        _set_all(idle, 1, "idle: its share is with connections that have messages")
        missing = max(0, self._expected - len(lanes))
        share, rest = divmod(self.max_in_flight - len(idle), max(1, len(busy) + missing))
        for place, lane in enumerate(busy):
            lane.target = share + (place < rest)
            lane.reason = f"its share of max_in_flight {self.max_in_flight}"

    def _rotate(self, now: float, in_flight: Mapping[Hashable, int]) -> None:
        """Take the turn, or the test of the waters, from connections that have had it and do not need it."""
        lanes = [lane for lane in self._lanes.values() if not lane.closing]
        if self.backoff.testing:
            probe = self._lanes.get(self._probe) if self._probe is not None else None
            if probe is not None and len(lanes) > 1 and self._turn_is_over(probe, now, in_flight):
                self._probe = self._next_of([lane.key for lane in lanes if lane is not probe])
            return
        waiting = [lane.key for lane in lanes if lane.key not in self._turns]
        for place, key in enumerate(self._turns):
            lane = self._lanes.get(key)
            if waiting and lane is not None and self._turn_is_over(lane, now, in_flight):
                waiting.remove(chosen := self._next_of(waiting))
                self._turns[place] = chosen

    def _next_of(self, waiting: list[Hashable]) -> Hashable:
        """Who has waited longest, so that everybody's turn comes; chance decides only among equals."""
        longest = min(self._lanes[key].granted_at for key in waiting)
        return self.pick([key for key in waiting if self._lanes[key].granted_at == longest])

    def _turn_is_over(self, lane: _Lane, now: float, in_flight: Mapping[Hashable, int]) -> bool:
        since = now - max(lane.last_message_at, lane.granted_at)
        if since >= self.pace.low_rdy_idle_timeout and not in_flight.get(lane.key, 0):
            return True
        return now - lane.granted_at >= self.pace.low_rdy_timeout


def _set_all(lanes: Iterable[_Lane], target: int, reason: str) -> None:
    for lane in lanes:
        lane.target = target
        lane.reason = reason


def _give_back(key: Hashable, windows: dict[Hashable, int], held: int, owed: int) -> int:
    """Shrink the window by what is owed, as far as it is not in flight already; what that frees."""
    freed = min(owed, max(0, windows[key] - held))
    windows[key] -= freed
    return freed


def _grow(lane: _Lane, windows: dict[Hashable, int], held: int, free: int) -> int:
    """Grow the window towards its target into what is free; what that takes.

    A window up to what is in flight anyway takes nothing and admits nothing new.
    """
    used = max(windows[lane.key], held)
    windows[lane.key] = max(windows[lane.key], min(lane.target, used + max(0, free)))
    return max(windows[lane.key], held) - used
