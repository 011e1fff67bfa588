from __future__ import annotations

import datetime
import itertools
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from nsq.errors import SegmentLost, WalError
from nsq.message import Message
from nsq.partitioned.messages import read_detailed
from nsq.spark.wal import records
from tests.fakes.messages import Delegate, payload


def test_a_message_comes_back_as_a_row(make: Any) -> None:
    row = records.rows(make(1)).to_pylist()[0]
    assert row == {
        "topic": "orders",
        "nsqd": "127.0.0.1:4150",
        "id": "0000000000000000",
        "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC),
        "timestamp_ns": 1_700_000_000_000_000_000,
        "attempts": 1,
        "key": None,
        "headers": None,
        "body": b"0" + b"." * 20,
    }


BODIES = [b"", b"\xff\xfe\x00not text", b"\x00" * 1000, bytes(range(256)), b"x" * 5_000_000]


def test_unusual_bodies_come_back() -> None:
    count = len(BODIES)
    batch = records.stored("t", [b"i" * 16] * count, [0] * count, [65535] * count, ["h:1"] * count, BODIES)
    assert records.rows(batch, ["body"]).column(0).to_pylist() == BODIES
    assert records.body_bytes(batch) == sum(map(len, BODIES))


def test_no_messages_make_an_empty_batch() -> None:
    batch = records.stored("t", [], [], [], [], [])
    assert (batch.num_rows, records.body_bytes(batch)) == (0, 0)
    assert records.rows(batch).num_rows == 0


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(WalError, match="b'short' has 5 bytes, not 16"):
        records.stored("t", [b"i" * 16, b"short"], [0, 0], [1, 1], ["h", "h"], [b"a", b"b"])


def test_an_id_that_is_not_text_is_shown_as_latin_1() -> None:
    batch = records.stored("t", [b"\xff" * 16], [0], [1], ["h"], [b"a"])
    assert records.rows(batch, ["id"]).column(0).to_pylist() == ["ÿ" * 16]


def message(body: bytes) -> Message:
    return Message(Delegate(), 0.0, 60.0, 7, 1, b"0123456789abcdef", body)


def with_header(header: bytes) -> Message:
    """A message of an extended topic of a partitioned NSQ."""
    data = payload(b"body", header=header)
    return read_detailed(True, False, Delegate(), 0.0, 60.0, 7, 1, b"0123456789abcdef", data)


def test_messages_of_several_topics_stand_in_one_batch() -> None:
    batch = records.stored_messages([("clicks", [message(b"1"), message(b"2")]), ("orders", [message(b"3")])])
    found = records.rows(batch, ["topic", "body"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [("clicks", b"1"), ("clicks", b"2"), ("orders", b"3")]


HEADERS: list[tuple[bytes, bytes | None, list[tuple[str, str | None]] | None]] = [
    (b"{}", None, []),
    (b'{"key":"a17","source":"web"}', b"a17", [("key", "a17"), ("source", "web")]),
    (b'{"key":17}', b"17", [("key", "17")]),
    (
        b'{"##trace_id":"5","of":{"b":[true,1.5]},"none":null}',
        None,
        [("of", '{"b": [true, 1.5]}'), ("none", None)],
    ),
    ('{"Größe":"€"}'.encode(), None, [("Größe", "€")]),
    (rb'{"half":"\ud800"}', None, [("half", "?")]),  # Arrow and Spark can hold no half of a pair
    (b"no JSON", None, None),
]


def test_keys_and_headers_come_back_as_text() -> None:
    messages = [message(b"plain"), *(with_header(header) for header, _, _ in HEADERS)]
    batch = records.stored_messages([("orders", messages)])
    found = records.rows(records.decode(records.encode(batch), len(messages), "f"), ["key", "headers"])
    wanted = [(None, None), *((key, headers) for _, key, headers in HEADERS)]
    assert [tuple(row.values()) for row in found.to_pylist()] == wanted
    assert found.schema == pa.schema([records.ROW.field(name) for name in ("key", "headers")])


def test_a_header_that_is_nested_too_deeply_is_null() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    class Nested(Message):
        headers = property(lambda self: {"deep": deep, "key": "a"})

    batch = records.stored_messages([("orders", [Nested(Delegate(), 0.0, 60.0, 7, 1, b"i" * 16, b"body")])])
    found = records.rows(batch, ["key", "headers"]).to_pylist()
    assert found == [{"key": b"a", "headers": [("deep", None), ("key", "a")]}]


def test_another_header_can_be_the_key() -> None:
    batch = records.stored_messages([("orders", [with_header(b'{"key":"a","id":"b"}')])], key_header="id")
    assert records.rows(batch, ["key"]).to_pylist() == [{"key": b"b"}]


def test_messages_without_headers_make_a_segment_without_those_columns() -> None:
    """So a log of plain NSQ does not grow, and segments of before are read."""
    assert records.stored_messages([("orders", [message(b"1")])]).schema == records.STORED


def test_a_checksum_sees_headers_and_where_there_are_none() -> None:
    made = [
        records.stored_messages([("orders", [with_header(header), with_header(b"{}")])])
        for header in (b"{}", b"no JSON", b'{"key":""}', b'{"other":""}')
    ]
    assert len({tuple(records.checksums(batch)) for batch in made}) == len(made)


@pytest.mark.parametrize("columns", [["body"], ["timestamp", "topic"], ["attempts", "id", "nsqd"]])
def test_columns_come_in_the_order_that_is_asked_for(make: Any, columns: list[str]) -> None:
    found = records.rows(make(3), columns)
    assert found.schema == pa.schema([records.ROW.field(name) for name in columns])
    assert found.num_rows == 3


def test_rows_without_columns_keep_their_number(make: Any) -> None:
    assert records.rows(make(3), []).num_rows == 3


def test_a_checksum_is_of_the_values_not_of_the_layout(make: Any) -> None:
    assert records.checksums(make(10).slice(3, 4)) == records.checksums(make(4, start=3))
    assert records.checksums(make(0)) == records.checksums(make(3).slice(1, 0))


def test_a_checksum_sees_where_one_body_ends() -> None:
    def batch(bodies: list[bytes]) -> pa.RecordBatch:
        return records.stored("t", [b"i" * 16] * 2, [0] * 2, [1] * 2, ["h"] * 2, bodies)

    assert records.checksums(batch([b"ab", b"c"])) != records.checksums(batch([b"a", b"bc"]))


# The bytes of a segment


def encoded(batch: pa.RecordBatch) -> bytes:
    return bytes(records.encode(batch))


def test_any_reader_of_arrow_streams_can_read_it(make: Any) -> None:
    assert ipc.open_stream(encoded(make(3))).read_all() == pa.Table.from_batches([make(3)])


def test_a_segment_that_was_cut_short_is_lost(make: Any) -> None:
    data = encoded(make(3))
    for cut in range(len(data)):
        try:
            found = records.decode(pa.py_buffer(data[:cut]), 3, "f")
        except SegmentLost:
            assert cut < len(data)
        else:
            assert found == make(3)
            assert cut >= len(data) - 8  # the end marker


def test_a_flipped_bit_is_found(make: Any) -> None:
    good = encoded(make(3))
    lost = 0
    for position, bit in itertools.product(range(0, len(good), 3), (1, 128)):
        data = bytearray(good)
        data[position] ^= bit
        try:
            # Padding and unread parts of the metadata may differ.
            assert records.decode(pa.py_buffer(bytes(data)), 3, "f") == make(3)
        except SegmentLost:
            lost += 1
    assert lost > 100


def test_a_batch_of_another_schema_is_not_valid() -> None:
    batch = pa.record_batch({"a": [1]})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    with pytest.raises(SegmentLost, match="f does not match its checksum"):
        records.decode(sink.getvalue(), 1, "f")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (4, "f has 3 rows, not 4"),
        (2, "f has 3 rows, not 2"),
    ],
)
def test_fewer_or_more_rows_than_promised_are_an_error(make: Any, rows: int, reason: str) -> None:
    data = encoded(make(3))
    with pytest.raises(SegmentLost, match=reason):
        records.decode(pa.py_buffer(data), rows, "f")


def test_a_wrong_checksum_is_an_error(make: Any) -> None:
    whole = encoded(make(3))
    data = whole.replace(records.checksums(make(3))[-1], records.checksums(make(2))[-1])
    assert data != whole
    with pytest.raises(SegmentLost, match="f does not match its checksum"):
        records.decode(pa.py_buffer(bytes(data)), 3, "f")


@pytest.mark.parametrize("data", [b"", b"no arrow at all", b"\xff\xff\xff\xff"])
def test_rubbish_is_an_error(data: bytes) -> None:
    with pytest.raises(SegmentLost, match="f cannot be read: "):
        records.decode(pa.py_buffer(data), 1, "f")


def test_columns_are_read_alone_where_some_segments_have_headers_and_others_not(make: Any) -> None:
    headers = records.stored_messages([("orders", [with_header(b'{"key":"a17"}')])])
    for batch, key in ((headers, b"a17"), (make(1), None)):
        read = records.decode(records.encode(batch), 1, "f", records.needed(["key"]))
        assert records.rows(read, ["key"]).to_pylist() == [{"key": key}]
        assert len(read.columns) == 1
