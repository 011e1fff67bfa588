from __future__ import annotations

import json

import pytest

from nsq.errors import WalForeign
from nsq.spark.source.offsets import Offset, Position, Slice, between, unread
from nsq.spark.wal.names import Segment

A1, A2, A3 = (Segment("a", number, 100, 1000) for number in (1, 2, 3))
B1 = Segment("b", 1, 10, 50)
INSIDE = Offset("w", {"a": Position(1, 10)})
LATE = Offset("w", {"a": Position(3)}, {"a": Position(1)})


def test_an_offset_survives_the_checkpoint() -> None:
    offset = Offset("w", {"b": Position(2, 1500), "a": Position(7)}, {"b": Position(2)})
    given = json.loads(json.dumps(offset.to_json()))
    assert given == {"wal": "w", "at": {"a": 7, "b": [2, 1500]}, "from": {"b": 3}}
    assert Offset.of_json(given) == offset


def test_the_same_offset_is_the_same_text() -> None:
    one = Offset("w", {"a": Position(1), "b": Position(2)})
    other = Offset("w", {"b": Position(2), "a": Position(1)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_the_first_offset_has_no_positions() -> None:
    assert Offset("w").to_json() == {"wal": "w", "at": {}}


@pytest.mark.parametrize(
    "given",
    [None, 7, {}, {"wal": 1, "at": {}}, {"wal": "w", "at": {"a": "7"}}, {"wal": "w", "at": {"a": [1, 2, 3]}}],
)
def test_an_offset_of_another_source_is_refused(given: object) -> None:
    with pytest.raises(WalForeign, match="of this source"):
        Offset.of_json(given)


def test_everything_is_unread_at_the_beginning() -> None:
    assert unread(Offset("w"), [A1, B1]) == [Slice(A1, 0, 100), Slice(B1, 0, 10)]


def test_rows_before_an_offset_are_not_unread() -> None:
    read = Offset("w", {"a": Position(1, 40)})
    assert unread(read, [A1, A2, A3]) == [Slice(A2, 40, 100), Slice(A3, 0, 100)]


def test_a_slice_weighs_its_share() -> None:
    assert (Slice(A1, 40, 100).rows, Slice(A1, 40, 100).bytes) == (60, 600)


@pytest.mark.parametrize(
    ("start", "end", "segments", "slices", "lost"),
    [
        (
            Offset("w", {"a": Position(1, 40)}),
            Offset("w", {"a": Position(2, 30), "b": Position(1)}, {"b": Position(0)}),
            [A1, A2, A3, B1], [Slice(A2, 40, 100), Slice(A3, 0, 30), Slice(B1, 0, 10)], [],
        ),
        # Within one segment, and to the end of one.
        (INSIDE, Offset("w", {"a": Position(1, 30)}), [A2], [Slice(A2, 10, 30)], []),
        (INSIDE, Offset("w", {"a": Position(2)}), [A2, A3], [Slice(A2, 10, 100)], []),
        (INSIDE, INSIDE, [A1, A2], [], []),
        # Missing segments are named, but not those from before the checkpoint.
        (Offset("w"), Offset("w", {"a": Position(3)}), [A2], [Slice(A2, 0, 100)], [("a", 1), ("a", 3)]),
        (Offset("w"), LATE, [A2, A3], [Slice(A2, 0, 100), Slice(A3, 0, 100)], []),
        (Offset("w"), LATE, [A3], [Slice(A3, 0, 100)], [("a", 2)]),
    ],
)  # fmt: skip
def test_a_batch_is_what_lies_between_two_offsets(
    start: Offset, end: Offset, segments: list[Segment], slices: list[Slice], lost: list[tuple[str, int]]
) -> None:
    assert between(start, end, segments) == (slices, lost)
