from __future__ import annotations

from nsq.tables import table


def test_a_table_has_numbers_to_the_right() -> None:
    assert table(["name", "rows", "age"], [["a", 1, None], ["longer", "12,345", "3.0 s"]]).splitlines() == [
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


def test_a_name_cannot_reach_the_terminal_as_a_command() -> None:
    assert table(["a"], [["x\x1b[2J\u009b"]]).splitlines()[1] == "x?[2J?"
