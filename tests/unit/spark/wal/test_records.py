from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from nsq.errors import WalError
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


def test_an_id_that_is_no_text_is_shown_somehow() -> None:
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


def test_the_types_are_those_of_spark(make: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    text, moment, long, small, raw = StringType(), TimestampType(), LongType(), IntegerType(), BinaryType()
    kinds = [text, text, text, moment, long, small, raw]
    fields = [StructField(name, kind) for name, kind in zip(records.COLUMNS, kinds, strict=True)]
    expected = to_arrow_schema(StructType(fields), timezone="UTC")
    assert expected == records.ROW
    assert records.rows(make(2), "orders").schema == expected


def test_a_checksum_is_of_the_values_not_of_the_layout(make: Any) -> None:
    assert records.checksum(make(10).slice(3, 4)) == records.checksum(make(4, start=3))
    assert records.checksum(make(0)) == records.checksum(make(3).slice(1, 0))


def test_a_checksum_sees_where_one_body_ends() -> None:
    def batch(bodies: list[bytes]) -> pa.RecordBatch:
        return records.stored("t", [b"i" * 16] * 2, [0] * 2, [1] * 2, ["h"] * 2, bodies)

    assert records.checksum(batch([b"ab", b"c"])) != records.checksum(batch([b"a", b"bc"]))
