"""The memory figures of /stats: Go's names for what comes nearest to it in CPython, 0 where nothing does."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

#: Pauses remembered, as many as Go's runtime remembers.
_PAUSES = 256


class Memory:
    """Between ``start`` and ``stop`` it also times the garbage collections that take noticeable time."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = 0.0
        self._pauses: deque[float] = deque(maxlen=_PAUSES)

    def start(self) -> None:
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        with suppress(ValueError):
            gc.callbacks.remove(self._collecting)

    def figures(self) -> dict[str, int]:
        pauses = sorted(self._pauses)
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": 0,
            "heap_in_use_bytes": resident_bytes(),
            "heap_released_bytes": 0,
            "gc_pause_usec_100": _microseconds(pauses, 100),
            "gc_pause_usec_99": _microseconds(pauses, 99),
            "gc_pause_usec_95": _microseconds(pauses, 95),
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
        }

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        # The youngest generation is collected hundreds of times a second, too quickly to be noticed.
        if info["generation"] == 0:
            return
        if phase == "start":
            self._began = self._now()
        else:
            self._pauses.append(self._now() - self._began)


def _microseconds(ascending: list[float], percentile: int) -> int:
    if not ascending:
        return 0
    place = min(len(ascending) * percentile // 100, len(ascending) - 1)
    return round(ascending[place] * 1_000_000)


def resident_bytes() -> int:
    """What the process holds in physical memory; where only its peak is known, that."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)
