"""The cost of many idle clients and many waiting messages: only printed, not judged."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

from benchmarks.comparison import Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.daemon.throughput import SIZE
from benchmarks.processes import Command, drive, serving
from benchmarks.usage import MEGABYTE, peak_memory, resident_memory

_CLIENTS = 2000
_HEARTBEAT = 10  # three times the default rate; the measured time has one heartbeat of each client

_BACKLOG = 1_000_000
_IN_MEMORY = 10_000
_BATCH = 200


def comparisons() -> Sequence[Comparison]:
    return [_idle(), _backlog(), _deferred()]


def _idle() -> Comparison:
    return Comparison(
        name=f"{_CLIENTS:,} idle clients",
        figures=(Figure("memory each", "KB", aim=40), Figure("cpu", "% of a core", aim=2)),
        contenders={name: _wait(command) for name, command in servers.nsqds().items()},
        rounds=1,
        not_run=_needs_proc(),
    )


def _wait(command: Command) -> Measure:
    def measure(scale: float) -> Sequence[float]:  # noqa: ARG001 - fewer would share what is allocated anyway
        _allow_many_descriptors()
        with serving(command) as server:
            return drive("idle", server.port, server.pid, _CLIENTS, _HEARTBEAT)

    return measure


def _allow_many_descriptors() -> None:
    """Set a limit that processes started from here on inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 2 * _CLIENTS:
        wanted = 2 * _CLIENTS if hard == resource.RLIM_INFINITY else min(2 * _CLIENTS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _backlog() -> Comparison:
    on_disk = servers.understands("max-bytes-per-file")
    return Comparison(
        name=f"backlog of {_BACKLOG:,}, {_IN_MEMORY:,} in memory",
        figures=(
            Figure("memory", "MB", aim=150),
            Figure("memory at most", "MB", aim=150),
            Figure("filled", "msg/s"),
            Figure("drained", "msg/s"),
        ),
        contenders={
            name: _pile_up(command) for name, command in servers.nsqds(mem_queue_size=_IN_MEMORY).items()
        },
        rounds=1,
        not_run=_needs_proc() if on_disk else "this nsqd keeps every message in memory",
    )


def _pile_up(command: Command) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        count = round(_BACKLOG * scale)
        with serving(command) as server:
            filled = drive("fill", server.port, count, SIZE, _BATCH)
            memory = resident_memory(server.pid)
            # The driver ends after the last message, and fails if one is missing.
            drained = drive("consume", server.port, count, SIZE, 1)
            return [memory / MEGABYTE, peak_memory(server.pid) / MEGABYTE, *filled, *drained]

    return measure


def _deferred() -> Comparison:
    return Comparison(
        name=f"{_BACKLOG:,} deferred, due within a day",
        figures=(
            Figure("memory more", "MB", aim=150),
            Figure("deferred", "msg/s"),
            Figure("pub before", "msg/s"),
            Figure("pub beside", "msg/s"),
            Figure("sub beside", "msg/s"),
            Figure("due at once", "msg/s"),
        ),
        contenders={
            name: _defer(command)
            for name, command in servers.nsqds("--max-req-timeout=24h", mem_queue_size=_IN_MEMORY).items()
        },
        rounds=1,
        not_run=_needs_proc(),
    )


def _defer(command: Command) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        count, published = round(_BACKLOG * scale), round(_BACKLOG * scale / 10)
        with serving(command) as server:
            drive("publish", server.port, "pub", published, SIZE, _BATCH)
            drive("consume", server.port, published, SIZE, 1)  # makes the channel
            before = drive("publish", server.port, "pub", published, SIZE, _BATCH)
            drive("consume", server.port, published, SIZE, 1)
            idle = resident_memory(server.pid)
            deferred = drive("defer", server.port, count, SIZE, _BATCH)
            memory = resident_memory(server.pid) - idle
            beside = drive("publish", server.port, "pub", published, SIZE, _BATCH)
            consumed = drive("consume", server.port, published, SIZE, 1)
            at_once = drive("due", server.port, published, SIZE, _BATCH)
            return [memory / MEGABYTE, *deferred, *before, *beside, *consumed, *at_once]

    return measure


def _needs_proc() -> str:
    return "" if sys.platform == "linux" else "memory and CPU are read from /proc, which only Linux has"
