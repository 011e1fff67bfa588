"""RDY: how many messages each nsqd may have in flight to a consumer. Pure: facts in, orders out.

nsqd takes RDY as a window on the messages in flight, so an order is needed only when a window changes. At
every moment the sum of max(rdy, in flight) is at most ``max_in_flight``, except for messages that were in
flight already when it was lowered. Some windows shrink before others grow, and they grow only into free room.

Three things make a window smaller than its share of ``max_in_flight``: backing off after failures, handlers
that are too slow for that many messages, and the user's pause. Must not import anything that knows a socket,
a thread or a clock: ``now`` and chance are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

# Backing off.

#: Maps a level, from 1 up, to the seconds to wait.
Strategy = Callable[[int], float]


def exponential(multiplier: float, chance: Callable[[], float] = lambda: 1.0) -> Strategy:
    """Return a strategy that doubles at every level: 2, 4, 8 … seconds for a multiplier of 1. ``chance``, a
    float in [0, 1), scales that, so that many consumers do not resume at once.
    """
    return lambda level: chance() * multiplier * 2.0 ** min(level, 62)


class Outcome(Enum):
    """The hint that a handled message gives about the service behind the handler."""

    SUCCESS = 1
    FAILURE = 2
    NEUTRAL = 3


#: The fewest outcomes that the share of failures is taken from.
_LEAST_WINDOW = 20
#: Seconds without any first attempt after which the failures of later attempts count.
_QUIET = 10.0


class Backoff:
    """Backing off: ``waiting`` while no message may be delivered, ``testing`` while one may, else neither.

    It begins when ``failure_share``, that of the last ``window`` outcomes, of which older ones weigh less,
    reaches ``threshold``; with 0, at each failure. Only a message's first failure counts. A poison message
    fails at each attempt, and many that return together would look like a service that is down. But if there
    have been no first attempts lately, the failures of later ones count: a consumer that starts during an
    outage may get nothing else.
    """

    def __init__(self, strategy: Strategy, longest: float, threshold: float = 0.0) -> None:
        self._strategy, self._longest, self.threshold = strategy, longest, threshold
        self.failure_share, self.window = 0.0, _LEAST_WINDOW
        self._later = math.inf  # failures of later attempts since the last outcome that counted
        self._counted_at = -math.inf
        self.level = 0
        self.until: float | None = None

    def set_at_once(self, calls: int) -> None:
        """Set how many calls of handlers there are at once: when a service fails, all of them do."""
        self.window = max(_LEAST_WINDOW, 2 * calls)

    def share_after(self, successes: int) -> float:
        """Return the share of failures as it is after so many successes."""
        return self.failure_share * (1.0 - 1.0 / self.window) ** successes

    @property
    def waiting(self) -> bool:
        return self.until is not None

    @property
    def testing(self) -> bool:
        return self.level > 0 and self.until is None

    def outcome(self, outcome: Outcome, now: float, *, first: bool = True, successes: int = 0) -> bool:
        """Note the outcome of a message's ``first`` attempt or a later one; return whether that changes
        anything. ``successes`` are those since the last call that were not noted here one by one.
        """
        if self.waiting or self._longest <= 0:
            return False
        if self.level == 0:
            if successes > 0:
                self.failure_share = self.share_after(successes)
                self._later, self._counted_at = 0, now
            if outcome is not Outcome.FAILURE or not self._fails_too_often(first, now):
                return False
        if outcome is Outcome.FAILURE:
            # The first failure always raises the level; later ones only up to the longest wait.
            if self.level == 0 or self._strategy(self.level + 1) <= self._longest:
                self.level += 1
        elif outcome is Outcome.SUCCESS:
            self.level -= 1
            if self.level == 0:
                self.failure_share = self.threshold  # if the service still fails, it is soon left alone again
        self.until = now + min(self._strategy(self.level), self._longest) if self.level else None
        return True

    def _fails_too_often(self, first: bool, now: float) -> bool:
        quiet = self._later >= self.window and now - self._counted_at >= _QUIET
        if not (first or quiet):
            self._later += 1
            return not self.threshold
        self.failure_share += (1.0 - self.failure_share) / self.window
        if first:
            self._later, self._counted_at = 0, now
        return self.failure_share >= self.threshold

    def expire(self, now: float) -> None:
        """End the wait if it is over, so that one message may test the service."""
        if self.until is not None and now >= self.until:
            self.until = None


# The speed of the handlers.


class HandlingLimit:
    """The most messages that may wait or be in work here: as many as the handlers manage within nsqd's
    message timeout. Halved when a message has waited longer, and raised again while all are quick.
    """

    def __init__(self) -> None:
        self.limit: float = math.inf
        self._changed_at = -math.inf
        self._oldest, self._since = 0.0, -math.inf  # the age of the oldest message since ``_since``

    @property
    def active(self) -> bool:
        return self.limit < math.inf

    def expired(self, now: float, timeout: float, max_in_flight: int, least: int) -> bool:
        """Lower the limit, as a message was not handled in its ``timeout``; return whether it is lower."""
        limit = int(min(self.limit, max_in_flight))
        lower = max(least, limit // 2)
        # Messages time out together, so one step down must take effect before the next one.
        if now - self._changed_at < timeout or lower >= limit:
            return False
        self.limit = lower
        self._changed_at = self._since = now
        self._oldest = 0.0
        return True

    def relax(self, now: float, timeout: float, max_in_flight: int, oldest: float) -> bool:
        """Raise the limit if ``oldest``, the oldest message's age, stays low; return whether it is higher."""
        self._oldest = max(self._oldest, oldest)
        if not self.limit < max_in_flight or now - self._since < timeout:
            return False
        seen, self._oldest, self._since = self._oldest, 0.0, now
        if seen > timeout / 2:
            return False
        self._changed_at = now
        higher = self.limit + max(1, self.limit // 4)
        self.limit = higher if higher < max_in_flight else math.inf
        return True


# The windows.


@dataclass
class NsqdWindow:
    """The state of one connection. Its read loop sets the times of messages, the owner sets the rest."""

    key: Hashable
    max_rdy: int
    rdy: int = 0
    granted_at: float = 0.0
    last_message_at: float = 0.0  # at first the time of connecting
    has_sent_at: float = 0.0
    closing: bool = False
    target: int = 0
    reason: str = ""


@dataclass
class RdyWindows:
    """The windows of all connections: report facts to it, then call ``decide``. ``in_flight`` maps a
    connection to the messages that it has in flight now, if any. ``pick`` chooses one of several keys.
    """

    max_in_flight: int
    backoff: Backoff
    pick: Callable[[list[Hashable]], Hashable]
    low_rdy_idle_timeout: float = 10.0
    low_rdy_timeout: float = 30.0
    grows: bool = False  # there is room for one message on each connection, even beyond ``max_in_flight``

    def __post_init__(self) -> None:
        self.nsqds: dict[Hashable, NsqdWindow] = {}
        self.expected = (
            0  # connections that there will be shortly: each gets a share, not only the first ones
        )
        self._turns: list[Hashable] = []  # the connections with RDY 1, while not all can have it
        self.paused = False
        self.handling = HandlingLimit()
        self.rate_limit = math.inf  # the most messages that may be here: none waits too long for the rate
        # Whether a window is too small for want of room: decide again when a message is done.
        self.below_target = False

    @property
    def allowed(self) -> int:
        """The most messages that may be here: fewer than ``max_in_flight`` if handlers are slow or rated."""
        most = max(self.max_in_flight, self.expected, len(self.nsqds)) if self.grows else self.max_in_flight
        return int(min(most, self.handling.limit, self.rate_limit))

    # Facts.

    def connected(self, key: Hashable, max_rdy: int, now: float) -> None:
        self.nsqds[key] = NsqdWindow(key, max_rdy, last_message_at=now)

    def closing(self, key: Hashable) -> None:
        """Note that a connection gets no more messages; those in flight still count."""
        if (nsqd := self.nsqds.get(key)) is not None:
            nsqd.closing, nsqd.rdy = True, 0  # nsqd stops by itself after CLS

    def disconnected(self, key: Hashable) -> None:
        self.nsqds.pop(key, None)

    def outcome(self, outcome: Outcome, now: float, *, first: bool = True, successes: int = 0) -> bool:
        """Note a message's outcome, as ``Backoff.outcome`` does; return whether that changes anything."""
        changed = self.backoff.outcome(outcome, now, first=first, successes=successes)
        if changed:
            self._turns.clear()
        return changed

    def tick(self, now: float, in_flight: Mapping[Hashable, int]) -> None:
        """End waits that are over, and take windows from connections that do not use them."""
        self.backoff.expire(now)
        self._rotate(now, in_flight)

    def handled_late(self, now: float, timeout: float, least: int) -> bool:
        """Note that a message has timed out before its handler was done; return whether fewer may be here."""
        return self.handling.expired(now, timeout, self.max_in_flight, least)

    # Decisions.

    def reason(self, key: Hashable) -> str:
        """Explain, for people, why the connection has its RDY."""
        nsqd = self.nsqds.get(key)
        if nsqd is None:
            return "not connected"
        if nsqd.rdy < nsqd.target:
            return f"{nsqd.reason}; waits for messages in flight to finish before it gets {nsqd.target}"
        return nsqd.reason

    def decide(self, now: float, in_flight: Mapping[Hashable, int]) -> list[tuple[Hashable, int]]:
        """Shrink windows that are too large, then grow others into the free room. Return the orders: send
        these connections this RDY.
        """
        nsqds = [nsqd for nsqd in self.nsqds.values() if not nsqd.closing]
        self.set_targets(nsqds, now, in_flight)
        windows = {nsqd.key: min(nsqd.rdy, nsqd.target) for nsqd in nsqds}
        used = sum(max(windows.get(nsqd.key, 0), in_flight.get(nsqd.key, 0)) for nsqd in self.nsqds.values())
        free = self.allowed - used
        if free < 0:
            for nsqd in sorted(nsqds, key=lambda nsqd: -nsqd.rdy):
                # Not below the messages in flight: that would free no room.
                freed = min(-free, max(0, windows[nsqd.key] - in_flight.get(nsqd.key, 0)))
                windows[nsqd.key] -= freed
                free += freed
        for nsqd in sorted(nsqds, key=lambda nsqd: (nsqd.rdy, nsqd.granted_at)):
            # A window no larger than the messages in flight takes no room and admits no new message.
            held = in_flight.get(nsqd.key, 0)
            before = max(windows[nsqd.key], held)
            windows[nsqd.key] = max(windows[nsqd.key], min(nsqd.target, before + max(0, free)))
            free -= max(windows[nsqd.key], held) - before
        self.below_target = free < 0 or any(windows[nsqd.key] < nsqd.target for nsqd in nsqds)
        changed = [nsqd for nsqd in nsqds if windows[nsqd.key] != nsqd.rdy]
        changed.sort(key=lambda nsqd: windows[nsqd.key] > nsqd.rdy)  # the shrinking ones first
        for nsqd in changed:
            if nsqd.rdy == 0:
                nsqd.granted_at = now
            nsqd.rdy = windows[nsqd.key]
        return [(nsqd.key, nsqd.rdy) for nsqd in changed]

    # Targets.

    def set_targets(self, nsqds: list[NsqdWindow], now: float, in_flight: Mapping[Hashable, int]) -> None:
        connections = max(len(nsqds), self.expected)
        stopped = self.why_stopped(now)
        if stopped:
            set_all(nsqds, 0, stopped)
        elif self.backoff.testing:
            level = f"backing off (level {self.backoff.level})"
            set_all(nsqds, 0, f"{level}: another connection tries one message")
            set_all(self._give_turns(nsqds, 1), 1, f"{level}: tries one message")
        elif connections > self.allowed:
            many = f"{connections} connections share a max_in_flight of {self.allowed}"
            set_all(nsqds, 0, f"{many}: waits for its turn")
            set_all(self._give_turns(nsqds, self.allowed), 1, f"{many}: has its turn")
        else:
            self._turns.clear()
            self._set_shares(nsqds, now, in_flight)
        for nsqd in nsqds:
            if nsqd.target > nsqd.max_rdy:
                nsqd.target = nsqd.max_rdy
                nsqd.reason += f", limited by the nsqd's max_rdy_count of {nsqd.max_rdy}"

    def why_stopped(self, now: float) -> str:
        if self.paused:
            return "paused"
        if self.max_in_flight <= 0:
            return "max_in_flight is 0"
        if self.backoff.until is not None:
            left = max(0.0, self.backoff.until - now)
            return f"backing off for {round(left, 3):g} s more (level {self.backoff.level})"
        return ""

    def _give_turns(self, nsqds: list[NsqdWindow], few: int) -> list[NsqdWindow]:
        """Let ``few`` connections have one message each, and return them; ``_rotate`` passes that on."""
        present = {nsqd.key for nsqd in nsqds}
        self._turns = [key for key in self._turns if key in present][:few]
        waiting = [nsqd for nsqd in nsqds if nsqd.key not in self._turns]
        while waiting and len(self._turns) < few:
            if self.backoff.testing:
                # Prefer the nsqd that sent last: one without messages would delay the test, and the consumer.
                # Read each time once: a read loop may change it meanwhile.
                sent_at = {nsqd.key: nsqd.has_sent_at for nsqd in waiting}
                latest = max(sent_at.values())
                chosen = self.pick([key for key in sent_at if sent_at[key] == latest])
            else:
                # Prefer a connection that has RDY already: moving it would cost two orders.
                chosen = self._next_of([nsqd for nsqd in waiting if nsqd.rdy] or waiting)
            waiting.remove(self.nsqds[chosen])
            self._turns.append(chosen)
        return [self.nsqds[key] for key in self._turns]

    def _set_shares(self, nsqds: list[NsqdWindow], now: float, in_flight: Mapping[Hashable, int]) -> None:
        """Give connections with messages equal shares, and idle ones one, to show whether they have some."""
        since = now - self.low_rdy_idle_timeout
        idle: list[NsqdWindow] = []
        busy: list[NsqdWindow] = []
        for nsqd in nsqds:
            is_idle = nsqd.last_message_at <= since and not in_flight.get(nsqd.key, 0)
            (idle if is_idle else busy).append(nsqd)
        if not busy:
            idle, busy = [], nsqds
        set_all(idle, 1, "idle: its share is with connections that have messages")
        missing = max(0, self.expected - len(nsqds))
        share, rest = divmod(self.allowed - len(idle), max(1, len(busy) + missing))
        for place, nsqd in enumerate(busy):
            nsqd.target = share + (place < rest)
            nsqd.reason = f"its share of max_in_flight {self.max_in_flight}"
            if self.handling.active:
                nsqd.reason = f"its share of {self.allowed}, which the handlers manage in time"
            if self.rate_limit == self.allowed < self.max_in_flight:
                nsqd.reason = f"its share of {self.allowed}, which the rate allows"

    def _rotate(self, now: float, in_flight: Mapping[Hashable, int]) -> None:
        """Pass RDY 1 from connections that have had it long enough, or are idle, to waiting ones."""
        # Not one whose messages are still here: with a turn it would keep the room that others wait for.
        waiting = [
            each
            for each in self.nsqds.values()
            if not (each.closing or each.key in self._turns or in_flight.get(each.key, 0))
        ]
        for place, key in enumerate(self._turns):
            nsqd = self.nsqds.get(key)
            # One without RDY has not begun: messages of others are still in flight.
            if waiting and nsqd is not None and nsqd.rdy:
                silent = now - max(nsqd.last_message_at, nsqd.granted_at) >= self.low_rdy_idle_timeout
                idle = silent and not in_flight.get(key, 0)
                if idle or now - nsqd.granted_at >= self.low_rdy_timeout:
                    self._turns[place] = chosen = self._next_of(waiting)
                    waiting.remove(self.nsqds[chosen])

    def _next_of(self, waiting: list[NsqdWindow]) -> Hashable:
        """Pick the connection that has waited longest. Chance decides among equals."""
        longest = min(nsqd.granted_at for nsqd in waiting)
        return self.pick([nsqd.key for nsqd in waiting if nsqd.granted_at == longest])


def set_all(nsqds: Iterable[NsqdWindow], target: int, reason: str) -> None:
    for nsqd in nsqds:
        nsqd.target = target
        nsqd.reason = reason
