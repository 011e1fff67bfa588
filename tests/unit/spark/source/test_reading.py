from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import SegmentLost
from nsq.spark.rows import TYPES, Field
from nsq.spark.source.offsets import Slice
from nsq.spark.source.reading import Portion, published, read
from nsq.spark.wal.directory import DirectoryWal
from nsq.spark.wal.names import Segment
from nsq.spark.wal.records import stored

EVERYTHING = [Field(name, kind) for name, kind in TYPES.items()]
BODY = [Field("body", "binary")]


@pytest.fixture
def wal(tmp_path: Path) -> DirectoryWal:
    made = DirectoryWal(tmp_path / "wal", fsync=False)
    made.prepare()
    return made


def sealed(wal: DirectoryWal, *batches: int) -> Segment:
    """A segment of batches of so many rows, which are numbered through."""
    with wal.log("receiver") as log:
        start = 0
        for count in batches:
            numbers = range(start, start + count)
            ids, texts = [b"%016d" % one for one in numbers], [b"%d" % one for one in numbers]
            log.append(
                stored(
                    "orders", ids, [10**18 + one for one in numbers], [2] * count, ["a:4150"] * count, texts
                )
            )
            start += count
        segment = log.roll()
    assert segment is not None
    return segment


def numbers(wal: DirectoryWal, *slices: Slice, strict: bool = True) -> list[int]:
    batches = read(Portion(wal.location, slices, strict), BODY)
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


@pytest.mark.parametrize(("first", "end"), [(0, 7), (0, 2), (1, 3), (2, 5), (3, 6), (5, 7), (6, 6)])
def test_a_task_reads_a_part_of_a_segment(wal: DirectoryWal, first: int, end: int) -> None:
    assert numbers(wal, Slice(sealed(wal, 3, 1, 3), first, end)) == list(range(first, end))


def test_columns_may_be_reordered_and_not_nullable(wal: DirectoryWal) -> None:
    columns = [Field("body", "binary", nullable=False), Field("topic", "string")]
    (batch,) = read(Portion(wal.location, (Slice(sealed(wal, 1), 0, 1),), True), columns)
    assert [(field.name, field.nullable) for field in batch.schema] == [("body", False), ("topic", True)]


def test_a_lost_segment_is_named(wal: DirectoryWal) -> None:
    segment = sealed(wal, 3)
    wal.delete([segment])
    with pytest.raises(SegmentLost, match=r"receiver/000001-3-3\.arrow .*; failOnDataLoss=false goes on"):
        numbers(wal, Slice(segment, 0, 3))


def test_a_lost_segment_is_left_out_with_failondataloss_false(
    wal: DirectoryWal, caplog: pytest.LogCaptureFixture
) -> None:
    segment = sealed(wal, 3)
    lost = Segment("gone", 1, 5, 5)
    assert numbers(wal, Slice(lost, 0, 5), Slice(segment, 0, 3), strict=False) == [0, 1, 2]
    assert "gone/000001-5-5.arrow" in caplog.text


def test_the_sound_part_of_a_damaged_segment_is_read_with_failondataloss_false(
    wal: DirectoryWal, caplog: pytest.LogCaptureFixture
) -> None:
    segment = sealed(wal, 100, 100)
    path = wal.path(segment)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - len(content) // 4])
    assert numbers(wal, Slice(segment, 0, 200), strict=False) == list(range(100))
    assert "100 of 200 rows" in caplog.text


def test_the_time_of_a_slices_first_message_can_be_read(wal: DirectoryWal) -> None:
    segment = sealed(wal, 3, 3)
    assert published(wal, Slice(segment, 4, 6)) == pytest.approx(10**9 + 4e-9)
    wal.delete([segment])
    assert published(wal, Slice(segment, 4, 6)) is None
