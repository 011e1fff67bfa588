"""Faults of a stream and their effect on its rows."""

from __future__ import annotations

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
    producing,
    publish,
    running,
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


class Sink:
    """Collects ids by batch; on request it fails after it has seen one. Spark's first batch may be empty."""

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
