"""The cost of syncing every message to disk before it is finished: a receiver against a consumer that does
nothing, over the firehose.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.client.parties import OURS, driver_of, firehose, under
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.processes import Server, drive
from benchmarks.usage import cpu_seconds

_IN_FLIGHT = 2500
_CONSUMED, _RECEIVED = 500_000, 1_000_000


def comparisons() -> Sequence[Comparison]:
    return [
        Comparison(
            name=f"receive into the log, fsynced, {_IN_FLIGHT:,} in flight",
            figures=(Figure("", "msg/s"), Figure("server", "% of a core")),
            contenders={"receiver": under(firehose(), _receive), "consumer": _consume()},
            bars=[Bar("receiver", "consumer", 0.35)],
            rounds=3,
        )
    ]


def _receive(server: Server, scale: float) -> Sequence[float]:
    used = cpu_seconds(server.pid)
    rate, seconds = drive("spark_receive", server.port, round(_RECEIVED * scale), _IN_FLIGHT)
    return [rate, (cpu_seconds(server.pid) - used) / seconds * 100]


def _consume() -> Measure:
    consume = driver_of(OURS)

    def load(server: Server, scale: float) -> Sequence[float]:
        count = round(_CONSUMED * scale)
        used = cpu_seconds(server.pid)
        (rate,) = consume("consume", port=server.port, count=count, max_in_flight=_IN_FLIGHT)
        return [rate, (cpu_seconds(server.pid) - used) / (count / rate) * 100]

    return under(firehose(), load)
