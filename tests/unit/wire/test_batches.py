from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.wire import commands
from nsq.wire.commands import batches


def test_batches_are_bounded_and_keep_the_order() -> None:
    records = [b"x" * size for size in (1, 300_000, 300_000, 600_000, 2)]
    assert [[len(record) for record in batch] for batch in batches(records, len)] == [
        [1, 300_000],
        [300_000],
        [600_000],
        [2],
    ]
    assert [len(batch) for batch in batches([b"x"] * 25_000, len)] == [10_000, 10_000, 5_000]


@pytest.mark.parametrize(
    ("sizes", "most_messages", "most_bytes", "made"),
    [
        ([1] * 7, 3, 1000, [[1] * 3, [1] * 3, [1]]),
        ([40] * 3, 100, 4 + 2 * 44, [[40, 40], [40]]),
        ([1, 100, 1], 100, 50, [[1], [100], [1]]),
        ([], 3, 1000, []),
    ],
    ids=["many messages", "the next does not fit", "a large one travels alone", "nothing"],
)
def test_a_batch_ends_at_its_bounds(
    sizes: list[int], most_messages: int, most_bytes: int, made: list[list[int]]
) -> None:
    bodies = [b"x" * size for size in sizes]
    found = batches(bodies, len, most_messages, most_bytes)
    assert [[len(body) for body in batch] for batch in found] == made


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=40), st.integers(1, 8), st.integers(1, 200))
def test_nothing_is_lost_and_no_limit_is_passed(
    bodies: list[bytes], most_messages: int, most_bytes: int
) -> None:
    made = list(batches(bodies, len, most_messages, most_bytes))
    assert [body for batch in made for body in batch] == bodies
    for batch in made:
        assert 1 <= len(batch) <= most_messages
        assert len(batch) == 1 or len(commands.pack_bodies(batch)) <= most_bytes
