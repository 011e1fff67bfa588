from __future__ import annotations

import pytest

from nsq.tables import table


@pytest.mark.parametrize(
    ("head", "rows", "shown"),
    [
        # Numbers stand to the right, and words to the left.
        (
            ["name", "rows", "age"],
            [["a", 1, None], ["longer", "12,345", "3.0 s"]],
            ["name      rows    age", "a            1      -", "longer  12,345  3.0 s"],
        ),
        (["a", "b"], [[True, "x"], [False, "longer"]], ["a    b", "yes  x", "no   longer"]),
        # Dates, names and nothing are no numbers.
        (
            ["window (UTC)", "reader", "read by"],
            [["2026-03-01 07:00:00", "0c2e", ""], ["2026-03-01 07:01:00", "7", "here"]],
            [
                "window (UTC)         reader  read by",
                "2026-03-01 07:00:00  0c2e",
                "2026-03-01 07:01:00  7       here",
            ],
        ),
        (["a", "b"], [], ["a  b"]),
        # A name cannot reach the terminal as a command.
        (["a"], [["x\x1b[2J\u009b"]], ["a", "x?[2J?"]),
    ],
    ids=["numbers", "truth", "dates", "empty", "control characters"],
)
def test_a_table_is_aligned_and_harmless(head: list[str], rows: list[list[object]], shown: list[str]) -> None:
    assert table(head, rows).splitlines() == shown
