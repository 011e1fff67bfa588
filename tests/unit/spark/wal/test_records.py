from __future__ import annotations

import datetime
import itertools
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from nsq.errors import SegmentLost, WalError
from nsq.spark.wal import records


def test_a_message_comes_back_as_a_row(make: Any) -> None:
    row = records.rows(make(1), "orders").to_pylist()[0]
    assert row == {
        "topic": "orders",
        "nsqd": "127.0.0.1:4150",
        "id": "0000000000000000",
        "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC),
        "timestamp_ns": 1_700_000_000_000_000_000,
        "attempts": 1,
        "body": b"0" + b"." * 20,
    }


BODIES = [b"", b"\xff\xfe\x00not text", b"\x00" * 1000, bytes(range(256)), b"x" * 5_000_000]


def test_unusual_bodies_come_back() -> None:
    count = len(BODIES)
    batch = records.stored("t", [b"i" * 16] * count, [0] * count, [65535] * count, ["h:1"] * count, BODIES)
    assert records.rows(batch, "t", ["body"]).column(0).to_pylist() == BODIES
    assert records.body_bytes(batch) == sum(map(len, BODIES))


def test_no_messages_make_an_empty_batch() -> None:
    batch = records.stored("t", [], [], [], [], [])
    assert (batch.num_rows, records.body_bytes(batch)) == (0, 0)
    assert records.rows(batch, "t").num_rows == 0


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(WalError, match="b'short' has 5 bytes, not 16"):
        records.stored("t", [b"i" * 16, b"short"], [0, 0], [1, 1], ["h", "h"], [b"a", b"b"])


def test_an_id_that_is_not_text_is_shown_as_latin_1() -> None:
    batch = records.stored("t", [b"\xff" * 16], [0], [1], ["h"], [b"a"])
    assert records.rows(batch, "t", ["id"]).column(0).to_pylist() == ["ÿ" * 16]


def test_the_topic_stands_in_the_schema(make: Any) -> None:
    assert records.topic_of(make(1, topic="orders").schema) == "orders"
    assert records.topic_of(pa.schema([])) == ""


@pytest.mark.parametrize("columns", [["body"], ["timestamp", "topic"], ["attempts", "id", "nsqd"]])
def test_columns_come_in_the_order_that_is_asked_for(make: Any, columns: list[str]) -> None:
    found = records.rows(make(3), "orders", columns)
    assert found.schema == pa.schema([records.ROW.field(name) for name in columns])
    assert found.num_rows == 3


def test_rows_without_columns_keep_their_number(make: Any) -> None:
    assert records.rows(make(3), "orders", []).num_rows == 3


def test_a_checksum_is_of_the_values_not_of_the_layout(make: Any) -> None:
    assert records.checksum(make(10).slice(3, 4)) == records.checksum(make(4, start=3))
    assert records.checksum(make(0)) == records.checksum(make(3).slice(1, 0))


def test_a_checksum_sees_where_one_body_ends() -> None:
    def batch(bodies: list[bytes]) -> pa.RecordBatch:
        return records.stored("t", [b"i" * 16] * 2, [0] * 2, [1] * 2, ["h"] * 2, bodies)

    assert records.checksum(batch([b"ab", b"c"])) != records.checksum(batch([b"a", b"bc"]))


# The bytes of a segment


def test_any_reader_of_arrow_streams_can_read_it(make: Any) -> None:
    one, two = make(3), make(2, start=3)
    data = records.begin(one.schema) + bytes(records.encode(one)) + bytes(records.encode(two))
    assert ipc.open_stream(data).read_all() == pa.Table.from_batches([one, two])


def test_every_cut_leaves_the_batches_before_it(make: Any) -> None:
    head = records.begin(make(0).schema)
    parts = [bytes(records.encode(make(count))) for count in (1, 2, 3)]
    data = head + b"".join(parts)
    ends = [len(head) + sum(map(len, parts[:count])) for count in range(4)]
    for cut in range(len(data) + 1):
        whole = sum(cut >= end for end in ends[1:])
        rows = sum(range(whole + 1))
        assert records.complete(pa.BufferReader(data[:cut])) == (rows, 21 * rows), cut


def test_a_flipped_bit_ends_what_is_valid(make: Any) -> None:
    head, part = records.begin(make(0).schema), bytes(records.encode(make(3)))
    good = head + part
    for position, bit in itertools.product(range(len(good), len(good) + len(part), 3), (1, 128)):
        data = bytearray(good + part)
        data[position] ^= bit
        rows, _ = records.complete(pa.BufferReader(bytes(data)))
        # Padding and unread parts of the metadata may differ; then both batches are as they were.
        assert rows in (3, 6)
        if rows == 6:
            assert [batch == make(3) for batch in records.decode(bytes(data), 6, "f")] == [True, True]


def test_a_tail_of_zeros_is_not_taken_for_a_batch(make: Any) -> None:
    head, part = records.begin(make(0).schema), bytes(records.encode(make(3)))
    lost = part[:-64] + bytes(64)
    assert lost != part
    assert records.complete(pa.BufferReader(head + part + lost)) == (3, 63)


def test_a_batch_of_another_schema_is_not_valid() -> None:
    batch = pa.record_batch({"a": [1]})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    assert records.complete(pa.BufferReader(sink.getvalue())) == (0, 0)


def test_reading_stops_at_the_promised_row(make: Any) -> None:
    data = records.begin(make(0).schema) + bytes(records.encode(make(3))) + b"left behind by a failed write"
    assert [batch.num_rows for batch in records.decode(pa.py_buffer(data), 3, "f")] == [3]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (4, "f: 3 of 4 rows can be read: there it ends"),
        (2, "f: 3 of 2 rows can be read: its batches do not add up"),
    ],
)
def test_fewer_or_more_rows_than_promised_are_an_error(make: Any, rows: int, reason: str) -> None:
    data = records.begin(make(0).schema) + bytes(records.encode(make(3)))
    with pytest.raises(SegmentLost, match=reason):
        list(records.decode(pa.py_buffer(data), rows, "f"))


def test_a_wrong_checksum_is_an_error(make: Any) -> None:
    whole = records.begin(make(0).schema) + bytes(records.encode(make(3)))
    data = whole.replace(records.checksum(make(3)), records.checksum(make(2)))
    assert data != whole
    with pytest.raises(SegmentLost, match="0 of 3 rows can be read: the next batch does not match"):
        list(records.decode(pa.py_buffer(bytes(data)), 3, "f"))


@pytest.mark.parametrize("data", [b"", b"no arrow at all", b"\xff\xff\xff\xff"])
def test_rubbish_is_an_error(data: bytes) -> None:
    with pytest.raises(SegmentLost, match="f: 0 of 1 rows can be read"):
        list(records.decode(pa.py_buffer(data), 1, "f"))
