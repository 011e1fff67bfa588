"""Publishing at full speed over a real nsqd, compared with other clients and a bare program with the
structure of our Producer (benchmarks/drivers/bare_publisher.py).

Each measurement starts a new nsqd, which keeps all messages in memory and is killed afterwards. Nothing is
pinned to a core. Message counts differ, so that all parties take about as long; only rates are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks import native
from benchmarks.client.consuming import ROUNDS
from benchmarks.client.parties import BARE, LIMIT, OURS, SIZE, driver_of, missing, present, under
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.processes import Command, Server

#: Ours, with all publishes over the one shared connection.
_SHARED = "nsq, shared"
_CALLERS = 16
_BATCH = 200
#: Unanswered publishes at a time: the default of max_pending. pynsq's load is shorter, and as fast with
#: fewer.
_WINDOW, _WINDOW_PEER = 10_000, 1000

_RATE = (Figure("", "msg/s"),)
_FIGURES = (*_RATE, Figure("user CPU", "µs"))

_ONE_BY_ONE, _TOGETHER, _MANY = 8000, 20_000, 300_000
_ASYNC, _ASYNC_BARE, _ASYNC_PEER = 200_000, 500_000, 30_000


def comparisons() -> Sequence[Comparison]:
    over_nsqds = [
        comparison(nsqd, command)
        for nsqd, command in servers.nsqds().items()
        for comparison in (_one_caller, _many_callers, _async, _multi)
    ]
    return [*over_nsqds, *_round_trips()]


def _round_trips() -> Sequence[Comparison]:
    """Compare with bare sockets over a server in C for which no client waits."""
    comparisons = []
    for callers, share in {1: 0.75, 4: 0.8, 16: 0.8}.items():
        options: dict[str, Any] = {"count": _TOGETHER, "command": native.nsqd, "callers": callers}
        contenders = {
            OURS: _load(OURS, "publish", **options),
            _SHARED: _load(OURS, "publish", publish_connections=0, **options),
            LIMIT: _load(LIMIT, "publish", **options),
        }
        name = f"publish, {callers} callers" if callers > 1 else "publish, 1 caller"
        comparisons.append(_over_c(name, contenders, Bar(OURS, LIMIT, share), _FIGURES))
    parties = (OURS, LIMIT)
    batches = {party: _load(party, "multi_publish", _MANY, native.nsqd, batch=_BATCH) for party in parties}
    pipelined = {
        party: _load(party, "publish_async", _ASYNC, native.nsqd, window=_WINDOW) for party in (OURS, BARE)
    }
    return [
        *comparisons,
        _over_c("publish_async, pipelined", pipelined, Bar(OURS, BARE, 0.4)),
        _over_c(f"multi_publish of {_BATCH}", batches, Bar(OURS, LIMIT, 1.0)),
    ]


def _over_c(
    name: str, contenders: Mapping[str, Measure], bar: Bar, figures: Sequence[Figure] = _RATE
) -> Comparison:
    made = _comparison(name, "a minimal nsqd in C", contenders, [bar], figures=figures)
    return replace(made, not_run=native.absence())


def _one_caller(nsqd: str, command: Command) -> Comparison:
    parties = (OURS, BARE, "gnsq")
    return _comparison(
        "publish, 1 caller",
        nsqd,
        {party: _load(party, "publish", _ONE_BY_ONE, command) for party in parties},
        [Bar(OURS, BARE, 0.85), Bar(OURS, "gnsq", 0.9)],
        "Publish, each confirmed before the next",
        _FIGURES,
    )


def _many_callers(nsqd: str, command: Command) -> Comparison:
    return _comparison(
        f"publish, {_CALLERS} callers",
        nsqd,
        {party: _load(party, "publish", _TOGETHER, command, callers=_CALLERS) for party in (OURS, BARE)},
        [Bar(OURS, BARE, 0.7)],
        figures=_FIGURES,
    )


def _async(nsqd: str, command: Command) -> Comparison:
    """Measure ours twice: with one flush at the end, and with a callback per message."""

    def load(party: str, count: int, window: int = _WINDOW, **options: object) -> Measure:
        return _load(party, "publish_async", count, command, window=window, **options)

    return _comparison(
        "publish_async, pipelined",
        nsqd,
        {
            OURS: load(OURS, _ASYNC),
            f"{OURS}, callbacks": load(OURS, _ASYNC, callbacks=True),
            BARE: load(BARE, _ASYNC_BARE),
            "pynsq": load("pynsq", _ASYNC_PEER, _WINDOW_PEER),
        },
        [Bar(OURS, BARE, 0.4), Bar(OURS, "pynsq", 3)],
        "Publish without waiting",
    )


def _multi(nsqd: str, command: Command) -> Comparison:
    return _comparison(
        f"multi_publish of {_BATCH}",
        nsqd,
        {party: _load(party, "multi_publish", _MANY, command, batch=_BATCH) for party in (OURS, "gnsq")},
        [Bar(OURS, "gnsq", 1)],
        f"Publish {_BATCH} at a time",
    )


def _comparison(
    name: str,
    nsqd: str,
    contenders: Mapping[str, Measure],
    bars: Sequence[Bar],
    pictured: str = "",
    figures: Sequence[Figure] = _RATE,
) -> Comparison:
    """Only comparisons over our own nsqd are in the chart, because every run has it."""
    absent = missing([party for party in ("gnsq", "pynsq") if party in contenders])
    return Comparison(
        name=f"{name}, over {nsqd}",
        figures=figures,
        contenders=present(contenders, absent),
        bars=bars,
        absent=absent,
        pictured=pictured if nsqd == "nsqd" else "",
        rounds=ROUNDS,
    )


def _load(party: str, name: str, count: int, command: Command, **options: Any) -> Measure:
    drive = driver_of(party)

    def load(server: Server, scale: float) -> Sequence[float]:
        return drive(name, port=server.port, count=round(count * scale), size=SIZE, **options)

    return under(command, load)
