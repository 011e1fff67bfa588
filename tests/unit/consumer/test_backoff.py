from __future__ import annotations

import pytest

from nsq.consumer.rdy import Backoff, Outcome, exponential

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


def failed(backoff: Backoff, times: int) -> float:
    """The moment at which that many failures, each after the wait of the one before, are over."""
    now = 0.0
    for _ in range(times):
        assert backoff.outcome(FAILURE, now)
        assert backoff.until is not None
        now = backoff.until
        assert backoff.expire(now)
    return now


class TestStrategies:
    def test_exponential_waits_double_with_each_level(self) -> None:
        wait = exponential(1.0)
        assert [wait(level) for level in range(1, 8)] == [2, 4, 8, 16, 32, 64, 128]
        assert exponential(0.25)(3) == 2.0

    def test_full_jitter_waits_for_anything_up_to_the_exponential_time(self) -> None:
        assert [exponential(1.0, lambda: 0.5)(level) for level in (1, 2, 3)] == [1, 2, 4]
        assert exponential(1.0, lambda: 0.0)(9) == 0.0

    def test_no_level_is_too_high_for_a_float(self) -> None:
        assert exponential(1.0)(100_000) == 2.0**62


class TestOrdinaryTimes:
    @pytest.mark.parametrize("outcome", [SUCCESS, NEUTRAL])
    def test_without_a_failure_nothing_changes(self, outcome: Outcome) -> None:
        backoff = Backoff(exponential(1.0), 120.0)
        assert not backoff.outcome(outcome, 0.0)
        assert not any([(backoff.level > 0), backoff.waiting, backoff.testing])


class TestAFailure:
    def test_a_failure_stops_delivery_for_a_while(self) -> None:
        backoff = Backoff(exponential(1.0), 120.0)
        assert backoff.outcome(FAILURE, 10.0)
        assert (backoff.level, backoff.until) == (1, 12.0)
        assert backoff.waiting
        assert not backoff.testing

    def test_after_the_wait_one_message_tests_the_waters(self) -> None:
        backoff = Backoff(exponential(1.0), 120.0)
        backoff.outcome(FAILURE, 10.0)
        assert not backoff.expire(11.999)
        assert backoff.waiting
        assert backoff.expire(12.0)
        assert backoff.testing
        assert not backoff.expire(12.0)

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_during_the_wait_no_outcome_counts(self, outcome: Outcome) -> None:
        backoff = Backoff(exponential(1.0), 120.0)
        backoff.outcome(FAILURE, 0.0)
        assert not backoff.outcome(outcome, 1.0)
        assert (backoff.level, backoff.until) == (1, 2.0)


class TestTestingTheWaters:
    def test_a_success_lowers_the_level_by_one_until_the_backoff_is_over(self) -> None:
        backoff = Backoff(exponential(1.0), 120.0)
        now = failed(backoff, 3)
        for level in (2, 1):
            assert backoff.outcome(SUCCESS, now)
            assert (backoff.level, backoff.until) == (level, now + 2**level)
            now += 2**level
            backoff.expire(now)
        assert backoff.outcome(SUCCESS, now)
        assert (backoff.level, backoff.until) == (0, None)
        assert not (backoff.level > 0)

    def test_a_requeue_without_backoff_repeats_the_wait(self) -> None:
        backoff = Backoff(exponential(1.0), 120.0)
        now = failed(backoff, 2)
        assert backoff.outcome(NEUTRAL, now)
        assert (backoff.level, backoff.until) == (2, now + 4)

    def test_failures_climb_to_the_longest_wait_and_no_further(self) -> None:
        backoff = Backoff(exponential(1.0), 120.0)
        levels = []
        now = 0.0
        for _ in range(9):
            backoff.outcome(FAILURE, now)
            assert backoff.until is not None
            levels.append((backoff.level, backoff.until - now))
            now = backoff.until
            backoff.expire(now)
        assert levels == [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32)] + [(6, 64)] * 4


class TestLimits:
    def test_a_longest_wait_of_zero_switches_backoff_off(self) -> None:
        backoff = Backoff(exponential(1.0), 0.0)
        assert not backoff.outcome(FAILURE, 0.0)
        assert not (backoff.level > 0)

    def test_a_strategy_that_wants_more_is_cut_off(self) -> None:
        backoff = Backoff(lambda level: 1000.0, 120.0)
        backoff.outcome(FAILURE, 0.0)
        assert (backoff.level, backoff.until) == (1, 120.0)

    def test_a_strategy_is_asked_for_steps_from_one_up(self) -> None:
        asked: list[int] = []

        def strategy(step: int) -> float:
            asked.append(step)
            return 1.0

        backoff = Backoff(strategy, 120.0)
        now = failed(backoff, 3)
        backoff.outcome(SUCCESS, now)
        assert set(asked) == {1, 2, 3}
        assert asked[-1] == 2
