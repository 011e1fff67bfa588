from __future__ import annotations

from nsq.daemons.nsqd.disk.segments import Position, Segment, Segments


def files(*ends: tuple[int, int]) -> Segments:
    first, *others = [Segment(number, end) for number, end in ends]
    segments = Segments(first, 10)
    for segment in others:
        segments.add(segment)
    return segments


def test_the_last_file_is_the_one_written_to() -> None:
    assert files((3, 50), (4, 20)).written == (4, 20, 10)


def test_the_file_after_another_may_be_some_numbers_on() -> None:
    segments = files((3, 50), (4, 20), (9, 0))
    assert [segments.after(number) for number in (3, 4, 9)] == [segments[4], segments[9], None]


def test_the_size_behind_a_position_counts_every_file() -> None:
    segments = files((3, 50), (4, 20), (9, 5))
    assert segments.size_behind(Position(3, 10, 0)) == 65
    assert segments.size_behind(Position(4, 20, 0)) == 5
    assert segments.size_behind(Position(9, 5, 0)) == 0


def test_a_removed_file_is_forgotten() -> None:
    segments = files((3, 50), (4, 20))
    assert [segment.number for segment in segments.before(4)] == [3]
    segments.remove(3)
    assert [segment.number for segment in segments] == [4]
