"""A random schedule of faults: the same seed always gives the same schedule. Pure.

for strike in Schedule(seed=7):
    sleep(strike.after)
    network.strike(strike)
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nsq.errors import UsageError

from .faults import BOTH, CLIENT, KINDS, SERVER, Fault

T = TypeVar("T")

#: The default kinds with their weights. ``corrupt`` is not included, because TCP's checksum hides nearly all
#: flipped bits; name it for tests with TLS, or if any bytes may be delivered.
USUAL = {kind: 1.0 for kind in KINDS if kind != "corrupt"}


@dataclass(frozen=True)
class Strike:
    """A fault, ``after`` seconds after the previous strike. ``link`` and ``connection`` select a target by a
    share from 0 to 1, as their number is not known yet; ``connection`` None means all.
    """

    after: float
    fault: Fault
    link: float
    connection: float | None

    def one_of(self, choices: Sequence[T], share: float | None = None) -> T:
        """Return the element that the share (by default the link's) selects."""
        if not choices:
            raise UsageError("a strike needs a target: there is none")
        return choices[int((self.link if share is None else share) * len(choices))]


class Schedule:
    """An endless sequence of strikes; every iteration gives the same one.

    ``kinds`` are names, or names with weights. They may include other names ("kill nsqd") for callers that
    play the schedule themselves. ``pause`` and ``seconds`` are the bounds of the time between two strikes and
    of the duration of a standing fault.
    """

    def __init__(
        self,
        seed: object,
        *,
        kinds: Mapping[str, float] | Iterable[str] = USUAL,
        pause: tuple[float, float] = (0.05, 0.5),
        seconds: tuple[float, float] = (0.05, 1.0),
    ) -> None:
        #: As it was given.
        self.seed = seed
        self._kinds = dict(kinds) if isinstance(kinds, Mapping) else dict.fromkeys(kinds, 1.0)
        self._pause = _bounds("pause", pause)
        self._seconds = _bounds("seconds", seconds)
        if not self._kinds or not all(weight > 0 for weight in self._kinds.values()):
            raise UsageError(f"kinds is {kinds!r}; it must name at least one, with weights above 0")

    def __repr__(self) -> str:
        return f"<Schedule seed={self.seed!r}>"

    def __iter__(self) -> Iterator[Strike]:
        chance = random.Random(f"{self.seed}")
        names, weights = list(self._kinds), list(self._kinds.values())
        while True:
            (kind,) = chance.choices(names, weights)
            fault = Fault(kind, _towards(kind, chance), chance.uniform(*self._seconds), _amount(kind, chance))
            one = chance.random() if chance.random() < 0.5 else None
            yield Strike(chance.uniform(*self._pause), fault, chance.random(), one)


def _bounds(name: str, given: tuple[float, float]) -> tuple[float, float]:
    low, high = given
    if not 0 <= low <= high:
        raise UsageError(f"{name} is {given!r}; it must be two numbers of seconds, the smaller one first")
    return low, high


def _towards(kind: str, chance: random.Random) -> str:
    ends = (CLIENT, SERVER) if kind.startswith("half-") else (BOTH, BOTH, CLIENT, SERVER)
    return chance.choice(ends)


def _amount(kind: str, chance: random.Random) -> float:
    if kind == "delay":
        return chance.uniform(0.005, 0.2)
    if kind == "throttle":
        return 10 ** chance.uniform(3.5, 6)
    if kind == "corrupt":
        return chance.randint(1, 8)
    return chance.randint(0, 2000) if kind == "truncate" else 0.0
