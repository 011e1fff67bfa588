"""Several readers of one log under Spark: none skips a row, with any checkpoint and trigger."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsq.testing import Nsqd
from tests.integration.patience import eventually
from tests.spark.running import (
    EXACT,
    PATIENCE,
    arrival,
    bodies,
    difference,
    drain,
    ended,
    failure,
    publish,
    running,
    stream,
    subscribe,
    to_parquet,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def queue(nsqd: Nsqd) -> Nsqd:
    subscribe(nsqd)
    return nsqd


def test_a_new_checkpoint_over_an_old_sink_is_refused(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    publish(queue, bodies(2000))
    drain(stream(spark, queue, tmp_path, retention="1d"), tmp_path)
    shutil.move(tmp_path / "checkpoint", tmp_path / "moved-away")
    publish(queue, bodies(500, 2000))
    reason = failure(to_parquet(stream(spark, queue, tmp_path), tmp_path, availableNow=True))
    assert "checkpoint begins anew" in reason
    assert "startingPosition=committed" in reason
    shutil.move(tmp_path / "out", tmp_path / "old")
    anew = stream(spark, queue, tmp_path, startingPosition="committed", retention="1d")
    drain(anew, tmp_path)
    assert difference(written(tmp_path), bodies(500, 2000)) == EXACT
    drain(stream(spark, queue, tmp_path, reader="rewound"), tmp_path / "all")
    assert difference(written(tmp_path / "all"), bodies(2500)) == EXACT


def test_a_query_goes_on_from_a_checkpoint_that_was_moved(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    publish(queue, bodies(1000))
    drain(stream(spark, queue, tmp_path), before)
    shutil.move(before, after)  # with the files of the sink
    publish(queue, bodies(1000, 1000))
    drain(stream(spark, queue, tmp_path), after)
    rows = spark.read.option("ignoreMissingFiles", True).parquet(*map(str, (after / "out").glob("*.parquet")))
    assert difference([bytes(row.body) for row in rows.collect()], bodies(2000)) == EXACT


def test_trigger_once_reads_the_whole_log(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    publish(queue, bodies(3000))
    progress = ended(to_parquet(stream(spark, queue, tmp_path), tmp_path, once=True))
    assert [batch["numInputRows"] for batch in progress] == [3000]
    assert difference(written(tmp_path), bodies(3000)) == EXACT


def test_a_log_can_be_joined_with_itself(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    publish(queue, bodies(300))
    left = stream(spark, queue, tmp_path, reader="left").select("nsqd", "id", "body")
    right = stream(spark, queue, tmp_path, reader="right", receivers=0).select("nsqd", "id")
    with running(to_parquet(left.join(right, ["nsqd", "id"]), tmp_path)):
        assert difference(arrival(tmp_path, bodies(300)), bodies(300)) == EXACT


def test_asynchronous_progress_tracking_loses_nothing_in_a_full_log(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    """The checkpoint is behind the batches, and the log is so small that it is always full."""

    def run(start: int, checkpoint: Path) -> None:
        frame = stream(spark, queue, tmp_path, walMaxBytes=3000, maxInFlight=25, linger="0ms")
        writer = frame.writeStream.format("console").option("checkpointLocation", str(checkpoint))
        writer = writer.options(
            asyncProgressTrackingEnabled="true", asyncProgressTrackingCheckpointIntervalMs="1000"
        )
        with running(writer.option("numRows", "0").start()) as query:
            publish(queue, bodies(150, start))
            rows: dict[int, int] = {}

            def seen() -> int:
                error = query.exception()
                assert error is None, error
                rows.update({one.batchId: one.numInputRows for one in query.recentProgress})
                return sum(rows.values())

            eventually(seen, lambda count: count >= 150, PATIENCE)

    first, second = tmp_path / "checkpoint", tmp_path / "copied"
    run(0, first)
    # Spark can fail to unregister such a query when it stops it: the copy is a query with another id.
    shutil.copytree(first, second, ignore=shutil.ignore_patterns(".metadata*"))
    (second / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    run(150, second)  # from a checkpoint that may be behind: every segment it needs is there
