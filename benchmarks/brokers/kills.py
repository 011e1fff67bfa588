"""What a kill -9 of each broker loses of what it said it had stored, and how often it fsyncs.

A kill is not a power cut: what a program has written survives in the kernel's page cache. So strace counts
the fsyncs: with less than one for each publish of a single caller, a broker answers before the data is on the
disk.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.brokers.servers import BROKERS, Broker
from benchmarks.comparison import Comparison, Figure, Measure
from benchmarks.processes import drive, new_place

_KILLS = 20
#: Publishes while the fsyncs are counted.
_COUNTED_SECONDS = 1.0


def comparisons() -> Sequence[Comparison]:
    def measure(broker: Broker) -> Measure:
        return lambda scale: kills(broker, scale)

    return [
        Comparison(
            name=f"{_KILLS} kills",
            figures=(
                Figure("stored", "messages"),
                Figure("lost", "messages"),
                Figure("fsyncs", "a publish"),
            ),
            contenders={each.name: measure(each) for each in BROKERS if not each.missing},
            absent={each.name: each.missing for each in BROKERS if each.missing},
            rounds=1,
        )
    ]


def kills(broker: Broker, scale: float) -> Sequence[float]:
    """Kill the broker again and again while one caller publishes; count what was stored and what was lost."""
    chance = random.Random(broker.name)
    ranges: list[int] = [0]
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, ThreadPoolExecutor() as callers:
        place = new_place(directory)
        ask = partial(drive, "broker", broker.client, place.port)
        for turn in range(max(1, round(_KILLS * scale))):
            with broker.serve(place):
                if not turn:
                    ask("prepare")
                caller = callers.submit(ask, "number", ranges[-1])
                time.sleep(0.7 + chance.random())  # the client needs some of it to start
            end = int(caller.result()[0])
            ranges += [end, end + 1]  # the one that was under way may be stored or not
        with broker.serve(place):
            (lost,) = ask("lost", *ranges[:-1])
    return sum(ranges[1:-1:2]) - sum(ranges[:-1:2]), lost, _fsyncs(broker)


def _fsyncs(broker: Broker) -> float:
    """Return how often the broker fsyncs for each publish of one caller; -1 without strace."""
    if not shutil.which("strace"):
        return -1.0
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        place = new_place(directory)
        calls = Path(directory, "calls")
        calls_to = "trace=fsync,fdatasync,msync,sync_file_range"
        strace = ["strace", "-f", "-q", "-e", "signal=none", "-o", str(calls), "-e", calls_to]
        with broker.serve(place, strace):
            ask = partial(drive, "broker", broker.client, place.port)
            ask("prepare")
            before = _lines(calls)
            rate, _ = ask("publish", 1, _COUNTED_SECONDS, 1)
            return (_lines(calls) - before) / (rate * _COUNTED_SECONDS)


def _lines(calls: Path) -> int:
    """Count the calls that have ended; one that another thread interrupts takes two lines."""
    return len(re.findall(r"\) += ", calls.read_text()))
