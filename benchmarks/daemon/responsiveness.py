"""Delivery delay, and HTTP requests per second: only printed, not judged."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.daemon.throughput import SIZE
from benchmarks.processes import Command, drive, serving

_A_SECOND = 100
_LATENCY_SECONDS = 10.0
_REQUESTS = 20_000
_HTTP_CONNECTIONS = 8


def comparisons() -> Sequence[Comparison]:
    nsqds = servers.nsqds()
    everyone = {**nsqds, "minimal": servers.minimal}
    return [
        Comparison(
            name=f"delivery at {_A_SECOND} msg/s",
            figures=(Figure("p50", "ms", aim=1.0), Figure("p99", "ms", aim=5.0)),
            contenders={name: _latency(command) for name, command in everyone.items()},
            rounds=3,
        ),
        Comparison(
            name=f"http /pub, {_HTTP_CONNECTIONS} connections",
            figures=(Figure("", "requests/s"),),
            contenders={name: _http(command) for name, command in nsqds.items()},
            rounds=3,
        ),
    ]


def _latency(command: Command) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        with serving(command) as server:
            return drive("latency", server.port, round(_LATENCY_SECONDS * scale * _A_SECOND), _A_SECOND, SIZE)

    return measure


def _http(command: Command) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        with serving(command) as server:
            return drive("http_pub", server.http_port, round(_REQUESTS * scale), SIZE, _HTTP_CONNECTIONS)

    return measure
