from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.spark.source.offsets import Amount, Limits, Offset, Position, admitted, amount, between, unread
from nsq.spark.wal.names import Segment

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
