"""Messages in order, so many at a time, no faster than asked: the part of ``replay`` that publishes.

What it publishes with, the clock and the way to wait are arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from nsq.spark.pipelines.bookmark import ArchivePosition, Mark

#: Of one publish, in bytes of bodies; nsqd's limit for all of it is 5 MiB by default.
_MOST_BYTES = 1 << 20


class Entry(NamedTuple):
    position: ArchivePosition
    body: bytes


def remaining(entries: Iterable[Entry], place: Mark) -> Iterator[Entry]:
    """Without what is done already; ``entries`` in order."""
    if place.at is None:
        yield from entries
        return
    done = place.repeated
    for entry in entries:
        if entry.position == place.at and done:
            done -= 1
        elif entry.position >= place.at:
            yield entry


def chunks(entries: Iterable[Entry], most: int, most_bytes: int = _MOST_BYTES) -> Iterator[list[Entry]]:
    """As they are published; a message larger than that goes alone."""
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == most or size + len(entry.body) > most_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += len(entry.body)
    if chunk:
        yield chunk


@dataclasses.dataclass
class Throttle:
    """``rate`` messages per second on average, from when it is first asked; None: as fast as it goes."""

    rate: float | None
    now: Callable[[], float]
    start: float | None = None
    sent: int = 0

    def due(self) -> float:
        """Seconds from now until more may go."""
        if self.rate is None:
            return 0.0
        if self.start is None:
            self.start = self.now()
        return max(0.0, self.start + self.sent / self.rate - self.now())

    def chunk_of(self, most: int) -> int:
        """How many to publish at once, that a slow rate comes evenly: ten times a second."""
        return most if self.rate is None else max(1, min(most, int(self.rate / 10)))


def send(
    parts: Iterable[list[Entry]],
    place: Mark,
    pace: Throttle,
    *,
    publish: Callable[[list[bytes]], None],
    save: Callable[[Mark], None],
    wait: Callable[[float], bool],
) -> Iterator[Mark]:
    """Publish, note, tell, again and again. ``wait`` waits so many seconds and says whether to stop.

    What was published and not noted yet when this ends is published again the next time: one part at most.
    """
    for part in parts:
        if wait(pace.due()):
            return
        publish([entry.body for entry in part])
        pace.sent += len(part)
        for entry in part:
            place = place.after(entry.position, len(entry.body))
        save(place)
        yield place
