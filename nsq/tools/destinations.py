"""Chooses the destination of the next message among several addresses, and reports how long they take.

Round-robin, a host pool that skips failed hosts, and one that prefers fast hosts. Pure: time and chance are
arguments. Any number of threads may share an instance; its lock guards only state.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from nsq.errors import ConfigError
from nsq.pauses import doubled

HOSTPOOL = "hostpool"
ROUND_ROBIN = "round-robin"
EPSILON_GREEDY = "epsilon-greedy"
MULTICAST = "multicast"

#: Seconds for which a failed host is skipped, at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 900.0
#: The share of random choices: at first, its factor after each, and its minimum.
_EPSILON, _EPSILON_DECAY, _LEAST_EPSILON = 0.3, 0.9, 0.01
#: Response times are kept in this number of buckets, for this number of seconds.
_BUCKETS, _MEMORY = 120, 300.0


class RoundRobin:
    def __init__(self, addresses: Sequence[str]) -> None:
        self._next: Iterator[str] = itertools.cycle(addresses)
        self._lock = threading.Lock()

    def choose(self) -> str:
        with self._lock:
            return next(self._next)

    def mark(self, address: str, seconds: float | None) -> None:
        """Say how long a request took, or None for one that failed."""


class _Host:
    def __init__(self, address: str) -> None:
        self.address = address
        self.dead = False
        self._failures = 0
        self._retry_at = 0.0
        self._buckets: dict[int, tuple[float, int]] = {}  # by number: total seconds and number of requests

    def may_be_tried(self, now: float) -> bool:
        return not self.dead or now > self._retry_at

    def tried(self, now: float) -> None:
        """Record a choice of this host. If it is dead, double its pause."""
        if self.dead:
            self._failures += 1
            self._retry_at = now + doubled(_FIRST_PAUSE, _LONGEST_PAUSE, self._failures)

    def failed(self, now: float) -> None:
        if not self.dead:
            self.dead = True
            self._failures = 0
            self._retry_at = now + _FIRST_PAUSE

    def took(self, seconds: float, now: float) -> None:
        number = _bucket(now)
        total, count = self._buckets.get(number, (0.0, 0))
        self._buckets[number] = total + seconds, count + 1
        for old in [each for each in self._buckets if each <= number - _BUCKETS]:
            del self._buckets[old]

    def average(self, now: float) -> float:
        """Average the response times, the newest weighing most; an empty bucket counts as the one before."""
        last = _bucket(now)
        total = value = 0.0
        for weight in range(1, _BUCKETS + 1):
            seconds, count = self._buckets.get(last - _BUCKETS + weight, (0.0, 0))
            value = seconds / count if count else value
            total += value * weight / _BUCKETS
        return total


def _bucket(now: float) -> int:
    return math.floor(now / (_MEMORY / _BUCKETS))


class HostPool:
    """Round-robin over the hosts that are alive. If none is, all are tried again."""

    def __init__(self, addresses: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._hosts = [_Host(address) for address in addresses]
        self._by_address = {host.address: host for host in self._hosts}
        self._clock = clock
        self._at = 0
        self._lock = threading.Lock()

    def choose(self) -> str:
        with self._lock:
            host = self._chosen(self._clock())
            return host.address

    def mark(self, address: str, seconds: float | None) -> None:
        """Say how long a request took, or None for one that failed."""
        with self._lock:
            host, now = self._by_address[address], self._clock()
            if seconds is None:
                host.failed(now)
            else:
                host.dead = False
                host.took(seconds, now)

    def _chosen(self, now: float) -> _Host:
        return self._next_alive(now)

    def _next_alive(self, now: float) -> _Host:
        count = len(self._hosts)
        for step in range(count):
            host = self._hosts[(self._at + step) % count]
            if host.may_be_tried(now):
                host.tried(now)
                self._at = (self._at + step + 1) % count
                return host
        for host in self._hosts:
            host.dead = False
        self._at = 1 % count
        return self._hosts[0]


class EpsilonGreedy(HostPool):
    """Prefers hosts that answer quickly, and sometimes tries the others."""

    def __init__(
        self,
        addresses: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(addresses, clock)
        self._chance = chance
        self._epsilon = _EPSILON

    def _chosen(self, now: float) -> _Host:
        if self._chance() < self._epsilon:
            self._epsilon = max(self._epsilon * _EPSILON_DECAY, _LEAST_EPSILON)
            return self._next_alive(now)
        averages = [(host, host.average(now)) for host in self._hosts if host.may_be_tried(now)]
        values = [(host, 1.0 / average) for host, average in averages if average > 0]
        left = self._chance() * sum(value for _, value in values)
        for host, value in values:
            left -= value
            if left <= 0:
                host.tried(now)
                return host
        return self._next_alive(now)


def choice(mode: str, addresses: Sequence[str]) -> RoundRobin | HostPool:
    if mode == ROUND_ROBIN:
        return RoundRobin(addresses)
    return EpsilonGreedy(addresses) if mode == EPSILON_GREEDY else HostPool(addresses)


def check_mode(mode: str, known: Sequence[str], *, in_go: str) -> None:
    if mode not in known:
        raise ConfigError(
            f"--mode is {mode!r}, must be one of: {', '.join(known)} "
            f"(Go's program takes an unknown mode for {in_go})"
        )


# How long they take


class Durations:
    """Durations of the last requests; reports a line after every ``every`` of them, or none if that is 0 or
    less.
    """

    def __init__(self, every: int, prefix: str, report: Callable[[str], None]) -> None:
        self._every = every
        self._prefix = prefix
        self._report = report
        self._count = 0
        self._latest: list[float] = []
        self._lock = threading.Lock()

    def add(self, seconds: float, count: int = 1) -> None:
        """Add the time of ``count`` messages that were sent together."""
        lines = []
        with self._lock:
            while self._every > 0 and count:
                step = min(count, self._every - len(self._latest))
                self._latest += [seconds] * step
                self._count += step
                count -= step
                if len(self._latest) == self._every:
                    lines.append(self._line(self._count, sorted(self._latest)))
                    self._latest.clear()
        for line in lines:
            self._report(line)

    def _line(self, count: int, latest: list[float]) -> str:
        return (
            f"{self._prefix}finished {count} - 99th: {percentile(99, latest) * 1000:.2f}ms"
            f" - 95th: {percentile(95, latest) * 1000:.2f}ms"
            f" - avg: {sum(latest) * 1000 / len(latest):.2f}ms"
        )


def percentile(percent: int, ordered: Sequence[float]) -> float:
    return ordered[min(math.floor(percent / 100 * len(ordered) + 0.5), len(ordered) - 1)]


class StatusLines:
    """Lines about each of several addresses, and about all of them."""

    def __init__(self, addresses: Sequence[str], every: int, report: Callable[[str], None]) -> None:
        several = len(addresses) > 1
        self._all = Durations(every, "[aggregate]: " if several else "", report)
        self._each = {address: Durations(every, f"[{address}]: ", report) for address in addresses if several}

    def add(self, address: str, seconds: float, count: int = 1) -> None:
        if address in self._each:
            self._each[address].add(seconds, count)
        self._all.add(seconds, count)
