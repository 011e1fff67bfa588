"""Which nsqds a consumer is to be connected to, and when each is dialled. Pure: facts in, decisions out.

An address is wanted because the user named it (direct) or because an nsqlookupd lists it; one that is both
counts once. A direct one is dialled again for ever. A listed one is dialled while it is listed, and while
nobody can say whether it is: a failed lookup takes nothing away.

Must not import anything that knows a socket, a thread or a clock: ``now`` and chance are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum

#: A connection that has lived at least so long, and longer than the longest pause due before the next dial,
#: was a good one: pauses begin anew. Whoever accepts and then hangs up never gets there.
STEADY = 10.0

#: Complete rounds in a row that must miss a connected nsqd before it is pruned.
ROUNDS_TO_PRUNE = 3

#: What one nsqlookupd says: the nsqds it lists, or None when it could not be asked.
Answer = frozenset[str] | None


class State(Enum):
    WAITING = "waiting"
    DIALING = "dialing"
    CONNECTED = "connected"
    LEAVING = "leaving"  # to be closed, and not closed yet


@dataclass
class _Place:
    """What is known of one address."""

    address: str
    direct: bool = False
    listed: bool = False
    state: State = State.WAITING
    dial_at: float = -math.inf  # while waiting
    failures: int = 0  # in a row; the pause grows with them
    error: str = ""
    ended: tuple[float, str] | None = None  # lived, and why not longer, when told before the dial's end
    missed: int = 0  # complete rounds in a row that did not list it
    missed_since: float = math.inf
    dismissed: bool = False  # removed or pruned: its connection is to be closed


@dataclass(frozen=True)
class Known:
    """One address as ``Directory.known`` tells it; ``dial_at`` while a dial is waited for."""

    address: str
    direct: bool
    listed: bool
    state: State
    dial_at: float | None
    error: str


@dataclass(frozen=True)
class Pauses:
    """Full jitter: anything from 0 to a ceiling that doubles from ``initial`` to ``longest``."""

    initial: float
    longest: float
    chance: Callable[[], float]

    def ceiling(self, failures: int) -> float:
        # Beyond 2**62 a doubling would only overflow.
        return min(self.longest, self.initial * 2.0 ** min(failures, 62))

    def draw(self, failures: int) -> float:
        return self.chance() * self.ceiling(failures)


class Directory:
    """``poll_interval`` is how often nsqlookupds are asked, at most; ``prune`` allows connected nsqds to be
    dropped that no complete round lists any more.
    """

    def __init__(self, pauses: Pauses, poll_interval: float, *, prune: bool = False) -> None:
        self._pauses = pauses
        self._poll_interval = poll_interval
        self._prune = prune
        self._places: dict[str, _Place] = {}
        self._polled = False  # whether anybody is asked at all
        self._certain = False  # the last round was complete: what it does not list is not there
        self._wants_round = False

    # Facts: what is wanted.

    def add(self, address: str, now: float) -> None:
        """The user names it."""
        place = self._place(address)
        if not place.direct:
            place.dial_at = min(place.dial_at, now)
        place.direct = True
        place.dismissed = False

    def remove(self, address: str) -> None:
        """The user takes it back. It stays while an nsqlookupd lists it."""
        place = self._places.get(address)
        if place is None or not place.direct:
            return
        place.direct = False
        if place.listed:
            return
        if place.state is State.WAITING:
            del self._places[address]
        else:
            place.dismissed = True

    def heard(self, addresses: Iterable[str]) -> None:
        """One nsqlookupd lists these: what is new among them is due at once, whatever others will say."""
        self._polled = True
        for address in addresses:
            place = self._place(address)
            place.listed = True
            place.dismissed = False
            place.missed = 0
            place.missed_since = math.inf

    def round_ended(self, answers: Collection[Answer], now: float) -> None:
        """An entry for each nsqlookupd: it has answered or failed. Without any, none is asked any more."""
        heard = [answer for answer in answers if answer is not None]
        listed = frozenset().union(*heard)
        self.heard(listed)
        self._polled = bool(answers)
        self._certain = len(heard) == len(answers)
        for place in list(self._places.values()):
            if place.address not in listed:
                self._not_listed(place, now)

    def _not_listed(self, place: _Place, now: float) -> None:
        if not self._certain:
            # Who failed may list it: whatever was counted so far was not in a row.
            place.missed = 0
            place.missed_since = math.inf
            return
        place.listed = False
        if self._polled:
            place.missed += 1
            place.missed_since = min(place.missed_since, now)
            place.dismissed = place.dismissed or self._is_stale(place, now)
        self._forget_if_gone(place, now)

    def _is_stale(self, place: _Place, now: float) -> bool:
        # Time counts as well, as lost connections make rounds follow each other in a second: an nsqlookupd
        # that has just started lists next to nothing until the nsqds have found it. Jitter can halve the two
        # intervals between three rounds.
        return (
            self._prune
            and place.state is State.CONNECTED
            and not place.direct
            and place.missed >= ROUNDS_TO_PRUNE
            and now - place.missed_since >= self._poll_interval
        )

    def _forget_if_gone(self, place: _Place, now: float) -> None:
        # Not at the first round that misses it: an nsqd that restarts is off the lists for some seconds, and
        # is to be found again sooner than by the next regular round.
        searched = not self._polled or now - place.missed_since >= self._poll_interval
        if place.state is State.WAITING and not place.direct and not place.listed and searched:
            del self._places[place.address]

    def _place(self, address: str) -> _Place:
        return self._places.setdefault(address, _Place(address))

    # Facts: what became of dials and connections.

    def dialed(self, address: str, error: str | None, now: float) -> None:
        """A dial that ``due`` ordered is over, with a connection or with an error."""
        place = self._places.get(address)
        if place is None or place.state is not State.DIALING:
            return
        ended, place.ended = place.ended, None
        if error is not None:
            self._wait(place, error, now)
            return
        place.state = State.CONNECTED
        place.error = ""
        if ended is not None:
            self.lost(address, ended[0], ended[1], now)

    def lost(self, address: str, lived: float, error: str, now: float) -> None:
        """A connection has ended, for whatever reason, after ``lived`` seconds."""
        place = self._places.get(address)
        if place is None:
            return
        if place.state is State.DIALING:
            # Its read loop was faster than the thread that dialled.
            place.ended = (lived, error)
        elif place.state is State.LEAVING:
            self._left(place, now)
        elif place.state is State.CONNECTED:
            if lived >= max(STEADY, self._pauses.ceiling(place.failures)):
                place.failures = 0
            self._wants_round = True
            self._wait(place, error, now)

    def _wait(self, place: _Place, error: str, now: float) -> None:
        place.state = State.WAITING
        place.error = error
        place.dial_at = now + self._pauses.draw(place.failures)
        place.failures += 1
        if place.dismissed:
            del self._places[place.address]  # by the user, while it was dialled
        else:
            self._forget_if_gone(place, now)

    def _left(self, place: _Place, now: float) -> None:
        """Closed as ordered; meanwhile it may be wanted again."""
        place.state = State.WAITING
        place.dial_at = now
        if place.dismissed or not (place.direct or place.listed):
            del self._places[place.address]

    # Decisions.

    def due(self, now: float) -> list[str]:
        """The addresses to dial now; each is reported to ``dialed`` before it can be due again."""
        addresses = []
        for place in self._places.values():
            if place.state is not State.WAITING or place.dial_at > now:
                continue
            if self._may_be_there(place):
                place.state = State.DIALING
                addresses.append(place.address)
            else:
                self._search(place, now)
        return addresses

    def _search(self, place: _Place, now: float) -> None:
        """Instead of dialing an nsqd that no nsqlookupd lists: ask again, less and less often."""
        self._wants_round = True
        ceiling = self._pauses.ceiling(place.failures)
        place.dial_at = now + ceiling - self._pauses.draw(place.failures) / 2.0  # never at once
        place.failures += 1

    def _may_be_there(self, place: _Place) -> bool:
        return place.direct or place.listed or not self._certain

    def next_due(self) -> float | None:
        """When ``due`` is to be asked again unless something happens before; None for not at all."""
        waiting = (place.dial_at for place in self._places.values() if place.state is State.WAITING)
        return min(waiting, default=None)

    def to_drop(self) -> list[str]:
        """The connections to close, each named once: removed ones, and pruned ones."""
        places = self._places.values()
        leaving = [place for place in places if place.dismissed and place.state is State.CONNECTED]
        for place in leaving:
            place.state = State.LEAVING
        return [place.address for place in leaving]

    def wants_round(self) -> bool:
        """Whether nsqlookupds should be asked before it is time; says so once."""
        wanted, self._wants_round = self._wants_round, False
        return wanted and self._polled

    def expected(self, now: float) -> int:
        """How many connections there are or will be shortly: those that are dialled, or due, for the first
        time. One that was refused or lost may stay away for hours, and nobody is to make room for it at each
        try: it gets its share when it is there.
        """
        return sum(
            place.state is State.CONNECTED or (not place.failures and self._is_dialled(place, now))
            for place in self._places.values()
            if not place.dismissed
        )

    def _is_dialled(self, place: _Place, now: float) -> bool:
        """Or is about to be."""
        due = place.state is State.WAITING and place.dial_at <= now and self._may_be_there(place)
        return due or place.state is State.DIALING

    def known(self) -> tuple[Known, ...]:
        """All addresses, sorted."""
        return tuple(
            Known(
                place.address,
                place.direct,
                place.listed,
                place.state,
                place.dial_at if place.state is State.WAITING else None,
                place.error,
            )
            for _, place in sorted(self._places.items())
        )
