"""Brokers side by side, from Python: each with its client, in its default and in its strongest setting.

Each measurement starts its broker with an empty directory, and kills it afterwards. A broker that is not
installed is named in the table; the others run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.brokers.servers import BROKERS, Broker, cpu_of, memory_of
from benchmarks.comparison import Comparison, Figure, Measure
from benchmarks.processes import Server, drive, new_place

_ROUNDS = 3
_SECONDS = 2.0
#: Messages that wait before a consumer begins, unless storing them takes longer than ``_FILLING`` seconds: it
#: then takes them for ``_SECONDS`` at most.
_BACKLOG = 50_000
_FILLING = 5.0
_WAITING = 1_000_000
_RATE = (
    Figure("", "msg/s"),
    Figure("CPU of the client", "µs/msg"),
    Figure("CPU of the broker", "µs/msg"),
)
_DELAY = (Figure("p50", "ms"), Figure("p99", "ms"))


def comparisons() -> Sequence[Comparison]:
    batching = [each for each in BROKERS if each.has_batches]
    fetching = [each for each in BROKERS if each.has_prefetch]
    return [
        _comparison("publish, 1 caller", _RATE, partial(_publish, 1, 1), pictured="Publish, one caller"),
        _comparison("publish, 8 callers", _RATE, partial(_publish, 8, 1), pictured="Publish, eight callers"),
        _comparison("publish batches of 100", _RATE, partial(_publish, 1, 100), batching),
        _comparison("consume, prefetch 200", _RATE, partial(_consume, 200), fetching, pictured="Consume"),
        _comparison("consume, prefetch 1", _RATE, partial(_consume, 1)),
        _comparison("delay at 100 msg/s", _DELAY, partial(_latency, 100)),
        _comparison("delay at 1,000 msg/s", _DELAY, partial(_latency, 1000)),
        _comparison(
            "idle, a consumer waits",
            (Figure("CPU of the broker", "% of a core"), Figure("CPU of the client", "% of a core")),
            _idle,
            rounds=1,
        ),
        _comparison(
            f"{_WAITING:,} messages wait",
            (Figure("memory of the broker", "MB"), Figure("filled", "msg/s")),
            _memory,
            [each for each in BROKERS if not each.strongest],
            rounds=1,
        ),
    ]


#: A load on a running broker. It gets the server, and the function that runs the driver.
Ask = Callable[..., list[float]]
Work = Callable[[Server, Ask], Sequence[float]]


def _comparison(
    name: str,
    figures: Sequence[Figure],
    load: Callable[[Broker, float], Sequence[float]],
    brokers: Sequence[Broker] = BROKERS,
    *,
    rounds: int = _ROUNDS,
    pictured: str = "",
) -> Comparison:
    def measure(broker: Broker) -> Measure:
        return lambda scale: load(broker, scale)

    return Comparison(
        name=name,
        figures=figures,
        contenders={each.name: measure(each) for each in brokers if not each.missing},
        absent={each.name: each.missing for each in brokers if each.missing},
        rounds=rounds,
        pictured=pictured,
    )


def _with(
    broker: Broker, work: Callable[[Server, Callable[..., list[float]]], Sequence[float]]
) -> Sequence[float]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        broker.serve(new_place(directory)) as server,
    ):
        ask = partial(drive, "broker", broker.client, server.port)
        ask("prepare")
        return work(server, ask)


def _publish(callers: int, batch: int, broker: Broker, scale: float) -> Sequence[float]:
    def work(server: Server, ask: Ask) -> Sequence[float]:
        seconds, before = _SECONDS * scale, cpu_of(server.pid)
        rate, client = ask("publish", callers, seconds, batch)
        return rate, client, (cpu_of(server.pid) - before) / (rate * seconds) * 1e6

    return _with(broker, work)


def _consume(prefetch: int, broker: Broker, scale: float) -> Sequence[float]:
    def work(server: Server, ask: Ask) -> Sequence[float]:
        _, waiting = ask("fill", _BACKLOG * scale, _FILLING)
        seconds, before = _SECONDS * scale, cpu_of(server.pid)
        rate, client = ask("consume", prefetch, seconds, waiting)
        count = min(rate * seconds, waiting)
        return rate, client, (cpu_of(server.pid) - before) / count * 1e6

    return _with(broker, work)


def _latency(a_second: int, broker: Broker, scale: float) -> Sequence[float]:
    return _with(broker, lambda _, ask: ask("latency", a_second, 2 * _SECONDS * scale))


def _idle(broker: Broker, scale: float) -> Sequence[float]:
    def work(server: Server, ask: Ask) -> Sequence[float]:
        seconds, before = 5 * scale, cpu_of(server.pid)
        (client,) = ask("idle", seconds)
        return (cpu_of(server.pid) - before) / (seconds + 1.0) * 100, client

    return _with(broker, work)


def _memory(broker: Broker, scale: float) -> Sequence[float]:
    def work(server: Server, ask: Ask) -> Sequence[float]:
        before = memory_of(server.pid)
        rate, _ = ask("fill", _WAITING * scale, 300.0)
        return (memory_of(server.pid) - before) / 1e6, rate

    return _with(broker, work)
