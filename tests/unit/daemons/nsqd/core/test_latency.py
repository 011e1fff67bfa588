from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.latency import LatencyWindow, MeasuredChannel, quantiles
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer

QUANTILES = (1.0, 0.99, 0.5)


def window(clock: FakeClock, seconds: float = 600.0) -> LatencyWindow:
    return LatencyWindow(clock, seconds, QUANTILES)


def record(clock: FakeClock, into: LatencyWindow, *latencies: int) -> None:
    for latency in latencies:
        into.record(clock.time_ns() - latency)


def test_percentiles_are_none_without_measurements() -> None:
    assert quantiles([window(FakeClock())], QUANTILES) == (0, [0, 0, 0])
    assert quantiles([], QUANTILES) == (0, [0, 0, 0])


def test_small_latencies_are_exact() -> None:
    clock = FakeClock()
    measured = window(clock)
    record(clock, measured, *range(1, 101))
    assert quantiles([measured], QUANTILES) == (100, [100, 99, 50])
    assert quantiles([measured], (0.001,)) == (100, [1])


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=300), st.floats(0.001, 1.0))
def test_every_quantile_is_right_within_half_a_percent(latencies: list[int], quantile: float) -> None:
    clock = FakeClock()
    measured = window(clock)
    record(clock, measured, *latencies)
    total, (value,) = quantiles([measured], (quantile,))
    ordered = sorted(latencies)
    exact = ordered[max(0, -int(-quantile * len(ordered) // 1) - 1)]
    assert total == len(latencies)
    assert abs(value - exact) <= exact * 0.005


def test_a_clock_set_back_counts_as_no_time_at_all() -> None:
    clock = FakeClock()
    measured = window(clock)
    measured.record(clock.time_ns() + 10**12)
    assert quantiles([measured], QUANTILES) == (1, [0, 0, 0])


def test_windows_are_merged() -> None:
    clock = FakeClock()
    one, other = window(clock), window(clock)
    record(clock, one, 10, 10, 10)
    record(clock, other, 200)
    assert quantiles([one, other], QUANTILES) == (4, [200, 200, 10])


def test_the_window_slides_by_halves() -> None:
    clock = FakeClock()
    measured = window(clock, 60.0)
    record(clock, measured, 1)
    clock.advance(29.0)
    assert quantiles([measured], QUANTILES)[0] == 1
    clock.advance(2.0)
    record(clock, measured, 2)
    assert quantiles([measured], QUANTILES) == (2, [2, 2, 1])
    clock.advance(29.5)
    assert quantiles([measured], QUANTILES) == (1, [2, 2, 2])
    clock.advance(30.0)
    assert quantiles([measured], QUANTILES)[0] == 0


def test_a_message_after_a_long_silence_finds_nothing_old() -> None:
    clock = FakeClock()
    measured = window(clock, 60.0)
    record(clock, measured, 1, 1)
    clock.advance(100_000.0)
    record(clock, measured, 7)
    assert quantiles([measured], QUANTILES) == (1, [7, 7, 7])
    clock.advance(29.0)
    assert quantiles([measured], QUANTILES) == (1, [7, 7, 7])


def test_a_clock_set_back_begins_anew() -> None:
    times = [10**18]

    class Clock(FakeClock):
        def time_ns(self) -> int:
            return times[0]

    measured = LatencyWindow(Clock(), 60.0, QUANTILES)
    measured.record(times[0] - 5)
    times[0] -= 3600 * 10**9
    measured.record(times[0] - 9)
    assert quantiles([measured], QUANTILES) == (1, [9, 9, 9])


def test_memory_is_bounded_whatever_comes() -> None:
    clock = FakeClock()
    measured = window(clock)
    chance = random.Random(1)
    record(clock, measured, *(chance.randrange(1 << chance.randrange(1, 63)) for _ in range(50_000)))
    assert len(measured.counts()) < 8000
    assert sum(measured.counts().values()) == 50_000


class TestMeasuredChannel:
    def test_latency_is_measured_from_publication_to_finish(self) -> None:
        clock = FakeClock()
        broker = Broker(clock, latency_percentiles=(0.5,), latency_window=60.0)
        consumer = Consumer(rdy=1)
        channel = broker.subscribe("t", "c", consumer.subscriber)
        assert isinstance(channel, MeasuredChannel)
        broker.publish("t", [b"x"])
        clock.advance(2.0)
        assert not channel.finish(consumer.subscriber, [consumer.id_of(b"x")])
        total, (value,) = quantiles([channel.latency], channel.latency.quantiles)
        assert (total, value) == (1, pytest.approx(2e9, rel=0.005))
        assert consumer.subscriber.finish_count == 1

    def test_a_failed_or_requeued_message_is_not(self) -> None:
        clock = FakeClock()
        broker = Broker(clock, latency_percentiles=(0.5,))
        consumer = Consumer(rdy=1)
        channel = broker.subscribe("t", "c", consumer.subscriber)
        assert isinstance(channel, MeasuredChannel)
        broker.publish("t", [b"x"])
        clock.advance(1.0)
        channel.requeue(consumer.subscriber, consumer.id_of(b"x"), 0)
        assert channel.finish(consumer.subscriber, [b"0" * 16])
        assert not channel.latency.counts()

    def test_nothing_is_measured_without_percentiles(self) -> None:
        broker = Broker(FakeClock())
        assert not isinstance(broker.topic("t").channel("c"), MeasuredChannel)
