from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import SegmentLost
from nsq.spark.rows import TYPES, Field
from nsq.spark.source.offsets import ALWAYS, Slice
from nsq.spark.source.reading import Portion, read
from nsq.spark.wal import manifest, open_wal
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


@pytest.mark.parametrize(
    ("since", "until", "wanted"), [(-(2**63), 9, [1, 2, 3, 4]), (2, 4, [2, 3]), (2, 2**63 - 1, [2, 3, 4])]
)
def test_a_slice_is_cut_by_time(wal: Wal, since: int, until: int, wanted: list[int]) -> None:
    times = ALWAYS.narrowed(10**18 + since if since > 0 else None, 10**18 + until)
    portion = Portion(wal.location, (Slice(sealed(wal, 6), 1, 5),), True, times)
    found = [batch.column("body").to_pylist() for batch in read(portion, BODY)]
    assert [[int(body) for body in bodies] for bodies in found] == [wanted]


def test_a_column_is_read_without_the_others(wal: Wal) -> None:
    """Damage in a body is seen by those who read bodies."""
    segment = sealed(wal, 50)
    path = Path(wal.location) / manifest.segment_name("receiver", 1)
    data = path.read_bytes()
    at = data.rindex(b"49")
    path.write_bytes(data[:at] + b"94" + data[at + 2 :])
    portion = Portion(wal.location, (Slice(segment, 0, 50),), True)
    (batch,) = read(portion, [Field("attempts", "int"), Field("timestamp", "timestamp")])
    assert batch.column("attempts").to_pylist() == [2] * 50
    with pytest.raises(SegmentLost, match="does not match its checksum"):
        list(read(portion, BODY))
