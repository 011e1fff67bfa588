"""What every client's program is made of: loads by name, counted the same way.

    python pynsq_peer.py consume '{"port": 4150, …}'

It prints the load's numbers. Knows no client, and uses the standard library only.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

TOPIC, CHANNEL = "bench", "work"

#: Messages that pass before the clock starts: connections are made, RDY has risen, code is warm.
WARM_UP = 200

#: The same at a steady pace: the first of all takes several times as long as any other, whoever sends it.
LEAD_IN = 10

_SENT = struct.Struct(">d")

Clock = Callable[[], float]


def main(loads: Mapping[str, Callable[..., Sequence[float]]]) -> None:
    name, arguments = sys.argv[1:3]
    threading.excepthook = _fail
    print(*loads[name](**json.loads(arguments)), flush=True)
    # Without a goodbye: none of them has to tidy up after its last message.
    os._exit(0)


def _fail(error: threading.ExceptHookArgs) -> None:
    """A thread that failed would be waited for in vain."""
    traceback.print_exception(error.exc_value)
    os._exit(1)


class Counter:
    """``tick`` is called for every message, by any thread, and calls ``done`` at the last."""

    def __init__(self, count: int, done: Callable[[], object], clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)  # taken in one step, whoever asks
        self._last = WARM_UP + count
        self._count = count
        self._done = done
        self._began = self._ended = 0.0

    def tick(self, *_: object) -> None:
        number = next(self._numbers)
        if number == WARM_UP:
            self._began = self._clock()
        elif number == self._last:
            self._ended = self._clock()
            self._done()

    @property
    def rate(self) -> float:
        return self._count / (self._ended - self._began)


class Delays:
    """How long messages took from ``stamp`` to ``note``, in one process; the lead-in does not count."""

    def __init__(
        self, count: int, size: int, done: Callable[[], object], clock: Clock = time.perf_counter
    ) -> None:
        self._clock = clock
        self._took: list[float] = []
        self._count = count
        self._size = size
        self._done = done

    def stamp(self) -> bytes:
        """A body that says when it was made."""
        return _SENT.pack(self._clock()).ljust(self._size, b"x")

    def note(self, body: bytes) -> None:
        self._took.append(self._clock() - _SENT.unpack_from(body)[0])
        if len(self._took) == LEAD_IN + self._count:
            self._done()

    def numbers(self) -> Sequence[float]:
        """p50 and p99 in milliseconds."""
        hundredths = statistics.quantiles(self._took[LEAD_IN:], n=100)
        return hundredths[49] * 1000, hundredths[98] * 1000


def pauses(count: int, a_second: int) -> Sequence[float]:
    """When each message is due, in seconds from the first: those of the lead-in, and so many more."""
    return [number / a_second for number in range(LEAD_IN + count)]
