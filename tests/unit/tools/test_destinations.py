"""The choice of the next destination, and the status lines about their times."""

from __future__ import annotations

from collections import Counter

import pytest

from nsq.tools.destinations import Durations, EpsilonGreedy, HostPool, RoundRobin, StatusLines
from tests.fakes.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def chosen(pool: RoundRobin | HostPool, count: int) -> str:
    return "".join(pool.choose() for _ in range(count))


def test_round_robin_ignores_failures() -> None:
    pool = RoundRobin("abc")
    pool.mark("b", None)
    assert chosen(pool, 5) == "abcab"


def test_a_host_pool_leaves_out_a_failed_destination_for_longer_each_time(clock: Clock) -> None:
    pool = HostPool("abc", clock)
    pool.mark("b", None)
    assert chosen(pool, 4) == "acac"
    for pause in (30, 60, 120, 240, 480, 900, 900):
        clock.now += pause
        assert "b" not in chosen(pool, 4), pause
        clock.now += 0.1
        assert chosen(pool, 4).count("b") == 1, pause
        pool.mark("b", None)
    pool.mark("b", 0.1)
    assert sorted(chosen(pool, 3)) == ["a", "b", "c"]


def test_all_destinations_are_tried_again_after_all_have_failed(clock: Clock) -> None:
    pool = HostPool("ab", clock)
    for address in "ab":
        pool.mark(address, None)
    assert chosen(pool, 3) == "aba"


class Chances:
    """Numbers from 0 to 1, evenly."""

    def __init__(self) -> None:
        self._at = 0.0

    def __call__(self) -> float:
        self._at = (self._at + 0.618034) % 1.0
        return self._at


def test_epsilon_greedy_prefers_fast_destinations_and_tries_the_others(clock: Clock) -> None:
    pool = EpsilonGreedy("ab", clock, Chances())
    for _ in range(200):
        for address, seconds in (("a", 0.010), ("b", 0.030)):
            pool.mark(address, seconds)
        clock.now += 1.0
    counts = Counter(chosen(pool, 1000))
    assert 700 < counts["a"] < 800
    pool.mark("a", None)
    assert chosen(pool, 10) == "b" * 10
    clock.now += 31.0
    assert "a" in chosen(pool, 10)


def test_measurements_older_than_five_minutes_are_dropped(clock: Clock) -> None:
    pool = EpsilonGreedy("ab", clock, Chances())
    pool.mark("a", 100.0)
    pool.mark("b", 0.001)
    clock.now += 301.0
    pool.mark("a", 0.001)
    pool.mark("b", 0.001)
    assert 400 < Counter(chosen(pool, 1000))["a"] < 600


def test_a_status_line_is_about_the_last_requests() -> None:
    lines: list[str] = []
    durations = Durations(100, "", lines.append)
    for milliseconds in range(1, 201):
        durations.add(milliseconds / 1000)
    assert lines == [
        "finished 100 - 99th: 100.00ms - 95th: 96.00ms - avg: 50.50ms",
        "finished 200 - 99th: 200.00ms - 95th: 196.00ms - avg: 150.50ms",
    ]


@pytest.mark.parametrize(
    ("addresses", "every", "fronts"),
    [
        (["a"], 2, ["finished 2"]),
        (["a", "b"], 2, ["[a]: finished 2", "[aggregate]: finished 2"]),
        (["a"], 0, []),
    ],
)
def test_each_destination_has_status_lines(addresses: list[str], every: int, fronts: list[str]) -> None:
    lines: list[str] = []
    status = StatusLines(addresses, every, lines.append)
    status.add("a", 0.1)
    status.add("a", 0.1)
    assert [line.split(" - ")[0] for line in lines] == fronts
