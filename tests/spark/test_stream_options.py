"""Options of a stream, errors for wrong ones, and further processing of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsq.spark
from nsq.findings import OK
from nsq.spark import doctor
from nsq.testing import Nsqd
from tests.spark.running import CHANNEL, TOPIC, bodies, failure, publish, stream, subscribe, to_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABSENT = "127.0.0.1:1"


def test_spark_finds_the_formats_and_statistics_are_a_table(spark: SparkSession, nsqd: Nsqd) -> None:
    subscribe(nsqd)
    publish(nsqd, bodies(10))
    reader = spark.read.format("nsq_stats").options(
        nsqd=f"{nsqd.tcp_address},{ABSENT}", nsqdHttp=f"{nsqd.http_address},{ABSENT}"
    )
    table = reader.load()

    (row,) = table.where("error is null").collect()
    assert (row.nsqd, row.topic, row.channel, row.depth) == (nsqd.tcp_address, TOPIC, CHANNEL, 10)
    assert (row.in_flight, row.clients, row.paused, row.topic_depth) == (0, 0, False, 0)
    (lost,) = table.where("error is not null").collect()
    assert (lost.nsqd, lost.topic) == (ABSENT, None)
    assert ABSENT in lost.error


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


#: A body, its columns a and b, the rest, and the corrupt text. tests/unit/spark/test_json_bodies.py has more.
JSON: list[tuple[bytes, tuple[int | None, str | None, str | None, str | None]]] = [
    (b'{"a": 1, "b": "x"}', (1, "x", None, None)),
    (b'{"b": "y"}', (None, "y", None, None)),
    (b'{"a": 1}\n', (1, None, None, None)),
    (
        b'{"a": 1, "A": 2, "b": "x", "b": "y", "c": {"d": [1.50, null]}}',
        (1, "y", '{"A": 2, "b": "x", "c": {"d": [1.50, null]}}', None),
    ),
    (b"\xff\xfe", (None, None, None, "0xFFFE")),
    (b'{"b": "\xe9"}', (None, None, None, "0x7B2262223A2022E9227D")),
    *(
        (text, (None, None, None, text.decode()))
        for text in (
            b"no json",
            b"[1]",
            b"",
            b"null",
            b'{"a": "text"}',
            # Spark reads one value, but the rest of these would be lost.
            b'{"a": 1}\n{"a": 2}\n',
            b'{"a": 1} and more',
            b'{"a": 1},"value":{"a": 2}',
            b'{"a": 1}, "mark": "x"} {"a": 2',
            b"{'a': 1}",
            b'{"a": NaN}',
        )
    ),
]


def test_bodies_that_are_not_json_objects_are_kept_apart(spark: SparkSession) -> None:
    texts = [(number, body) for number, (body, _) in enumerate(JSON)]
    read = nsq.spark.json(spark.createDataFrame(texts, "id int, body binary"), "a int, b string")
    assert read.columns == ["id", "a", "b", "_rescued", "_corrupt"]
    got = [tuple(row)[1:] for row in sorted(read.collect())]
    # Of a corrupt body the columns may hold what Spark could read.
    assert [row[2:] for row in got] == [row[2:] for _, row in JSON]
    assert [row for row in got if row[3] is None] == [row for _, row in JSON if row[3] is None]


def test_spark_finds_the_formats_from_any_directory() -> None:
    """``make`` installs the tree so that its modules are listed."""
    found = doctor.check_formats()
    assert found.level == OK, found
