"""Which bodies travel together in one MPUB. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: What MPUB adds: its count, and the size of each body.
_HEAD = 4
_PER_BODY = 4

#: Rows of many topics wait for company; all together they are no more than fill so many MPUBs.
_MOST_HELD = 32


class Pack(NamedTuple):
    """``size`` counts the bytes of the bodies."""

    topic: str
    bodies: Sequence[bytes]
    size: int


class _Held:
    """What waits of one topic."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.size = 0

    def packed_with(self, length: int) -> int:
        return _HEAD + self.size + length + _PER_BODY * (len(self.bodies) + 1)


class Packer:
    """``most_messages`` and ``most_bytes`` limit a pack; a single body larger than that is a pack as well."""

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        self._held: dict[str, _Held] = {}
        self._messages = 0
        self._size = 0

    def add(self, topic: str, bodies: Sequence[bytes]) -> Iterator[Pack]:
        """What has become full."""
        held = self._held.setdefault(topic, _Held())
        for body in bodies:
            length = len(body)
            if held.bodies and held.packed_with(length) > self._most_bytes:
                yield self._take(topic, held)
            held.bodies.append(body)
            held.size += length
            self._size += length
            self._messages += 1
            if len(held.bodies) >= self._most_messages:
                yield self._take(topic, held)
        if self._messages > _MOST_HELD * self._most_messages or self._size > _MOST_HELD * self._most_bytes:
            yield from self.rest()

    def rest(self) -> Iterator[Pack]:
        """All that waits still."""
        for topic, held in self._held.items():
            if held.bodies:
                yield self._take(topic, held)
        self._held.clear()

    def _take(self, topic: str, held: _Held) -> Pack:
        pack = Pack(topic, held.bodies, held.size)
        self._size -= held.size
        self._messages -= len(held.bodies)
        held.bodies, held.size = [], 0
        return pack
