from __future__ import annotations

import json

import pytest

from nsq.errors import WalForeign
from nsq.spark.source.offsets import Offset, Position, Slice, between, unread
from nsq.spark.wal.names import Segment

A1, A2, A3 = (Segment("a", number, 100, 1000) for number in (1, 2, 3))
B1 = Segment("b", 1, 10, 50)


def test_an_offset_survives_the_checkpoint() -> None:
    offset = Offset("w", {"b": Position(2, 1500), "a": Position(7)}, {"b": Position(2)})
    told = json.loads(json.dumps(offset.to_json()))
    assert told == {"wal": "w", "at": {"a": 7, "b": [2, 1500]}, "from": {"b": 3}}
    assert Offset.of_json(told) == offset


def test_the_same_offset_is_the_same_text() -> None:
    one = Offset("w", {"a": Position(1), "b": Position(2)})
    other = Offset("w", {"b": Position(2), "a": Position(1)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_the_first_offset_has_no_positions() -> None:
    assert Offset("w").to_json() == {"wal": "w", "at": {}}


@pytest.mark.parametrize(
    "told",
    [None, 7, {}, {"wal": 1, "at": {}}, {"wal": "w", "at": {"a": "7"}}, {"wal": "w", "at": {"a": [1, 2, 3]}}],
)
def test_an_offset_of_another_source_is_refused(told: object) -> None:
    with pytest.raises(WalForeign, match="of this source"):
        Offset.of_json(told)


def test_everything_is_unread_at_the_beginning() -> None:
    assert unread(Offset("w"), [A1, B1]) == [Slice(A1, 0, 100), Slice(B1, 0, 10)]


def test_rows_before_an_offset_are_not_unread() -> None:
    read = Offset("w", {"a": Position(1, 40)})
    assert unread(read, [A1, A2, A3]) == [Slice(A2, 40, 100), Slice(A3, 0, 100)]


def test_a_slice_weighs_its_share() -> None:
    assert (Slice(A1, 40, 100).rows, Slice(A1, 40, 100).bytes) == (60, 600)


def test_a_batch_is_what_lies_between_two_offsets() -> None:
    start = Offset("w", {"a": Position(1, 40)})
    end = Offset("w", {"a": Position(2, 30), "b": Position(1)}, {"b": Position(0)})
    assert between(start, end, [A1, A2, A3, B1]) == (
        [Slice(A2, 40, 100), Slice(A3, 0, 30), Slice(B1, 0, 10)],
        [],
    )


def test_a_batch_may_lie_within_one_segment() -> None:
    start, end = Offset("w", {"a": Position(1, 10)}), Offset("w", {"a": Position(1, 30)})
    assert between(start, end, [A2]) == ([Slice(A2, 10, 30)], [])


def test_a_batch_may_end_with_the_segment_in_which_it_begins() -> None:
    start, end = Offset("w", {"a": Position(1, 10)}), Offset("w", {"a": Position(2)})
    assert between(start, end, [A2, A3]) == ([Slice(A2, 10, 100)], [])


def test_equal_offsets_make_no_batch() -> None:
    offset = Offset("w", {"a": Position(1, 10)})
    assert between(offset, offset, [A1, A2]) == ([], [])


def test_missing_segments_are_named() -> None:
    end = Offset("w", {"a": Position(3)})
    assert between(Offset("w"), end, [A2]) == ([Slice(A2, 0, 100)], [("a", 1), ("a", 3)])


def test_segments_from_before_the_checkpoint_are_not_missed() -> None:
    end = Offset("w", {"a": Position(3)}, {"a": Position(1)})
    assert between(Offset("w"), end, [A2, A3]) == ([Slice(A2, 0, 100), Slice(A3, 0, 100)], [])
    assert between(Offset("w"), end, [A3]) == ([Slice(A3, 0, 100)], [("a", 2)])
