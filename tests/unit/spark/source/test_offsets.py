from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import WalForeign
from nsq.spark.source.offsets import (
    Amount,
    Limits,
    Offset,
    Position,
    Slice,
    admitted,
    amount,
    between,
    tasks,
    unread,
)
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


START = Offset("w")


@pytest.mark.parametrize(
    ("segments", "limits", "start", "at", "taken"),
    [
        (
            [Segment("a", 1, 10, 100), Segment("a", 2, 20, 200), Segment("b", 1, 5, 50)],
            Limits(), {}, {"a": Position(2), "b": Position(1)}, Amount(35, 350),
        ),
        ([Segment("a", 1, 10, 100)], Limits(rows=7), {}, {"a": Position(0, 7)}, Amount(7, 70)),
        # The next batch goes on inside the segment.
        (
            [Segment("a", 1, 10, 100)],
            Limits(rows=7), {"a": Position(0, 7)}, {"a": Position(1)}, Amount(3, 30),
        ),
        ([Segment("a", 1, 10, 1000)], Limits(bytes=250), {}, {"a": Position(0, 2)}, Amount(2, 200)),
        # Receivers share a limit, and leave each other the rest.
        (
            [Segment("big", 1, 1000, 0), Segment("mid", 1, 40, 0), Segment("small", 1, 4, 0)],
            Limits(rows=100), {},
            {"big": Position(0, 56), "mid": Position(1), "small": Position(1)}, Amount(100, 0),
        ),
    ],
)  # fmt: skip
def test_a_batch_takes_all_up_to_its_limits(
    segments: list[Segment],
    limits: Limits,
    start: dict[str, Position],
    at: dict[str, Position],
    taken: Amount,
) -> None:
    end, found = admitted(Offset("w", start), segments, {one.receiver for one in segments}, limits)
    assert (dict(end.at), found) == (at, taken)


def test_a_row_larger_than_the_limit_comes_alone() -> None:
    end, taken = admitted(START, [Segment("a", 4, 3, 3000)], ["a"], Limits(bytes=10))
    assert (dict(end.at), taken) == ({"a": Position(3, 1)}, Amount(1, 1000))
    assert end.origins == {"a": Position(3)}


def test_the_first_offset_with_a_receiver_says_where_it_began() -> None:
    segments = [Segment("a", 5, 10, 0), Segment("a", 6, 10, 0)]
    first, _ = admitted(START, segments, ["a"], Limits(rows=10))
    assert first.origins == {"a": Position(4)}
    second, _ = admitted(first, segments, ["a"], Limits())
    assert second.origins == {}


def test_receivers_that_are_gone_are_forgotten_only_with_new_data() -> None:
    start = Offset("w", {"dead": Position(3), "idle": Position(2)})
    assert admitted(start, [], ["idle"], Limits()) == (start, Amount())
    end, _ = admitted(start, [Segment("new", 1, 1, 1)], ["idle", "new"], Limits())
    assert dict(end.at) == {"idle": Position(2), "new": Position(1)}


def test_a_receiver_whose_segments_are_not_deleted_yet_is_not_forgotten() -> None:
    start = Offset("w", {"dead": Position(3)})
    segments = [Segment("dead", 3, 5, 5), Segment("new", 1, 1, 1)]
    end, taken = admitted(start, segments, ["new"], Limits())
    assert (end.at["dead"], taken.rows) == (Position(3), 1)


@st.composite
def logs(draw: st.DrawFn) -> list[Segment]:
    found = []
    for receiver in draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1)):
        first = draw(st.integers(1, 5))
        for number in range(first, first + draw(st.integers(0, 4))):
            rows = draw(st.integers(1, 50))
            found.append(Segment(receiver, number, rows, rows * draw(st.integers(0, 20))))
    return sorted(found)


@given(
    segments=logs(),
    rows=st.none() | st.integers(1, 60),
    size=st.none() | st.integers(1, 500),
)
def test_batches_cover_the_log_exactly_once(
    segments: list[Segment], rows: int | None, size: int | None
) -> None:
    present = {segment.receiver for segment in segments}
    read, total, seen = START, 0, []
    while True:
        end, taken = admitted(read, segments, present, Limits(rows, size))
        if not taken.rows:
            assert end == read
            break
        assert rows is None or taken.rows <= rows
        assert size is None or taken.bytes <= size or taken.rows == 1
        slices, lost = between(read, end, segments)
        assert lost == []
        assert amount(slices).rows == taken.rows
        seen += [(piece.segment[:2], row) for piece in slices for row in range(piece.first, piece.end)]
        read, total = end, total + taken.rows
    assert unread(read, segments) == []
    assert total == sum(segment.rows for segment in segments) == len(set(seen))


def test_tightening_only_tightens() -> None:
    assert Limits(10, 100).tightened(5) == Limits(5, 100)
    assert Limits(10, 100).tightened(500) == Limits(10, 100).tightened(None) == Limits(10, 100)
    assert Limits().tightened(5) == Limits(5, None)


def test_a_limit_is_reached_by_rows_or_by_bytes() -> None:
    assert [Limits(10, 1000).reached(one) for one in (Amount(9, 999), Amount(10, 1), Amount(1, 1000))] == [
        False, True, True,
    ]  # fmt: skip
    assert not Limits().reached(Amount(10**9, 10**12))


MIB = 1 << 20


def whole(number: int, rows: int, size: int) -> Slice:
    return Slice(Segment("a", number, rows, size), 0, rows)


def test_a_small_batch_is_one_task() -> None:
    slices = [whole(1, 10, 100), whole(2, 10, 100)]
    assert tasks(slices, 32 * MIB, 1) == [slices]


def test_full_segments_are_tasks_of_their_own_and_are_not_chipped() -> None:
    slices = [whole(number, 1000 + number, 32 * MIB + 999 * number) for number in range(1, 6)]
    assert tasks(slices, 32 * MIB, 1) == [[piece] for piece in slices]


def test_a_large_segment_is_cut() -> None:
    (segment,) = slices = [whole(1, 1000, 100 * MIB)]
    cut = tasks(slices, 25 * MIB, 1)
    assert [task[0][1:] for task in cut] == [(0, 250), (250, 500), (500, 750), (750, 1000)]
    assert {task[0].segment for task in cut} == {segment.segment}


def test_a_minimum_of_tasks_is_met_if_there_are_enough_rows() -> None:
    assert len(tasks([whole(1, 10, 100)], 32 * MIB, 4)) == 4
    assert len(tasks([whole(1, 3, 100)], 32 * MIB, 4)) == 3


def test_rows_without_bytes_are_shared_too() -> None:
    assert [sum(piece.rows for piece in task) for task in tasks([whole(1, 10, 0)], MIB, 2)] == [5, 5]


@given(
    shapes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60), st.integers(0, 3000)), max_size=8),
    target=st.integers(1, 20_000),
    least=st.integers(1, 7),
)
def test_tasks_hold_every_row_once_and_in_order(
    shapes: list[tuple[int, int, int]], target: int, least: int
) -> None:
    slices = [
        Slice(Segment("a", number, skipped + rows, size), skipped, skipped + rows)
        for number, (skipped, rows, size) in enumerate(shapes, 1)
    ]
    cut = tasks(slices, target, least)
    got = [
        (piece.segment.number, row) for task in cut for piece in task for row in range(piece.first, piece.end)
    ]
    assert got == [(piece.segment.number, row) for piece in slices for row in range(piece.first, piece.end)]
    assert all(cut)
    assert all(piece.rows for task in cut for piece in task)
