from __future__ import annotations

import pytest

from benchmarks.comparison import Bar, Comparison, Figure, Outcome, Verdict, beside_old

AT_LEAST, AT_MOST = Bar("nsq", "other", 2), Bar("nsq", "other", 0.2, at_most=True)


def judged(
    measured: dict[str, list[float]], *bars: Bar, absent: dict[str, str] | None = None
) -> list[Verdict]:
    """Judge an invented comparison: its rounds by column."""
    contenders = {column: lambda scale: [scale] for column in measured}
    figures = [Figure("", "msg/s")]
    comparison = Comparison(
        name="load", figures=figures, contenders=contenders, bars=bars, absent=absent or {}
    )
    rounds = {column: [[value] for value in values] for column, values in measured.items()}
    return Outcome(comparison, rounds).judge()


@pytest.mark.parametrize(
    ("bar", "own", "ok", "failed"),
    [
        *[(AT_LEAST, own, True, False) for own in (210.0, 200.0)],
        (AT_LEAST, 185.0, False, False),
        (AT_LEAST, 179.0, False, True),
        *[(AT_MOST, own, True, False) for own in (10.0, 20.0)],
        (AT_MOST, 22.0, False, False),
        (AT_MOST, 23.0, False, True),
    ],
)
def test_a_bar_is_missed_by_more_than_a_tenth_before_it_fails(
    bar: Bar, own: float, ok: bool, failed: bool
) -> None:
    (verdict,) = judged({"nsq": [own], "other": [100.0]}, bar)

    assert (verdict.ok, verdict.failed) == (ok, failed)


def test_ratios_are_of_the_same_round() -> None:
    rounds = {"nsq": [100.0, 10.0, 30.0], "other": [50.0, 5.0, 10.0]}
    (verdict,) = judged(rounds, Bar("nsq", "other", 1))
    assert verdict.ratio == (2.0, 2.0, 3.0)


def test_each_bar_of_a_column_has_a_verdict_and_a_client_without_results_has_none() -> None:
    bars = Bar("nsq", "one", 2), Bar("nsq", "two", 5), Bar("nsq", "gone", 2)
    verdicts = judged({"nsq": [30.0], "one": [10.0], "two": [10.0]}, *bars, absent={"gone": "not installed"})
    assert [verdict.ok for verdict in verdicts] == [True, False]


@pytest.mark.parametrize(("unit", "ratio", "at_most"), [("msg/s", 0.95, False), ("ms", 1.05, True)])
def test_our_columns_are_compared_with_those_of_older_code(unit: str, ratio: float, at_most: bool) -> None:
    comparison = Comparison(
        name="load",
        figures=[Figure("", unit)],
        contenders={"nsqd": lambda scale: [scale], "minimal": lambda _: [1.0]},
        bars=[Bar("nsqd", "minimal", 0.5)],
    )
    beside = beside_old(comparison, lambda measure: lambda scale: [10 * measure(scale)[0]])

    assert {column: measure(3.0) for column, measure in beside.contenders.items()} == {
        "nsqd": [3.0],
        "nsqd, old": [30.0],
    }
    assert beside.bars == [Bar("nsqd", "nsqd, old", ratio, at_most=at_most)]
