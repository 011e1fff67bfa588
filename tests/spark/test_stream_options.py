"""Options of a stream, errors for wrong ones, and further processing of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsq.spark
from nsq.spark import doctor
from nsq.testing import Nsqd
from tests.spark.running import failure, stream, to_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_finds_the_formats_by_itself(spark: SparkSession, nsqd: Nsqd) -> None:
    rows = spark.read.format("nsq_stats").option("nsqd", nsqd.tcp_address).load()
    assert "depth" in rows.columns


def test_load_names_a_misspelt_option(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as raised:
        stream(spark, nsqd, tmp_path, maxMesagesPerTrigger=5)
    lines = [line for line in str(raised.value).splitlines() if line.startswith("nsq.errors.ConfigError: ")]
    assert len(lines) == 1
    assert "there is no option 'maxmesagespertrigger'; did you mean maxMessagesPerTrigger?" in lines[0]


def test_the_query_names_an_unknown_column(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    reason = failure(to_parquet(stream(spark, nsqd, tmp_path, "body string"), tmp_path))
    assert "the schema wants column body as string, but it is binary" in reason
    reason = failure(to_parquet(stream(spark, nsqd, tmp_path, "payload binary"), tmp_path))
    assert "the schema has a column 'payload'" in reason


def test_bodies_that_are_not_json_objects_are_kept_apart(spark: SparkSession) -> None:
    texts = [
        b'{"a": 1, "b": "x"}',
        b"no json",
        b"[1]",
        b"7",
        b"",
        b"\xff\xfe",
        b'{"a": "text"}',
        b'{"b": "y"}',
        b'{"a": 1}\n{"a": 2}\n',
        b'{"a": 1} and more',
        b'{"a": 1},',
        b'{"a": 1}, "mark": "x"} {"a": 2',
        b'{"b": "\xe9"}',
        b"null",
        b'{"a": 1}\n',
        b'{"a": 1},"junk":{"a": 2}',
        b'{"a": 1},"value":{"a": 2}',
        b'{"a": [1, {"b": 2}], "b": "}"}',
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": 1, "A": 2, "b": "x", "b": "y", "c": {"d": [1.50, null]}}',
    ]
    rows = spark.createDataFrame([(number, text) for number, text in enumerate(texts)], "id int, body binary")
    read = nsq.spark.json(rows, "a int, b string")
    assert read.columns == ["id", "a", "b", "_rescued", "_corrupt"]
    got = {row.id: row for row in read.collect()}
    assert (got[0].a, got[0].b, got[0]["_corrupt"]) == (1, "x", None)
    assert (got[7].a, got[7].b, got[7]["_corrupt"]) == (None, "y", None)
    assert [got[number]["_corrupt"] for number in (1, 2, 3, 4)] == ["no json", "[1]", "7", ""]
    assert got[5]["_corrupt"] == "0xFFFE"
    assert got[6]["_corrupt"] == '{"a": "text"}'
    # One value is read, but the rest of these would be lost.
    assert [got[number]["_corrupt"] for number in range(8, 12)] == [text.decode() for text in texts[8:12]]
    assert got[12]["_corrupt"] == "0x7B2262223A2022E9227D"
    assert got[13]["_corrupt"] == "null"
    assert (got[14].a, got[14]["_corrupt"]) == (1, None)
    assert [got[number]["_corrupt"] for number in (15, 16)] == [text.decode() for text in texts[15:17]]
    assert [got[number]["_corrupt"] for number in (17, 18, 19)] == [text.decode() for text in texts[17:20]]
    assert (got[20].a, got[20].b, got[20]["_corrupt"]) == (1, "y", None)
    assert got[20]["_rescued"] == '{"A": 2, "b": "x", "c": {"d": [1.50, null]}}'
    assert {row["_rescued"] for number, row in got.items() if number < 20} == {None}


def test_spark_finds_the_formats_from_any_directory() -> None:
    """``make`` installs the tree so that its modules are listed."""
    found = doctor.check_formats()
    assert found.state == doctor.OK, found
