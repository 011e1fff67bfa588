"""Decides which nsqds a client wants, and when to ask each nsqlookupd. Pure.

An nsqd is wanted because the user named it (given) or because an nsqlookupd lists it; if both, it counts
once. A given nsqd is always dialed. Another is dialed while it is listed, and while that is uncertain: a
failed lookup removes no nsqd. If no nsqlookupd lists it any more, these are asked again instead of dialing,
for a while: it may be restarting.

Must not import anything that knows a socket, a thread or a clock: ``now`` and chance are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from nsq.connection.backoff import Pauses

#: Complete rounds in a row that must miss an nsqd before it is pruned.
ROUNDS_TO_PRUNE = 3
#: A requested lookup begins at least this many seconds after the one before.
SPACING = 1.0
#: Failures in a row after which an nsqlookupd is asked in regular rounds alone.
FAILURES = 3
#: While no nsqlookupd lists an nsqd, the longest pause before the second question; it doubles with each.
SEARCH_PAUSE = 2.0

#: Which NSQ a cluster runs: the original one, or the one with partitions.
Kind = Literal["original", "partitioned"]

#: One nsqlookupd's answer: the nsqds it lists, or None when that is not known.
Answer = frozenset[str] | None


# nsqds.


@dataclass
class KnownNsqd:
    """The facts about one nsqd."""

    given: bool = False
    listed: bool = False
    missed: int = 0  # complete rounds in a row that did not list it
    missed_since: float = math.inf


class Directory:
    """All nsqds that are wanted, or were until a moment ago. With ``prune``, those that complete rounds no
    longer list are dropped, connected or not.
    """

    def __init__(self, poll_interval: float, *, prune: bool = False) -> None:
        self.nsqds: dict[str, KnownNsqd] = {}
        self._poll_interval, self._prune = poll_interval, prune
        self._certain = False  # the last round was complete: an nsqd that it did not list is gone
        self._dropped: list[str] = []

    def give(self, addresses: Collection[str]) -> None:
        """Note all nsqds that the user names. One that is no longer named stays while it is listed."""
        for address in sorted(addresses):
            self.nsqds.setdefault(address, KnownNsqd()).given = True
        for address, nsqd in list(self.nsqds.items()):
            if nsqd.given and address not in addresses:
                nsqd.given = False
                if not nsqd.listed:
                    self._drop(address)

    def heard(self, addresses: Iterable[str]) -> None:
        """Note the nsqds that one nsqlookupd lists: new ones are wanted before the others have answered."""
        for address in addresses:
            nsqd = self.nsqds.setdefault(address, KnownNsqd())
            nsqd.listed, nsqd.missed, nsqd.missed_since = True, 0, math.inf

    def round_ended(self, answers: Collection[Answer], now: float) -> None:
        """Note a round: each nsqlookupd has answered or failed (None). Empty: the last one was removed."""
        known = [answer for answer in answers if answer is not None]
        listed = frozenset().union(*known)
        self.heard(listed)
        self._certain = len(known) == len(answers)
        for address, nsqd in [each for each in self.nsqds.items() if each[0] not in listed]:
            if not self._certain:  # the nsqlookupd that failed may list it: count the rounds in a row anew
                nsqd.missed, nsqd.missed_since = 0, math.inf
                continue
            nsqd.listed = False
            nsqd.missed += 1
            nsqd.missed_since = min(nsqd.missed_since, now)
            if nsqd.given:
                continue
            # Not at the first round that misses it: a restarting nsqd is unlisted for some seconds, and we
            # must find it again before the next regular round.
            searched = now - nsqd.missed_since >= self._poll_interval
            if not answers or (searched and not self._prune):
                del self.nsqds[address]
            elif searched and nsqd.missed >= ROUNDS_TO_PRUNE:
                # Time as well as rounds: lost connections make rounds follow each other within a second, and
                # an nsqlookupd that has just started lists few nsqds until these have found it. One interval,
                # as jitter can halve the two intervals between three rounds.
                self._drop(address)

    def _drop(self, address: str) -> None:
        del self.nsqds[address]
        self._dropped.append(address)

    # Decisions.

    def may_be_there(self, nsqd: KnownNsqd) -> bool:
        """Whether to dial it. If not, no nsqlookupd lists it."""
        return nsqd.given or nsqd.listed or not self._certain

    def to_drop(self) -> list[str]:
        """Return the nsqds to disconnect from, removed and pruned ones, each only once."""
        dropped, self._dropped = self._dropped, []
        return dropped


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
        self.lookupds: dict[Hashable, Lookupd] = {}  # a new one is due at once
        self._interval, self._jitter, self._timeout, self._retries = interval, jitter, timeout, retries
        self._searches = Pauses(min(SEARCH_PAUSE, interval), interval, retries.chance)

    def request(self, now: float, spacing: float = SPACING) -> None:
        """Ask each ahead of time, but at most once in ``spacing`` seconds. Several requests count as one.

        One that keeps failing is left to its own pauses while another one answers.
        """
        lookupds = list(self.lookupds.values())
        for lookupd in [each for each in lookupds if each.failures < FAILURES] or lookupds:
            lookupd.ask_at = min(lookupd.ask_at, max(now, lookupd.asked_at + spacing))

    def due(self, now: float) -> list[Lookupd]:
        """Return the nsqlookupds to ask now; report each result to ``answered`` or ``failed``."""
        due = [each for each in self.lookupds.values() if not each.busy and each.ask_at <= now]
        for lookupd in due:
            lookupd.busy, lookupd.asked_at, lookupd.deadline = True, now, now + self._timeout
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
        lookupd.busy, lookupd.deadline = False, math.inf
        lookupd.answered_at, lookupd.listed = now, listed
        lookupd.empty = 0 if listed else lookupd.empty + 1
        if not any(each.listed for each in self.lookupds.values()):
            # The first message may be about to create the topic. The longer it is absent, the less likely.
            lookupd.ask_at = min(lookupd.ask_at, now + self._searches.draw_late(lookupd.empty - 1))
        lookupd.failed_at, lookupd.error, lookupd.failures = None, "", 0
        lookupd.heard, lookupd.answer = True, answer

    def ask_again(self, lookupd: Lookupd) -> None:
        """Note an answer that says nothing about nsqds: ask at once, in another way."""
        lookupd.busy, lookupd.deadline, lookupd.ask_at = False, math.inf, -math.inf

    def failed(self, lookupd: Lookupd, error: str, now: float, *, still_busy: bool = False) -> bool:
        """Note a failure; return whether it differs from the failure before."""
        lookupd.busy = still_busy
        if lookupd.deadline == math.inf:
            return False  # its deadline has passed: noted already
        news = error != lookupd.error
        lookupd.deadline, lookupd.ask_at = math.inf, now + self._retries.draw_late(lookupd.failures)
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
        if not lookupds or not all(each.heard for each in lookupds):
            return False
        for lookupd in lookupds:
            lookupd.heard = False
        return True
