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
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

#: A connection that has lived at least so long, and longer than the longest pause due before the next dial,
#: was a good one: pauses begin anew. An nsqd that accepts and then hangs up never gets there.
STEADY = 10.0

#: Complete rounds in a row that must miss a connected nsqd before it is pruned.
ROUNDS_TO_PRUNE = 3

#: A requested question is asked at least this many seconds after the one before.
SPACING = 1.0

#: What one nsqlookupd said: the nsqds it lists, or None when that is not known.
Answer = frozenset[str] | None

K = TypeVar("K", bound=Hashable)


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

    def dialed(self, address: str, error: str | None, now: float) -> None:
        """A dial that ``due`` ordered is over, with a connection or with an error."""
        nsqd = self._nsqds.get(address)
        if nsqd is None or nsqd.status is not Status.DIALING:
            return
        lost, nsqd.lost = nsqd.lost, None
        if error is not None:
            self._pause(nsqd, error, now)
            return
        nsqd.status = Status.CONNECTED
        nsqd.error = ""
        if lost is not None:
            self.lost(address, *lost, now)

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


@dataclass
class _Lookup:
    """When one nsqlookupd is asked."""

    ask_at: float
    asked_at: float = -math.inf
    busy: bool = False  # a question is under way
    deadline: float = math.inf  # of the question; it has failed by then
    failures: int = 0  # in a row


class LookupSchedule(Generic[K]):
    """When each nsqlookupd is asked, and when all of them have been heard. K stands for an nsqlookupd.

    Each is asked at its own pace, so that one which hangs delays no other: once per ``interval``, of which
    chance decides the share ``jitter``; sooner after a failure (``retries``), and when it is requested. A
    round ends when each has answered or failed since the round before.
    """

    def __init__(self, interval: float, jitter: float, timeout: float, retries: Pauses) -> None:
        self._interval = interval
        self._jitter = jitter
        self._timeout = timeout
        self._retries = retries
        self._lookups: dict[K, _Lookup] = {}
        self._answers: dict[K, Answer] = {}  # of this round; the newest one of each

    def add(self, lookupd: K, now: float) -> None:
        """It is due at once."""
        self._lookups.setdefault(lookupd, _Lookup(now))

    def remove(self, lookupd: K) -> None:
        """Remove a lookupd: its answers no longer count."""
        del self._lookups[lookupd]
        self._answers.pop(lookupd, None)

    def request(self, now: float) -> None:
        """Ask each before it is time, but not more than once in a second. Several requests are one."""
        for lookup in self._lookups.values():
            lookup.ask_at = min(lookup.ask_at, max(now, lookup.asked_at + SPACING))

    def due(self, now: float) -> list[K]:
        """The nsqlookupds to ask now; ``answered`` or ``failed`` must be told of each."""
        due = [key for key, lookup in self._lookups.items() if not lookup.busy and lookup.ask_at <= now]
        for key in due:
            lookup = self._lookups[key]
            lookup.busy = True
            lookup.asked_at = now
            lookup.deadline = now + self._timeout
            lookup.ask_at = now + self._interval * (1.0 + self._jitter * (self._retries.chance() - 0.5))
        return due

    def overdue(self, now: float) -> list[K]:
        """The nsqlookupds whose time is up. They have failed, and are not asked again until they answer."""
        overdue = [key for key, lookup in self._lookups.items() if lookup.deadline <= now]
        for key in overdue:
            self._fail(key, now)
        return overdue

    def answered(self, lookupd: K, answer: Answer) -> None:
        """A late answer is as good as any."""
        lookup = self._lookups[lookupd]
        if lookup.deadline == math.inf:  # late: there is no need to ask again soon
            lookup.ask_at = max(lookup.ask_at, lookup.asked_at + self._interval)
        lookup.busy = False
        lookup.deadline = math.inf
        lookup.failures = 0
        self._answers[lookupd] = answer

    def failed(self, lookupd: K, now: float) -> bool:
        """Return whether this is news: an overdue one has failed before."""
        lookup = self._lookups[lookupd]
        lookup.busy = False
        if lookup.deadline == math.inf:
            return False
        self._fail(lookupd, now)
        return True

    def _fail(self, lookupd: K, now: float) -> None:
        lookup = self._lookups[lookupd]
        lookup.deadline = math.inf
        lookup.ask_at = now + self._retries.draw_late(lookup.failures)
        lookup.failures += 1
        self._answers[lookupd] = None

    def next_due(self) -> float:
        """When ``due`` or ``overdue`` must be called again unless something happens before."""
        lookups = self._lookups.values()
        return min((each.deadline if each.busy else each.ask_at for each in lookups), default=math.inf)

    def end_round(self) -> dict[K, Answer] | None:
        """The newest answer of each, None for one that failed, once per round; None before its end."""
        if not self._lookups or self._answers.keys() != self._lookups.keys():
            return None
        answers, self._answers = self._answers, {}
        return answers
