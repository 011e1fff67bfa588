"""Decides which nsqds to connect to, when to dial each, and when to ask each nsqlookupd. Pure.

An nsqd is wanted because the user named it (direct) or because an nsqlookupd lists it; if both, it counts
once. A direct nsqd is dialed again for ever. A listed nsqd is dialed while it is listed, and while that is
uncertain: a failed lookup removes no nsqd.

Must not import anything that knows a socket, a thread or a clock: ``now`` and chance are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable
from copy import copy
from dataclasses import dataclass, field
from enum import Enum

#: Seconds. If a connection lived at least so long, and longer than the longest pause before the next dial, it
#: was a good one: pauses begin anew. An nsqd that accepts and then hangs up never gets there.
STEADY = 10.0

#: Complete rounds in a row that must miss a connected nsqd before it is pruned.
ROUNDS_TO_PRUNE = 3

#: A requested lookup begins at least this many seconds after the one before.
SPACING = 1.0

#: While no nsqlookupd lists an nsqd, the longest pause before the second question; it doubles with each.
SEARCH_PAUSE = 2.0

#: One nsqlookupd's answer: the nsqds it lists, or None when that is not known.
Answer = frozenset[str] | None


@dataclass(frozen=True)
class Pauses:
    """Random pauses below a ceiling that doubles from ``initial`` to ``longest``."""

    initial: float
    longest: float
    chance: Callable[[], float]

    def ceiling(self, failures: int) -> float:
        # Doubling beyond 2**62 would only overflow.
        return min(self.longest, self.initial * 2.0 ** min(failures, 62))

    def draw(self, failures: int) -> float:
        """Return a pause with full jitter: from 0 to the ceiling."""
        return self.chance() * self.ceiling(failures)

    def draw_late(self, failures: int) -> float:
        """Return a pause from half the ceiling to the ceiling, never zero."""
        return self.ceiling(failures) - self.draw(failures) / 2.0


# nsqds.


class Status(Enum):
    WAITING = "waiting"
    DIALING = "dialing"
    CONNECTED = "connected"
    LEAVING = "leaving"  # ordered to close, and not closed yet


@dataclass
class Nsqd:
    """The state of one nsqd."""

    address: str
    direct: bool = False
    listed: bool = False
    status: Status = Status.WAITING
    dial_at: float = -math.inf  # while waiting
    failures: int = 0  # in a row; the pause grows with them
    error: str = ""
    lost: tuple[float, str] | None = None  # lifetime and error, if it ended before the dial returned
    missed: int = 0  # complete rounds in a row that did not list it
    missed_since: float = math.inf
    unwanted: bool = False  # removed or pruned: its connection must be closed

    def words(self, now: float) -> str:
        origins = ["given"] * self.direct + ["listed"] * self.listed
        status = self.status.value
        if self.status is Status.WAITING:
            status = f"next dial in {max(0.0, self.dial_at - now):.1f} s"
        error = f"; last error: {self.error}" if self.error else ""
        return f"nsqd {self.address} ({' and '.join(origins) or 'no longer listed'}): {status}{error}"


class Directory:
    """All known nsqds.

    ``poll_interval`` is the time between two questions to an nsqlookupd. With ``prune``, connected nsqds that
    complete rounds no longer list are dropped.
    """

    def __init__(self, pauses: Pauses, poll_interval: float, *, prune: bool = False) -> None:
        self._pauses = pauses
        self._poll_interval = poll_interval
        self._prune = prune
        self._nsqds: dict[str, Nsqd] = {}
        self._polled = False  # there are nsqlookupds to ask
        self._certain = False  # the last round was complete: an nsqd that it did not list is gone
        self._wants_round = False

    # Facts: the wanted nsqds.

    def add(self, address: str, now: float) -> None:
        """Add an nsqd that the user names."""
        nsqd = self._nsqd(address)
        if not nsqd.direct:
            nsqd.dial_at = min(nsqd.dial_at, now)
        nsqd.direct = True
        nsqd.unwanted = False

    def remove(self, address: str) -> None:
        """Remove an nsqd that the user named. It stays while an nsqlookupd lists it."""
        nsqd = self._nsqds.get(address)
        if nsqd is None or not nsqd.direct:
            return
        nsqd.direct = False
        if nsqd.listed:
            return
        if nsqd.status is Status.WAITING:
            del self._nsqds[address]
        else:
            nsqd.unwanted = True

    def heard(self, addresses: Iterable[str]) -> None:
        """Note the nsqds that one nsqlookupd lists: dial new ones before other nsqlookupds have answered."""
        self._polled = True
        for address in addresses:
            nsqd = self._nsqd(address)
            nsqd.listed = True
            nsqd.unwanted = False
            nsqd.missed = 0
            nsqd.missed_since = math.inf

    def round_ended(self, answers: Collection[Answer], now: float) -> None:
        """Note a round: each nsqlookupd has answered or failed (None). Empty: the last one was removed."""
        known = [answer for answer in answers if answer is not None]
        listed = frozenset().union(*known)
        self.heard(listed)
        self._polled = bool(answers)
        self._certain = len(known) == len(answers)
        for nsqd in list(self._nsqds.values()):
            if nsqd.address not in listed:
                self._not_listed(nsqd, now)

    def _not_listed(self, nsqd: Nsqd, now: float) -> None:
        if not self._certain:
            # The nsqlookupd that failed may list it: count the rounds in a row anew.
            nsqd.missed = 0
            nsqd.missed_since = math.inf
            return
        nsqd.listed = False
        if self._polled:
            nsqd.missed += 1
            nsqd.missed_since = min(nsqd.missed_since, now)
            nsqd.unwanted = nsqd.unwanted or self._is_stale(nsqd, now)
        self._forget_if_gone(nsqd, now)

    def _is_stale(self, nsqd: Nsqd, now: float) -> bool:
        # Require time as well as rounds: lost connections make rounds follow each other within a second, and
        # an nsqlookupd that has just started lists few nsqds until these have found it. One interval, as
        # jitter can halve the two intervals between three rounds.
        return (
            self._prune
            and nsqd.status is Status.CONNECTED
            and not nsqd.direct
            and nsqd.missed >= ROUNDS_TO_PRUNE
            and now - nsqd.missed_since >= self._poll_interval
        )

    def _forget_if_gone(self, nsqd: Nsqd, now: float) -> None:
        # Not at the first round that misses it: a restarting nsqd is unlisted for some seconds, and we must
        # find it again before the next regular round.
        searched = not self._polled or now - nsqd.missed_since >= self._poll_interval
        if nsqd.status is Status.WAITING and not nsqd.direct and not nsqd.listed and searched:
            del self._nsqds[nsqd.address]

    def _nsqd(self, address: str) -> Nsqd:
        return self._nsqds.setdefault(address, Nsqd(address))

    # Facts: the ends of dials and connections.

    def dialed(self, address: str, error: str | None, now: float) -> bool:
        """Note the end of a dial that ``due`` ordered: a connection, or an error. Return whether this is an
        error that differs from the one before.
        """
        nsqd = self._nsqds.get(address)
        if nsqd is None or nsqd.status is not Status.DIALING:
            return False
        lost, nsqd.lost = nsqd.lost, None
        if error is not None:
            news = error != nsqd.error
            self._pause(nsqd, error, now)
            return news
        nsqd.status = Status.CONNECTED
        nsqd.error = ""
        if lost is not None:
            self.lost(address, *lost, now)
        return False

    def lost(self, address: str, lived: float, error: str, now: float) -> None:
        """Note that a connection has ended, for any reason, after ``lived`` seconds."""
        nsqd = self._nsqds.get(address)
        if nsqd is None:
            return
        if nsqd.status is Status.DIALING:
            # The connection's read loop has reported before the thread that dialed.
            nsqd.lost = (lived, error)
        elif nsqd.status is Status.LEAVING:
            # Closed as ordered; the nsqd may be wanted again meanwhile.
            nsqd.status = Status.WAITING
            nsqd.dial_at = now
            if nsqd.unwanted or not (nsqd.direct or nsqd.listed):
                del self._nsqds[address]
        elif nsqd.status is Status.CONNECTED:
            if lived >= max(STEADY, self._pauses.ceiling(nsqd.failures)):
                nsqd.failures = 0
            self._wants_round = True
            self._pause(nsqd, error, now)

    def _pause(self, nsqd: Nsqd, error: str, now: float) -> None:
        nsqd.status = Status.WAITING
        nsqd.error = error
        nsqd.dial_at = now + self._pauses.draw(nsqd.failures)
        nsqd.failures += 1
        if nsqd.unwanted:
            del self._nsqds[nsqd.address]  # the user removed it during the dial
        else:
            self._forget_if_gone(nsqd, now)

    # Decisions.

    def due(self, now: float) -> list[str]:
        """Return the addresses to dial now. Each must be reported to ``dialed`` before it is due again."""
        addresses = []
        for nsqd in self._nsqds.values():
            if nsqd.status is not Status.WAITING or nsqd.dial_at > now:
                continue
            if self._may_be_there(nsqd):
                nsqd.status = Status.DIALING
                addresses.append(nsqd.address)
            else:
                # No nsqlookupd lists it: instead of dialing ask them again, less and less often.
                self._wants_round = True
                nsqd.dial_at = now + self._pauses.draw_late(nsqd.failures)
                nsqd.failures += 1
        return addresses

    def _may_be_there(self, nsqd: Nsqd) -> bool:
        return nsqd.direct or nsqd.listed or not self._certain

    def next_due(self) -> float:
        """Return when to call ``due`` again unless an event comes before."""
        waiting = (nsqd.dial_at for nsqd in self._nsqds.values() if nsqd.status is Status.WAITING)
        return min(waiting, default=math.inf)

    def to_drop(self) -> list[str]:
        """Return the connections to close, removed and pruned ones, each only once."""
        nsqds = self._nsqds.values()
        leaving = [nsqd for nsqd in nsqds if nsqd.unwanted and nsqd.status is Status.CONNECTED]
        for nsqd in leaving:
            nsqd.status = Status.LEAVING
        return [nsqd.address for nsqd in leaving]

    def wants_round(self) -> bool:
        """Whether to ask the nsqlookupds ahead of time; true once per reason."""
        wanted, self._wants_round = self._wants_round, False
        return wanted and self._polled

    def expected(self, now: float) -> int:
        """Count the connections, including those whose first dial is under way or due.

        An nsqd that refused or was lost may stay away for hours: it gets its share when it is back.
        """
        return sum(
            nsqd.status is Status.CONNECTED or (not nsqd.failures and self._is_dialed(nsqd, now))
            for nsqd in self._nsqds.values()
            if not nsqd.unwanted
        )

    def _is_dialed(self, nsqd: Nsqd, now: float) -> bool:
        """Whether it is being dialed or about to be."""
        due = nsqd.status is Status.WAITING and nsqd.dial_at <= now and self._may_be_there(nsqd)
        return due or nsqd.status is Status.DIALING

    def nsqds(self) -> tuple[Nsqd, ...]:
        """Return copies of all nsqds, sorted by address."""
        return tuple(copy(nsqd) for _, nsqd in sorted(self._nsqds.items()))


# nsqlookupds.


@dataclass(eq=False)
class Lookupd:
    """One nsqlookupd: its answers, and when to ask it. Removed and added again, it is a new object."""

    text: str = field(repr=False)  # its address as the user gave it; the query may hold a secret
    address: str  # without the query
    answered_at: float | None = None
    listed: frozenset[str] = frozenset()  # by its last answer
    empty: int = 0  # answers in a row that listed none
    failed_at: float | None = None  # None once it has answered again
    error: str = ""
    failures: int = 0  # in a row
    ask_at: float = -math.inf
    asked_at: float = -math.inf
    busy: bool = False  # a question is under way
    deadline: float = math.inf  # the question counts as failed after it
    heard: bool = False  # it has answered or failed in this round
    answer: Answer = None  # the newest one of this round

    def words(self, now: float) -> str:
        parts = []
        if self.failed_at is not None:
            parts.append(f"failed {now - self.failed_at:.1f} s ago: {self.error}")
        if self.answered_at is not None:
            parts.append(f"answered {now - self.answered_at:.1f} s ago, listing {len(self.listed)}")
        return f"nsqlookupd {self.address}: " + ("; before that, ".join(parts) or "has not answered yet")


class LookupSchedule:
    """Decides when to ask each nsqlookupd, and when a round of answers is complete.

    Each is asked at its own pace, so that one that hangs delays no other: once per ``interval``, of which a
    share ``jitter`` is random; sooner after a failure (``retries``), on request, and at first while none of
    them lists an nsqd. A round ends when each has answered or failed since the round before.
    """

    def __init__(self, interval: float, jitter: float, timeout: float, retries: Pauses) -> None:
        self.lookupds: dict[Hashable, Lookupd] = {}
        """The nsqlookupds to ask. A new one is due at once."""
        self._interval = interval
        self._jitter = jitter
        self._timeout = timeout
        self._retries = retries
        self._searches = Pauses(min(SEARCH_PAUSE, interval), interval, retries.chance)

    def request(self, now: float, spacing: float = SPACING) -> None:
        """Ask each ahead of time, but at most once in ``spacing`` seconds. Several requests count as one."""
        for lookupd in self.lookupds.values():
            lookupd.ask_at = min(lookupd.ask_at, max(now, lookupd.asked_at + spacing))

    def due(self, now: float) -> list[Lookupd]:
        """Return the nsqlookupds to ask now; report each result to ``answered`` or ``failed``."""
        due = [each for each in self.lookupds.values() if not each.busy and each.ask_at <= now]
        for lookupd in due:
            lookupd.busy = True
            lookupd.asked_at = now
            lookupd.deadline = now + self._timeout
            lookupd.ask_at = now + self._interval * (1.0 + self._jitter * (self._retries.chance() - 0.5))
        return due

    def overdue(self, now: float) -> list[Lookupd]:
        """Return the nsqlookupds past their deadline: report each to ``failed`` as still busy. It is not
        asked again until it answers.
        """
        return [each for each in self.lookupds.values() if each.deadline <= now]

    def answered(self, lookupd: Lookupd, listed: frozenset[str], answer: Answer, now: float) -> None:
        """Note an answer, even a late one. ``answer`` holds those of the listed nsqds that count."""
        if lookupd.deadline == math.inf:  # late: there is no need to ask again soon
            lookupd.ask_at = max(lookupd.ask_at, lookupd.asked_at + self._interval)
        lookupd.busy = False
        lookupd.deadline = math.inf
        lookupd.answered_at, lookupd.listed = now, listed
        lookupd.empty = 0 if listed else lookupd.empty + 1
        if not any(each.listed for each in self.lookupds.values()):
            # The first message may be about to create the topic. The longer it is absent, the less likely.
            lookupd.ask_at = min(lookupd.ask_at, now + self._searches.draw_late(lookupd.empty - 1))
        lookupd.failed_at, lookupd.error, lookupd.failures = None, "", 0
        lookupd.heard, lookupd.answer = True, answer

    def failed(self, lookupd: Lookupd, error: str, now: float, *, still_busy: bool = False) -> bool:
        """Note a failure; return whether it differs from the failure before."""
        lookupd.busy = still_busy
        if lookupd.deadline == math.inf:
            return False  # its deadline has passed: noted already
        news = error != lookupd.error
        lookupd.deadline = math.inf
        lookupd.ask_at = now + self._retries.draw_late(lookupd.failures)
        lookupd.failed_at, lookupd.error = now, error
        lookupd.failures += 1
        lookupd.heard, lookupd.answer = True, None
        return news

    def next_due(self) -> float:
        """Return when to call ``due`` or ``overdue`` again unless an event comes before."""
        lookupds = self.lookupds.values()
        return min((each.deadline if each.busy else each.ask_at for each in lookupds), default=math.inf)

    def round_over(self) -> bool:
        """Whether every nsqlookupd has answered or failed in this round; true once per round."""
        lookupds = self.lookupds.values()
        over = bool(lookupds) and all(each.heard for each in lookupds)
        if over:
            for lookupd in lookupds:
                lookupd.heard = False
        return over
