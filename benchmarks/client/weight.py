"""The client's memory for messages in flight, and its import time."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.client.parties import OURS, driver_of, firehose, under
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.processes import Server, drive
from benchmarks.usage import MEGABYTE

_HELD, _BODY = 2500, 1000


def comparisons() -> Sequence[Comparison]:
    return [_memory(), _import()]


def _memory() -> Comparison:
    consume = driver_of(OURS)

    def load(server: Server, scale: float) -> Sequence[float]:  # noqa: ARG001 - fewer would measure something else
        (taken,) = consume("memory", port=server.port, count=_HELD)
        return [taken / MEGABYTE]

    return Comparison(
        name=f"memory of {_HELD:,} messages of {_BODY:,} bytes held",
        figures=(Figure("", "MB"),),
        contenders={
            OURS: under(firehose(size=_BODY), load),
            "bodies": lambda scale: [_HELD * _BODY / MEGABYTE],  # noqa: ARG005 - likewise
        },
        bars=[Bar(OURS, "bodies", 3, at_most=True)],
        not_run="" if sys.platform == "linux" else "memory is read from /proc, which only Linux has",
    )


def _import() -> Comparison:
    return Comparison(
        name="import",
        figures=(Figure("", "ms"),),
        contenders={
            OURS: _importing("nsq"),
            # The package loads these at first use.
            "nsq, both clients": _importing("nsq.consumer.consumer", "nsq.producer.producer"),
            "http.client, ssl": _importing("http.client", "ssl"),
        },
        bars=[Bar(OURS, "http.client, ssl", 2, at_most=True)],
    )


def _importing(*modules: str) -> Measure:
    def measure(scale: float) -> Sequence[float]:  # noqa: ARG001 - it takes no time
        return drive("importing", *modules)

    return measure
