from __future__ import annotations

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


def packed(bodies: list[bytes], most_messages: int, most_bytes: int) -> list[list[bytes]]:
    return list(batches(bodies, len, most_messages, most_bytes))


def test_a_batch_is_full_at_its_number_of_messages() -> None:
    made = packed([b"x"] * 7, 3, 1000)

    assert [len(batch) for batch in made] == [3, 3, 1]


def test_a_batch_is_full_when_the_next_body_does_not_fit() -> None:
    made = packed([b"x" * 40] * 3, 100, 4 + 2 * 44)

    assert [len(batch) for batch in made] == [2, 1]


def test_a_body_that_is_larger_than_a_batch_travels_alone() -> None:
    made = packed([b"1", b"x" * 100, b"2"], 100, 50)

    assert made == [[b"1"], [b"x" * 100], [b"2"]]


def test_an_empty_list_makes_no_batch() -> None:
    assert packed([], 3, 1000) == []


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=40), st.integers(1, 8), st.integers(1, 200))
def test_nothing_is_lost_and_no_limit_is_passed(
    bodies: list[bytes], most_messages: int, most_bytes: int
) -> None:
    made = packed(bodies, most_messages, most_bytes)

    assert [body for batch in made for body in batch] == bodies
    for batch in made:
        assert 1 <= len(batch) <= most_messages
        assert len(batch) == 1 or len(commands.pack_bodies(batch)) <= most_bytes
