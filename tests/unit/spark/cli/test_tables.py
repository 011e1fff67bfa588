"""Text for people."""

from __future__ import annotations

import pytest

from nsq.spark.cli import size, span, table


def test_a_table_has_numbers_to_the_right() -> None:
    assert table(["name", "rows", "age"], [["a", 1, None], ["longer", 12345, "3.0 s"]]).splitlines() == [
        "name      rows    age",
        "a            1      -",
        "longer  12,345  3.0 s",
    ]


def test_words_stay_left_and_truth_is_yes() -> None:
    assert table(["a", "b"], [[True, "x"], [False, "longer"]]).splitlines() == [
        "a    b",
        "yes  x",
        "no   longer",
    ]


def test_dates_names_and_nothing_are_no_numbers() -> None:
    rows = [["2026-03-01 07:00:00", "0c2e", ""], ["2026-03-01 07:01:00", "7", "here"]]
    assert table(["window (UTC)", "reader", "read by"], rows).splitlines() == [
        "window (UTC)         reader  read by",
        "2026-03-01 07:00:00  0c2e",
        "2026-03-01 07:01:00  7       here",
    ]


def test_a_table_may_be_empty() -> None:
    assert table(["a", "b"], []) == "a  b"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (150 * 1024, "150 KiB"),
        (3 << 40, "3.0 TiB"),
        (9 << 50, "9216 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.5, "9.5 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_times(seconds: float, text: str) -> None:
    assert span(seconds) == text
