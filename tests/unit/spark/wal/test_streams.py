from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from nsq.errors import SegmentLost
from nsq.spark.wal import records
from nsq.spark.wal import records as streams


def test_any_reader_of_arrow_streams_can_read_it(make: Any) -> None:
    one, two = make(3), make(2, start=3)
    data = streams.begin(one.schema) + bytes(streams.encode(one)) + bytes(streams.encode(two))
    assert ipc.open_stream(data).read_all() == pa.Table.from_batches([one, two])


def test_every_cut_leaves_the_batches_before_it(make: Any) -> None:
    head = streams.begin(make(0).schema)
    parts = [bytes(streams.encode(make(count))) for count in (1, 2, 3)]
    data = head + b"".join(parts)
    ends = [len(head) + sum(map(len, parts[:count])) for count in range(4)]
    for cut in range(len(data) + 1):
        whole = sum(cut >= end for end in ends[1:])
        rows = sum(range(whole + 1))
        assert streams.complete(pa.BufferReader(data[:cut])) == (rows, 21 * rows), cut


def test_a_flipped_bit_ends_what_is_valid(make: Any) -> None:
    head, part = streams.begin(make(0).schema), bytes(streams.encode(make(3)))
    good = head + part
    for position, bit in itertools.product(range(len(good), len(good) + len(part), 3), (1, 128)):
        data = bytearray(good + part)
        data[position] ^= bit
        rows, _ = streams.complete(pa.BufferReader(bytes(data)))
        # Padding and unread parts of the metadata may differ; then both batches are as they were.
        assert rows in (3, 6)
        if rows == 6:
            assert [batch == make(3) for batch in streams.decode(bytes(data), 6, "f")] == [True, True]


def test_a_tail_of_zeros_is_not_taken_for_a_batch(make: Any) -> None:
    head, part = streams.begin(make(0).schema), bytes(streams.encode(make(3)))
    lost = part[:-64] + bytes(64)
    assert lost != part
    assert streams.complete(pa.BufferReader(head + part + lost)) == (3, 63)


def test_a_batch_of_something_else_is_not_ours() -> None:
    batch = pa.record_batch({"a": [1]})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    assert streams.complete(pa.BufferReader(sink.getvalue())) == (0, 0)


def test_reading_stops_at_the_promised_row(make: Any) -> None:
    data = streams.begin(make(0).schema) + bytes(streams.encode(make(3))) + b"left behind by a failed write"
    assert [batch.num_rows for batch in streams.decode(pa.py_buffer(data), 3, "f")] == [3]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (4, "f: 3 of 4 rows can be read: there it ends"),
        (2, "f: 3 of 2 rows can be read: its batches do not add up"),
    ],
)
def test_fewer_or_more_rows_than_promised_are_an_error(make: Any, rows: int, reason: str) -> None:
    data = streams.begin(make(0).schema) + bytes(streams.encode(make(3)))
    with pytest.raises(SegmentLost, match=reason):
        list(streams.decode(pa.py_buffer(data), rows, "f"))


def test_a_wrong_checksum_is_an_error(make: Any) -> None:
    whole = streams.begin(make(0).schema) + bytes(streams.encode(make(3)))
    data = whole.replace(records.checksum(make(3)), records.checksum(make(2)))
    assert data != whole
    with pytest.raises(SegmentLost, match="0 of 3 rows can be read: the next batch does not match"):
        list(streams.decode(pa.py_buffer(bytes(data)), 3, "f"))


@pytest.mark.parametrize("data", [b"", b"no arrow at all", b"\xff\xff\xff\xff"])
def test_rubbish_is_an_error(data: bytes) -> None:
    with pytest.raises(SegmentLost, match="f: 0 of 1 rows can be read"):
        list(streams.decode(pa.py_buffer(data), 1, "f"))
