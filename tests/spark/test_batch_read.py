"""Batch reads of a log under Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsq.spark.source.batch import PUSHDOWN
from nsq.spark.wal import open_wal
from nsq.testing import Nsqd
from tests.spark.running import bodies, drain, publish, segments, stream, subscribe
from tests.unit.spark.wal.conftest import log_of, made

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def log(spark: SparkSession, folder: Path, schema: str = "", **options: object) -> DataFrame:
    given = {name: str(value) for name, value in {"wal": folder / "wal", **options}.items()}
    reader = spark.read.format("nsq").options(**given)
    return (reader.schema(schema) if schema else reader).load()


def test_the_rows_of_a_batch_are_read_again_and_nothing_changes(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    subscribe(nsqd)
    publish(nsqd, bodies(600))
    batches = drain(stream(spark, nsqd, tmp_path, retention="1d", maxMessagesPerTrigger=200), tmp_path)
    wal = open_wal(str(tmp_path / "wal"))
    before = segments(tmp_path), wal.readers()
    everything = sorted(row.body for row in log(spark, tmp_path).collect())
    assert everything == bodies(600)
    parts: list[bytes] = []
    for batch in batches:
        source: Any = batch["sources"][0]
        given = {"startingPosition": source["startOffset"], "endingPosition": source["endOffset"]}
        part = log(spark, tmp_path, "body binary", **{name: json.dumps(at) for name, at in given.items()})
        rows = part.collect()
        assert len(rows) == batch["numInputRows"]
        parts += [row.body for row in rows]
    assert sorted(parts) == everything
    attempts = log(spark, tmp_path, "attempts int", minPartitions=3)
    assert attempts.rdd.getNumPartitions() == 3
    assert attempts.selectExpr("sum(attempts)").collect()[0][0] == 600
    assert (segments(tmp_path), wal.readers()) == before


def test_conditions_on_the_time_choose_segments_if_spark_pushes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A segment that is not there shows which ones are read."""
    wal = open_wal(str(tmp_path / "wal"), fsync=False)
    wal.prepare()
    with log_of(wal) as receiver:
        for start in (0, 1000, 2000):
            receiver.put(made(1000, start), lambda: None)

    def some() -> list[bytes]:
        rows = log(spark, tmp_path, "body binary, timestamp_ns bigint, timestamp timestamp")
        limit = 1_700_000_000_000_001_100
        rows = rows.where(f"timestamp >= '2023-11-14 22:13:20.000001' and timestamp_ns < {limit}")
        return [row.body for row in rows.collect()]

    wanted = [b"%d" % number + b"." * 20 for number in range(1000, 1100)]
    assert some() == wanted
    segments(tmp_path)[2].unlink()
    with pytest.raises(Exception, match=r"000000003\.arrow is not there; failOnDataLoss=false"):
        some()
    spark.conf.set(PUSHDOWN, "true")
    try:
        assert some() == wanted
    finally:
        spark.conf.unset(PUSHDOWN)
