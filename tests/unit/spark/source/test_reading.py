from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import SegmentLost
from nsq.spark.rows import TYPES, Field
from nsq.spark.source.offsets import Slice
from nsq.spark.source.reading import Portion, published, read
from nsq.spark.wal import open_wal
from nsq.spark.wal.log import Wal
from nsq.spark.wal.names import Segment
from nsq.spark.wal.records import stored
from tests.integration.patience import eventually

EVERYTHING = [Field(name, kind) for name, kind in TYPES.items()]
BODY = [Field("body", "binary")]


@pytest.fixture
def wal(tmp_path: Path) -> Wal:
    made = open_wal(str(tmp_path / "wal"), fsync=False)
    made.prepare()
    return made


def sealed(wal: Wal, count: int) -> Segment:
    """A segment of so many rows, which are numbered."""
    numbers = range(count)
    ids, bodies = [b"%016d" % one for one in numbers], [b"%d" % one for one in numbers]
    times = [10**18 + one for one in numbers]
    log = wal.log("receiver")
    log.put(stored("orders", ids, times, [2] * count, ["a:4150"] * count, bodies), lambda: None)
    eventually(wal.segments, lambda found: len(found) == 1, 60.0)
    log.close()
    return wal.segments()[0]


def numbers(wal: Wal, *slices: Slice, strict: bool = True) -> list[int]:
    batches = read(Portion(wal.location, slices, strict), BODY)
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


@pytest.mark.parametrize(("first", "end"), [(0, 7), (0, 2), (1, 3), (2, 5), (3, 6), (5, 7), (6, 6)])
def test_a_task_reads_a_part_of_a_segment(wal: Wal, first: int, end: int) -> None:
    assert numbers(wal, Slice(sealed(wal, 7), first, end)) == list(range(first, end))


def test_columns_may_be_reordered_and_not_nullable(wal: Wal) -> None:
    columns = [Field("body", "binary", nullable=False), Field("topic", "string")]
    (batch,) = read(Portion(wal.location, (Slice(sealed(wal, 1), 0, 1),), True), columns)
    assert [(field.name, field.nullable) for field in batch.schema] == [("body", False), ("topic", True)]


def test_a_lost_segment_is_named(wal: Wal) -> None:
    segment = sealed(wal, 3)
    wal.delete([segment])
    with pytest.raises(SegmentLost, match=r"s/receiver/000000001\.arrow .*; failOnDataLoss=false goes on"):
        numbers(wal, Slice(segment, 0, 3))


def test_a_lost_segment_is_left_out_with_failondataloss_false(
    wal: Wal, caplog: pytest.LogCaptureFixture
) -> None:
    segment = sealed(wal, 3)
    lost = Segment("gone", 1, 5, 5)
    assert numbers(wal, Slice(lost, 0, 5), Slice(segment, 0, 3), strict=False) == [0, 1, 2]
    assert "s/gone/000000001.arrow" in caplog.text


def test_the_time_of_a_slices_first_message_can_be_read(wal: Wal) -> None:
    segment = sealed(wal, 6)
    assert published(wal, Slice(segment, 4, 6)) == pytest.approx(10**9 + 4e-9)
    wal.delete([segment])
    assert published(wal, Slice(segment, 4, 6)) is None
