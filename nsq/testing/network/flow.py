"""One direction of one connection: the bytes under way, and when they arrive. Pure: time is an argument.

A flow obeys its own conditions and those of its link; of two delays or two rates the worse one counts.
"""

from __future__ import annotations

import math
import random
from collections import deque

from .faults import STANDING, Fault

#: The most bytes under way. A sender of more must wait, as on any network.
LIMIT = 1024 * 1024
#: The share of a throttled flow's bytes per second that arrive together.
_SHARE = 0.02


class Conditions:
    """The standing faults of one direction, each with the time of its end."""

    def __init__(self) -> None:
        self._standing: dict[str, tuple[float, float]] = {}  # kind: amount, until

    def impose(self, fault: Fault, now: float) -> None:
        self._standing[fault.kind] = (fault.amount, now + fault.seconds)

    def heal(self) -> None:
        self._standing.clear()

    def amount(self, kind: str, now: float) -> float | None:
        """Return the amount of a fault; None if it is not in force now."""
        found = self._standing.get(kind)
        return None if found is None or now >= found[1] else found[0]

    def next_end(self, now: float) -> float:
        """Return when the first of them ends."""
        if not self._standing:
            return math.inf
        return min((until for _, until in self._standing.values() if until > now), default=math.inf)


class Flow:
    """Takes bytes from the source by ``feed`` and ``end``; ``due`` returns those that its sink gets now."""

    def __init__(self, *conditions: Conditions, chance: random.Random) -> None:
        self.own = Conditions()
        self._conditions = (self.own, *conditions)
        self._chance = chance
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._allowance = 0.0  # bytes that a throttle has granted so far
        self._granted_at: float | None = None
        self._flips = 0
        self._left: int | None = None  # bytes until the connection is cut
        self.ended = False
        self.by_reset = False

    @property
    def wants_more(self) -> bool:
        return not self.ended and self._size < LIMIT

    @property
    def cut_off(self) -> bool:
        """Whether ``truncate`` must cut the connection now."""
        return self._left == 0

    def drained(self, now: float) -> bool:
        """Whether the sink must see the source's end now."""
        return self.ended and not self._under_way and self._worst("stall", now) is None

    def impose(self, fault: Fault, now: float) -> None:
        """Impose a standing fault, ``corrupt`` or ``truncate``."""
        if fault.kind in STANDING:
            self.own.impose(fault, now)
        elif fault.kind == "corrupt":
            self._flips += int(fault.amount)
        else:
            self._left = int(fault.amount)

    def heal(self) -> None:
        self.own.heal()
        self._flips, self._left = 0, None

    def feed(self, data: bytes, now: float) -> None:
        self._under_way.append((now, data))
        self._size += len(data)

    def end(self, *, by_reset: bool = False) -> None:
        """Note that the source has closed. The sink sees that after the bytes under way."""
        self.ended, self.by_reset = True, by_reset

    def due(self, now: float) -> bytes:
        """Return the bytes that arrive now."""
        if not self._under_way or self._worst("stall", now) is not None:
            return b""
        room = self._room(now)
        late = self._worst("delay", now) or 0.0
        pieces = []
        while room > 0 and self._under_way and self._under_way[0][0] + late <= now:
            since, data = self._under_way.popleft()
            if len(data) > room:
                self._under_way.appendleft((since, data[room:]))
                data = data[:room]
            pieces.append(data)
            room -= len(data)
        arrived = b"".join(pieces)
        self._size -= len(arrived)
        self._spend(len(arrived))
        return self._spoiled(arrived)

    def next_due(self, now: float) -> float:
        """Return when to call ``due`` next, if nothing else happens before."""
        if not self._under_way and not self.ended:
            return math.inf
        changes = min(conditions.next_end(now) for conditions in self._conditions)
        if self._worst("stall", now) is not None or not self._under_way:
            return changes
        arrival = self._under_way[0][0] + (self._worst("delay", now) or 0.0)
        if arrival > now:
            return min(arrival, changes)
        rate = self._worst("throttle", now)
        if rate is None or self._granted_at is None:
            return now
        return min(changes, self._granted_at + self._shortage(rate) / rate)

    def _worst(self, kind: str, now: float) -> float | None:
        amounts = [amount for each in self._conditions if (amount := each.amount(kind, now)) is not None]
        if not amounts:
            return None
        return min(amounts) if kind == "throttle" else max(amounts)

    def _room(self, now: float) -> int:
        rate = self._worst("throttle", now)
        room = self._size if self._left is None else self._left
        if rate is None:
            self._granted_at = None
            return room
        if self._granted_at is None:
            self._allowance = 0.0
        else:
            most = max(rate * _SHARE * 2, 1.0)
            self._allowance = min(self._allowance + rate * (now - self._granted_at), most)
        self._granted_at = now
        # The tolerance is for rounding errors at the exact time of ``next_due``.
        return 0 if self._shortage(rate) > 1e-6 else min(room, int(self._allowance + 1e-6))

    def _shortage(self, rate: float) -> float:
        """Return the bytes that are missing until the next portion is complete."""
        return max(0.0, min(max(rate * _SHARE, 1.0), self._size) - self._allowance)

    def _spend(self, size: int) -> None:
        if self._granted_at is not None:
            self._allowance -= size
        if self._left is not None:
            self._left -= size

    def _spoiled(self, data: bytes) -> bytes:
        if not self._flips or not data:
            return data
        spoiled = bytearray(data)
        for _ in range(self._flips):
            spoiled[self._chance.randrange(len(spoiled))] ^= 1 << self._chance.randrange(8)
        self._flips = 0
        return bytes(spoiled)
