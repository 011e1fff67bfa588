"""What goes wrong under a stream, and what becomes of its rows."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsq.spark import dedup
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.integration.patience import eventually
from tests.spark.running import (
    EXACT,
    PATIENCE,
    TOPIC,
    arrival,
    bodies,
    difference,
    drain,
    ended,
    failure,
    producing,
    publish,
    receiver_pids,
    running,
    segments,
    stream,
    subscribe,
    to_function,
    to_parquet,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def queue(nsqd: Nsqd) -> Nsqd:
    subscribe(nsqd)
    return nsqd


def in_flight(nsqd: Nsqd) -> int:
    (topic,) = nsqd.get(f"/stats?format=json&topic={TOPIC}").json()["topics"]
    return sum(channel["in_flight_count"] for channel in topic["channels"])


class Sink:
    """Collects ids by batch; refuses one when told to, after having seen it. Spark's first may be empty."""

    def __init__(self) -> None:
        self.refusing = False
        self.seen: list[tuple[int, list[str]]] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        ids = sorted(row.id for row in batch.select("id").collect())
        if ids:
            self.seen.append((number, ids))
        if ids and self.refusing:
            raise RuntimeError("the sink is broken")


def test_a_batch_that_failed_comes_again_with_the_same_rows(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    sink = Sink()
    publish(queue, bodies(1000))
    sink.refusing = True
    assert "the sink is broken" in failure(to_function(stream(spark, queue, tmp_path), tmp_path, sink))
    publish(queue, bodies(1000, 1000))
    sink.refusing = False
    ended(to_function(stream(spark, queue, tmp_path), tmp_path, sink, availableNow=True))
    first, again, *others = sink.seen
    assert again == first
    every = [each for _, ids in (again, *others) for each in ids]
    assert len(every) == len(set(every)) == 2000


def test_a_stop_under_load_loses_and_repeats_nothing(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    with producing(queue) as published:
        query = to_parquet(stream(spark, queue, tmp_path), tmp_path)
        eventually(lambda: written(tmp_path), within=PATIENCE)
        query.stop()
        # At once, while the first is still leaving.
        with running(to_parquet(stream(spark, queue, tmp_path), tmp_path)):
            arrival(tmp_path, published())
    drain(stream(spark, queue, tmp_path), tmp_path)
    assert difference(written(tmp_path), published()) == EXACT


def test_a_checkpoint_belongs_to_one_log(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    publish(queue, bodies(10))
    drain(stream(spark, queue, tmp_path), tmp_path)
    (tmp_path / "wal").rename(tmp_path / "old")
    publish(queue, bodies(10, 10))
    told = failure(to_parquet(stream(spark, queue, tmp_path), tmp_path))
    assert "WalForeign" in told
    assert f"{tmp_path}/wal" in told


def test_a_lost_segment_is_an_error_unless_told_otherwise(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    sink = Sink()
    publish(
        queue, bodies(1)
    )  # of more some could have come after the batch, and be in a segment of their own
    sink.refusing = True
    failure(to_function(stream(spark, queue, tmp_path), tmp_path, sink))
    (segment,) = segments(tmp_path)
    segment.unlink()
    lost = f"{segment.parent.name}/000001-*.arrow"
    sink.refusing = False
    sink.seen.clear()
    told = failure(to_function(stream(spark, queue, tmp_path), tmp_path, sink))
    assert f"{tmp_path}/wal lacks files that this batch needs: {lost}" in told
    assert sink.seen == []
    publish(queue, bodies(10))
    lenient = stream(spark, queue, tmp_path, failOnDataLoss=False)
    ended(to_function(lenient, tmp_path, sink, availableNow=True))
    assert sum(len(ids) for _, ids in sink.seen) == 10


def test_an_nsqd_that_restarts_and_one_that_comes_late(
    spark: SparkSession, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    one = nsqd_factory(lookupd=[nsqlookupd])
    subscribe(one)
    options = {"lookupd": nsqlookupd.http_address, "lookupdPollInterval": "100ms", "reconnectInitial": "50ms"}
    with running(to_parquet(stream(spark, None, tmp_path, **options), tmp_path)):
        publish(one, bodies(100))
        arrival(tmp_path, bodies(100))
        eventually(lambda: in_flight(one), lambda count: count == 0)  # nobody answers a FIN
        one.restart()
        publish(one, bodies(100, 100))
        late = nsqd_factory(lookupd=[nsqlookupd])
        publish(late, bodies(100, 200))
        got = arrival(tmp_path, bodies(300))
    assert difference(got, bodies(300)) == EXACT


def test_a_receiver_that_is_killed_is_replaced(
    spark: SparkSession, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    # What a killed receiver had in flight comes again when its time is up, and so may what it had stored.
    nsqd = nsqd_factory(msg_timeout=2.0)
    subscribe(nsqd)
    frame = dedup(stream(spark, nsqd, tmp_path), "1 hour")
    with producing(nsqd) as published, running(to_parquet(frame, tmp_path)):
        eventually(lambda: written(tmp_path), within=PATIENCE)
        (victim,) = receiver_pids()
        os.kill(victim, signal.SIGKILL)
        eventually(receiver_pids, lambda pids: pids and victim not in pids, PATIENCE)
        arrival(tmp_path, published())
    drain(frame, tmp_path)
    assert difference(written(tmp_path), published()) == EXACT
