"""Measures the latency from publish to FIN: quantiles over a sliding window."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from nsq.daemons.nsqd.core.backlog import Message
from nsq.daemons.nsqd.core.channel import Channel, Subscriber
from nsq.daemons.nsqd.core.clock import Clock

#: Latencies with the same highest bits share one bucket: with 8 bits the error is at most 0.4 %, and there
#: are at most a few thousand buckets.
_BITS = 8
_LEADING = 1 << (_BITS - 1)


class LatencyWindow:
    """A histogram over two halves of the window; when one is full, the older one is discarded.

    ``record`` is called for every FIN and therefore only counts.
    """

    __slots__ = ("_begins", "_counts", "_ends", "_half", "_older", "_time_ns", "quantiles")

    def __init__(self, clock: Clock, window: float, quantiles: tuple[float, ...]) -> None:
        self.quantiles = quantiles
        self._time_ns = clock.time_ns
        self._half = round(window * 1e9 / 2)
        self._begins = clock.time_ns()
        self._ends = self._begins + self._half
        self._counts: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def record(self, timestamp: int) -> None:
        """Count a finished message that was published at ``timestamp``, in nanoseconds since the epoch."""
        # Read the clock once for both purposes: a second call would be a tenth of the total cost.
        now = self._time_ns()
        if not self._begins <= now < self._ends:
            self._turn(now)
        latency = now - timestamp
        if latency < 0:
            latency = 0  # the system's clock was set back
        shift = latency.bit_length() - _BITS
        place = latency if shift <= 0 else shift * _LEADING + (latency >> shift)
        counts = self._counts
        counts[place] = counts.get(place, 0) + 1

    def _turn(self, now: int) -> None:
        """Begin a new half; after a long pause, or if the clock was set back, discard both old ones."""
        next_to_this = self._ends <= now < self._ends + self._half
        self._older = self._counts if next_to_this else {}
        self._counts = {}
        self._begins = self._ends if next_to_this else now
        self._ends = self._begins + self._half

    def counts(self) -> Mapping[int, int]:
        """Return the number of messages in each bucket within the window."""
        now = self._time_ns()
        if not self._begins <= now < self._ends:
            self._turn(now)
        return Counter(self._older) + Counter(self._counts)


def quantiles(windows: Iterable[LatencyWindow], wanted: tuple[float, ...]) -> tuple[int, list[int]]:
    """Return the number of messages of all windows, and the latency in nanoseconds at every quantile."""
    counts: Counter[int] = Counter()
    for window in windows:
        counts.update(window.counts())
    total = counts.total()
    ascending = sorted(counts.items())
    return total, [_latency_at(max(1, math.ceil(quantile * total)), ascending) for quantile in wanted]


def _latency_at(rank: int, ascending: Iterable[tuple[int, int]]) -> int:
    for place, count in ascending:
        rank -= count
        if rank <= 0:
            return _middle(place)
    return 0


def _middle(place: int) -> int:
    """Return the middle of a bucket, in nanoseconds."""
    if place < 2 * _LEADING:
        return place
    shift = place // _LEADING - 1
    return ((place - shift * _LEADING) << shift) + (1 << shift >> 1)


class MeasuredChannel(Channel):
    """A channel that records the latency of finished messages; a plain Channel has no such cost."""

    latency: LatencyWindow

    def _finished(self, subscriber: Subscriber, messages: list[Message]) -> None:
        super()._finished(subscriber, messages)
        for message in messages:
            self.latency.record(message.timestamp)
