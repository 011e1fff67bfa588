"""Receivers as a job of Spark, beside the query that reads their log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from nsq.spark import receivers
from nsq.testing import Nsqd
from tests.fakes import s3
from tests.integration.patience import eventually
from tests.spark.running import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    bodies,
    drain,
    publish,
    running,
    stream,
    subscribe,
    to_parquet,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def options_of(nsqd: Nsqd, folder: Path) -> dict[str, object]:
    return {"topic": TOPIC, "channel": CHANNEL, "wal": folder / "wal", "nsqd": nsqd.tcp_address}


def received(query: StreamingQuery) -> int:
    """What the receivers have reported, by the query's progress."""
    (source,) = json.loads(query.lastProgress.json)["sources"]
    return int(source["latestOffset"]["received"])


def test_a_query_reads_what_the_executors_receive(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    subscribe(nsqd)
    publish(nsqd, bodies(500))
    with receivers(spark, options_of(nsqd, tmp_path), n=1) as job:
        query = to_parquet(stream(spark, nsqd, tmp_path, receivers=0), tmp_path)
        with running(query):
            eventually(lambda: len(written(tmp_path)), lambda count: count == 500, PATIENCE)
            publish(nsqd, bodies(500, 500))
            eventually(lambda: len(written(tmp_path)), lambda count: count == 1000, PATIENCE)
            eventually(lambda: received(query), lambda count: count == 1000, PATIENCE)
        assert len(job.alive()) == 1
    assert job.alive() == []
    assert sorted(written(tmp_path)) == sorted(bodies(1000))
    assert not list((tmp_path / "wal" / "jobs").iterdir())


def test_a_stream_keeps_its_log_in_s3(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    subscribe(nsqd)
    with s3.running() as server:
        for first in (0, 200):
            publish(nsqd, bodies(200, first))
            progress = drain(stream(spark, nsqd, tmp_path, wal=server.uri("wal")), tmp_path)
            assert progress[-1]["sources"][0]["latestOffset"]["walRows"] == 0
        assert sorted(written(tmp_path)) == sorted(bodies(400))
