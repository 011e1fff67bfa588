"""Common to the programs of all clients: loads by name, counted in the same way.

    python pynsq_peer.py consume '{"port": 4150, …}'

Prints the load's numbers. Imports no client, only the standard library.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

TOPIC, CHANNEL = "bench", "work"

#: Messages before the clock starts, so that connections, RDY and caches are ready.
WARM_UP = 200

#: The same at a steady rate: for every client the very first message takes several times as long.
LEAD_IN = 10

_SENT = struct.Struct(">d")

Clock = Callable[[], float]


def user_seconds() -> float:
    """Return the CPU seconds of this process outside the kernel."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def main(loads: Mapping[str, Callable[..., Sequence[float]]]) -> None:
    name, arguments = sys.argv[1:3]
    threading.excepthook = _fail
    print(*loads[name](**json.loads(arguments)), flush=True)
    # Exit at once, so that no client spends time on closing.
    os._exit(0)


def _fail(error: threading.ExceptHookArgs) -> None:
    """End the program when a thread fails, because its result would never come."""
    traceback.print_exception(error.exc_value)
    os._exit(1)


class Counter:
    """Call ``tick`` for every message, from any thread; it calls ``done`` at the last."""

    def __init__(
        self,
        count: int,
        done: Callable[[], object],
        clock: Clock = time.perf_counter,
        cpu_clock: Clock = user_seconds,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._numbers = itertools.count(1)  # atomic for all threads
        self._last = WARM_UP + count
        self._count = count
        self._done = done
        self._began = self._ended = 0.0
        self._cpu_began = self._cpu_ended = 0.0

    def tick(self, *_: object) -> None:
        number = next(self._numbers)
        if number == WARM_UP:
            self._cpu_began, self._began = self._cpu_clock(), self._clock()
        elif number == self._last:
            self._ended, self._cpu_ended = self._clock(), self._cpu_clock()
            self._done()

    @property
    def rate(self) -> float:
        return self._count / (self._ended - self._began)

    @property
    def cpu(self) -> float:
        """Microseconds of user CPU time for each message."""
        return (self._cpu_ended - self._cpu_began) / self._count * 1e6


def calls(count: int, callers: Sequence[Callable[[], object]]) -> Sequence[float]:
    """Make ``count`` calls in all, each caller on a thread of its own; return the rate, and the user CPU
    time of a call in microseconds.
    """
    over = threading.Event()
    counter = Counter(count, over.set)

    def run(call: Callable[[], object]) -> None:
        while not over.is_set():
            call()
            counter.tick()

    for caller in callers:
        threading.Thread(target=run, args=(caller,), daemon=True).start()
    over.wait()
    return [counter.rate, counter.cpu]


class Delays:
    """Times of messages from ``stamp`` to ``note`` in one process, without the lead-in."""

    def __init__(
        self, count: int, size: int, done: Callable[[], object], clock: Clock = time.perf_counter
    ) -> None:
        self._clock = clock
        self._took: list[float] = []
        self._count = count
        self._size = size
        self._done = done

    def stamp(self) -> bytes:
        """Return a body with the present time."""
        return _SENT.pack(self._clock()).ljust(self._size, b"x")

    def note(self, body: bytes) -> None:
        self._took.append(self._clock() - _SENT.unpack_from(body)[0])
        if len(self._took) == LEAD_IN + self._count:
            self._done()

    def numbers(self) -> Sequence[float]:
        """Return p50 and p99 in milliseconds."""
        hundredths = statistics.quantiles(self._took[LEAD_IN:], n=100)
        return hundredths[49] * 1000, hundredths[98] * 1000


def due_times(count: int, a_second: int) -> Sequence[float]:
    """Return when each message is due, in seconds from the first, including the lead-in."""
    return [number / a_second for number in range(LEAD_IN + count)]
