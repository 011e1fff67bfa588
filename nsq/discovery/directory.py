"""Decide which nsqds to be connected to, when to dial each, and when to ask each nsqlookupd. Pure.

An nsqd is wanted because the user named it (direct) or because an nsqlookupd lists it; one that is both
counts once. A direct one is dialed again for ever. A listed one is dialed while it is listed, and while that
is uncertain: a failed lookup removes nothing.

Must not import anything that knows a socket, a thread or a clock: ``now`` and chance are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable
from copy import copy
from dataclasses import dataclass, field
from enum import Enum

#: A connection that has lived at least so long, and longer than the longest pause due before the next dial,
#: was a good one: pauses begin anew. An nsqd that accepts and then hangs up never gets there.
STEADY = 10.0

#: Complete rounds in a row that must miss a connected nsqd before it is pruned.
ROUNDS_TO_PRUNE = 3

#: A requested question is asked at least this many seconds after the one before.
SPACING = 1.0

#: What one nsqlookupd said: the nsqds it lists, or None when that is not known.
Answer = frozenset[str] | None


@dataclass(frozen=True)
class Pauses:
    """Random pauses below a ceiling that doubles from ``initial`` to ``longest``."""

    initial: float
    longest: float
    chance: Callable[[], float]

    def ceiling(self, failures: int) -> float:
        # Beyond 2**62 a doubling would only overflow.
        return min(self.longest, self.initial * 2.0 ** min(failures, 62))

    def draw(self, failures: int) -> float:
        """Full jitter: anything from 0 to the ceiling."""
        return self.chance() * self.ceiling(failures)

    def draw_late(self, failures: int) -> float:
        """Anything from half the ceiling to the ceiling: never at once."""
        return self.ceiling(failures) - self.draw(failures) / 2.0


# nsqds.


class Status(Enum):
    WAITING = "waiting"
    DIALING = "dialing"
    CONNECTED = "connected"
    LEAVING = "leaving"  # to be closed, and not closed yet


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
    lost: tuple[float, str] | None = None  # how long it lived, and why it ended, if before the dial returned
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
    """All nsqds that are known.

    ``poll_interval`` is how often nsqlookupds are asked. ``prune`` allows connected nsqds to be dropped that
    no complete round lists any more.
    """

    def __init__(self, pauses: Pauses, poll_interval: float, *, prune: bool = False) -> None:
        self._pauses = pauses
        self._poll_interval = poll_interval
        self._prune = prune
        self._nsqds: dict[str, Nsqd] = {}
        self._polled = False  # there are nsqlookupds to ask
        self._certain = False  # the last round was complete: an nsqd that it did not list is not there
        self._wants_round = False

    # Facts: what is wanted.

    def add(self, address: str, now: float) -> None:
        """The user names it."""
        nsqd = self._nsqd(address)
        if not nsqd.direct:
            nsqd.dial_at = min(nsqd.dial_at, now)
        nsqd.direct = True
        nsqd.unwanted = False

    def remove(self, address: str) -> None:
        """The user takes it back. It stays while an nsqlookupd lists it."""
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
        """One nsqlookupd lists these: new ones are due at once, before the others have answered."""
        self._polled = True
        for address in addresses:
            nsqd = self._nsqd(address)
            nsqd.listed = True
            nsqd.unwanted = False
            nsqd.missed = 0
            nsqd.missed_since = math.inf

    def round_ended(self, answers: Collection[Answer], now: float) -> None:
        """Each nsqlookupd has answered, or failed (None). No answers: there is no nsqlookupd any more."""
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
            # The nsqlookupd that failed may list it: the rounds counted so far were not in a row.
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
        # Time counts as well, as lost connections make rounds follow each other in a second: an nsqlookupd
        # that has just started lists next to nothing until the nsqds have found it. Jitter can halve the two
        # intervals between three rounds.
        return (
            self._prune
            and nsqd.status is Status.CONNECTED
            and not nsqd.direct
            and nsqd.missed >= ROUNDS_TO_PRUNE
            and now - nsqd.missed_since >= self._poll_interval
        )

    def _forget_if_gone(self, nsqd: Nsqd, now: float) -> None:
        # Not at the first round that misses it: an nsqd that restarts is off the lists for some seconds, and
        # must be found again sooner than by the next regular round.
        searched = not self._polled or now - nsqd.missed_since >= self._poll_interval
        if nsqd.status is Status.WAITING and not nsqd.direct and not nsqd.listed and searched:
            del self._nsqds[nsqd.address]

    def _nsqd(self, address: str) -> Nsqd:
        return self._nsqds.setdefault(address, Nsqd(address))

    # Facts: what became of dials and connections.

    def dialed(self, address: str, error: str | None, now: float) -> bool:
        """A dial that ``due`` ordered is over, with a connection or with an error; return whether that is an
        error, and not the last one once more.
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
        """A connection has ended, for whatever reason, after ``lived`` seconds."""
        nsqd = self._nsqds.get(address)
        if nsqd is None:
            return
        if nsqd.status is Status.DIALING:
            # The connection's read loop was faster than the thread that dialed.
            nsqd.lost = (lived, error)
        elif nsqd.status is Status.LEAVING:
            # Closed as ordered; meanwhile it may be wanted again.
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
            del self._nsqds[nsqd.address]  # removed by the user while it was dialed
        else:
            self._forget_if_gone(nsqd, now)

    # Decisions.

    def due(self, now: float) -> list[str]:
        """The addresses to dial now. ``dialed`` must be told of each before it can be due again."""
        addresses = []
        for nsqd in self._nsqds.values():
            if nsqd.status is not Status.WAITING or nsqd.dial_at > now:
                continue
            if self._may_be_there(nsqd):
                nsqd.status = Status.DIALING
                addresses.append(nsqd.address)
            else:
                # No nsqlookupd lists it: ask them again instead of dialing, less and less often.
                self._wants_round = True
                nsqd.dial_at = now + self._pauses.draw_late(nsqd.failures)
                nsqd.failures += 1
        return addresses

    def _may_be_there(self, nsqd: Nsqd) -> bool:
        return nsqd.direct or nsqd.listed or not self._certain

    def next_due(self) -> float:
        """When ``due`` must be called again unless something happens before."""
        waiting = (nsqd.dial_at for nsqd in self._nsqds.values() if nsqd.status is Status.WAITING)
        return min(waiting, default=math.inf)

    def to_drop(self) -> list[str]:
        """The connections to close, each named once: removed ones and pruned ones."""
        nsqds = self._nsqds.values()
        leaving = [nsqd for nsqd in nsqds if nsqd.unwanted and nsqd.status is Status.CONNECTED]
        for nsqd in leaving:
            nsqd.status = Status.LEAVING
        return [nsqd.address for nsqd in leaving]

    def wants_round(self) -> bool:
        """Whether the nsqlookupds should be asked before it is time; says so once."""
        wanted, self._wants_round = self._wants_round, False
        return wanted and self._polled

    def expected(self, now: float) -> int:
        """Count the connections that are there or will be shortly: dialed, or due, for the first time.

        An nsqd that was refused or lost may stay away for hours: it gets its share when it is there.
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
        """Copies of all, sorted by address."""
        return tuple(copy(nsqd) for _, nsqd in sorted(self._nsqds.items()))


# nsqlookupds.


@dataclass(eq=False)
class Lookupd:
    """One nsqlookupd: what it said, and when it is asked. One that is removed and added again is another."""

    text: str = field(repr=False)  # its address as the user gave it; the query may hold a secret
    address: str  # without the query
    answered_at: float | None = None
    listed: frozenset[str] = frozenset()  # by its last answer
    failed_at: float | None = None  # unless it has answered since
    error: str = ""
    failures: int = 0  # in a row
    ask_at: float = -math.inf
    asked_at: float = -math.inf
    busy: bool = False  # a question is under way
    deadline: float = math.inf  # of the question; it has failed by then
    heard: bool = False  # it has answered or failed in this round
    answer: Answer = None  # the newest one of this round

    def words(self, now: float) -> str:
        told = []
        if self.failed_at is not None:
            told.append(f"failed {now - self.failed_at:.1f} s ago: {self.error}")
        if self.answered_at is not None:
            told.append(f"answered {now - self.answered_at:.1f} s ago, listing {len(self.listed)}")
        return f"nsqlookupd {self.address}: " + ("; before that, ".join(told) or "has not answered yet")


class LookupSchedule:
    """When each nsqlookupd is asked, and when all of them have been heard.

    Each is asked at its own pace, so that one which hangs delays no other: once per ``interval``, of which
    chance decides the share ``jitter``; sooner after a failure (``retries``), and when it is requested. A
    round ends when each has answered or failed since the round before.
    """

    def __init__(self, interval: float, jitter: float, timeout: float, retries: Pauses) -> None:
        self.lookupds: dict[Hashable, Lookupd] = {}
        """Those that are asked. A new one is due at once."""
        self._interval = interval
        self._jitter = jitter
        self._timeout = timeout
        self._retries = retries

    def request(self, now: float) -> None:
        """Ask each before it is time, but not more than once in a second. Several requests are one."""
        for lookupd in self.lookupds.values():
            lookupd.ask_at = min(lookupd.ask_at, max(now, lookupd.asked_at + SPACING))

    def due(self, now: float) -> list[Lookupd]:
        """The nsqlookupds to ask now; ``answered`` or ``failed`` must be told of each."""
        due = [each for each in self.lookupds.values() if not each.busy and each.ask_at <= now]
        for lookupd in due:
            lookupd.busy = True
            lookupd.asked_at = now
            lookupd.deadline = now + self._timeout
            lookupd.ask_at = now + self._interval * (1.0 + self._jitter * (self._retries.chance() - 0.5))
        return due

    def overdue(self, now: float) -> list[Lookupd]:
        """The nsqlookupds whose time is up: ``failed`` must be told of each, and that it is still busy. It is
        not asked again until it answers.
        """
        return [each for each in self.lookupds.values() if each.deadline <= now]

    def answered(self, lookupd: Lookupd, listed: frozenset[str], answer: Answer, now: float) -> None:
        """A late answer is as good as any. ``answer`` is what counts of the nsqds that it listed."""
        if lookupd.deadline == math.inf:  # late: there is no need to ask again soon
            lookupd.ask_at = max(lookupd.ask_at, lookupd.asked_at + self._interval)
        lookupd.busy = False
        lookupd.deadline = math.inf
        lookupd.answered_at, lookupd.listed = now, listed
        lookupd.failed_at, lookupd.error, lookupd.failures = None, "", 0
        lookupd.heard, lookupd.answer = True, answer

    def failed(self, lookupd: Lookupd, error: str, now: float, *, still_busy: bool = False) -> bool:
        """Return whether this is news: not the failure before it once more."""
        lookupd.busy = still_busy
        if lookupd.deadline == math.inf:
            return False  # it was overdue
        news = error != lookupd.error
        lookupd.deadline = math.inf
        lookupd.ask_at = now + self._retries.draw_late(lookupd.failures)
        lookupd.failed_at, lookupd.error = now, error
        lookupd.failures += 1
        lookupd.heard, lookupd.answer = True, None
        return news

    def next_due(self) -> float:
        """When ``due`` or ``overdue`` must be called again unless something happens before."""
        lookupds = self.lookupds.values()
        return min((each.deadline if each.busy else each.ask_at for each in lookupds), default=math.inf)

    def round_over(self) -> bool:
        """Whether each has been heard, with its newest ``answer``; says so once per round."""
        lookupds = self.lookupds.values()
        over = bool(lookupds) and all(each.heard for each in lookupds)
        if over:
            for lookupd in lookupds:
                lookupd.heard = False
        return over
