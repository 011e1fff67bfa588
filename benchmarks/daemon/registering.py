"""Registering many topics at nsqlookupd: ours against a minimal one."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.processes import Command, drive, serving

_TOPICS = 200_000
_BATCH = 500


def comparisons() -> Sequence[Comparison]:
    return [
        _registering("register, one by one", _TOPICS // 4, 1, 0.5),
        _registering(f"register, {_BATCH} at once", _TOPICS, _BATCH, 0.1),
    ]


def _registering(name: str, count: int, batch: int, bar: float) -> Comparison:
    contenders = {**servers.nsqlookupds(), "bare": servers.bare_nsqlookupd}
    return Comparison(
        name=name,
        figures=(Figure("", "topics/s"), Figure("CPU", "us/topic")),
        contenders={name: _register(command, count, batch) for name, command in contenders.items()},
        bars=(Bar("nsqlookupd", "bare", bar),),
        rounds=3,
    )


def _register(command: Command, count: int, batch: int) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        topics = max(1, round(count * scale / batch)) * batch
        with serving(command) as server:
            return drive("register", server.port, server.pid, topics, batch)

    return measure
