"""Whether the memory of a long stream grows: that of the program, the source and the receiver together, all
Python on the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.comparison import Bar, Comparison, Figure
from benchmarks.daemon import servers
from benchmarks.processes import serving
from benchmarks.spark.session import ask

_A_SECOND, _SECONDS, _SIZE = 5000, 60.0, 200
_MIDDLE, _END = "second third", "last third"


def comparisons() -> Sequence[Comparison]:
    run = _Run()
    return [
        Comparison(
            name=f"stream of {_A_SECOND:,} msg/s for {_SECONDS:g} s, memory",
            figures=(Figure("", "MB"),),
            contenders={_MIDDLE: run.middle, _END: run.end},
            bars=[Bar(_END, _MIDDLE, 1.15, at_most=True)],
            rounds=1,
            not_run="" if sys.platform == "linux" else "memory is read from /proc, which only Linux has",
        )
    ]


class _Run:
    """Both columns come from one stream, which the first one runs."""

    def __init__(self) -> None:
        self._last = 0.0

    def middle(self, scale: float) -> Sequence[float]:
        with serving(servers.nsqd()) as nsqd:
            middle, self._last = ask(
                "endure",
                port=nsqd.port,
                http_port=nsqd.http_port,
                a_second=_A_SECOND,
                seconds=_SECONDS * scale,
                size=_SIZE,
            )
        return [middle]

    def end(self, scale: float) -> Sequence[float]:
        return [self._last]
