from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq.spark.sink.task import packs
from nsq.wire import commands


def packed(bodies: list[bytes], most_messages: int, most_bytes: int) -> list[list[bytes]]:
    return list(packs(bodies, most_messages, most_bytes))


def test_a_pack_is_full_at_its_number_of_messages() -> None:
    made = packed([b"x"] * 7, 3, 1000)

    assert [len(pack) for pack in made] == [3, 3, 1]


def test_a_pack_is_full_when_the_next_body_does_not_fit() -> None:
    made = packed([b"x" * 40] * 3, 100, 4 + 2 * 44)

    assert [len(pack) for pack in made] == [2, 1]


def test_a_body_that_is_larger_than_a_pack_travels_alone() -> None:
    made = packed([b"1", b"x" * 100, b"2"], 100, 50)

    assert made == [[b"1"], [b"x" * 100], [b"2"]]


def test_no_bodies_are_no_pack() -> None:
    assert packed([], 3, 1000) == []


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=40), st.integers(1, 8), st.integers(1, 200))
def test_nothing_is_lost_and_no_limit_is_passed(
    bodies: list[bytes], most_messages: int, most_bytes: int
) -> None:
    made = packed(bodies, most_messages, most_bytes)

    assert [body for pack in made for body in pack] == bodies
    for pack in made:
        assert 1 <= len(pack) <= most_messages
        assert len(pack) == 1 or len(commands.pack_bodies(pack)) <= most_bytes
