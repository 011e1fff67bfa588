from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq.spark.source.offsets import Slice, tasks
from nsq.spark.wal.names import Segment

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
