"""How many may go, and when."""

from __future__ import annotations

import pytest

from nsq.rate import Rate


def test_it_begins_with_one_and_never_saves_more_than_the_burst() -> None:
    rate = Rate(10.0, 1.0, now=0.0)
    assert [rate.take(5, 0.0), rate.take(5, 0.0), rate.take(5, 0.25)] == [1, 0, 2]
    assert rate.pause() == pytest.approx(0.05)
    assert rate.take(100, 60.0) == 10


@pytest.mark.parametrize("per_second", [0, -5, 0.0])
def test_no_rate_is_no_limit(per_second: float) -> None:
    rate = Rate(per_second, 1.0, now=0.0)
    assert (rate.take(100, 0.0), rate.take_all(100, 0.0), rate.pause()) == (100, True, 0.0)


@pytest.mark.parametrize(
    ("per_second", "burst"), [(50.0, 0.1), (3.0, 0.1), (1 / 60, 0.1), (1000.0, 1.0), (7.3, 1.0)]
)
def test_on_average_and_in_each_second_it_keeps_to_the_rate(per_second: float, burst: float) -> None:
    rate, now, went = Rate(per_second, burst, now=0.0), 0.0, []
    while now < 20 / per_second:
        went += [now] * rate.take(3, now)
        now += rate.pause() or 1e-6
    assert len(went) == pytest.approx(20, abs=1)
    for begin in went:
        most = per_second * 1.0 + max(1.0, per_second * burst) + 1
        assert sum(begin <= each < begin + 1.0 for each in went) <= most


def test_a_batch_larger_than_the_burst_goes_whole_and_the_next_one_waits() -> None:
    rate = Rate(10.0, 0.1, now=0.0)
    assert rate.take_all(30, 0.0)
    assert rate.pause() == pytest.approx(3.0)
    assert not rate.take_all(1, 2.9)
    assert rate.take_all(1, 3.0)


def test_a_change_takes_effect_at_once() -> None:
    rate = Rate(1.0, 0.1, now=0.0)
    assert rate.take(1, 0.0) == 1
    rate.per_second = 100.0
    assert rate.pause() == pytest.approx(0.01)
    assert rate.take(1, 0.01) == 1
    rate.per_second = 0.0
    assert rate.take(7, 0.01) == 7
