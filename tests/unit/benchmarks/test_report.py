from __future__ import annotations

from benchmarks import report
from benchmarks.comparison import Bar

from .outcomes import outcome


def test_each_bar_has_a_line() -> None:
    measured = {"nsq": [300.0, 310.0, 320.0], "one": [100.0] * 3, "two": [200.0] * 3}
    bars = [Bar("nsq", "one", 3), Bar("nsq", "two", 0.5, at_most=True)]
    lines = report.table([outcome(measured, bars)]).splitlines()

    assert lines[2].split()[:3] == ["load", "nsq", "310"]
    assert "3.10 of one (3.00 … 3.20)" in lines[2]
    assert lines[2].endswith("≥ 3    ok")
    assert "1.55 of two" in lines[3]
    assert lines[3].endswith("≤ 0.5  short")


def test_who_is_absent_is_said_aloud() -> None:
    shown = report.table([outcome({"nsq": [1.0]}, absent={"pynsq": "pynsq is not installed: run it"})])

    assert "NOT RUN: pynsq is not installed: run it" in shown


def test_suites_are_apart_in_json() -> None:
    made = report.as_json({"client": [outcome({"nsq": [1.0, 3.0]})]}, {"cores": 2})

    assert made["client"]["cores"] == 2
    (comparison,) = made["client"]["comparisons"]
    assert comparison["figures"][0]["columns"]["nsq"]["median"] == 2.0
