"""``spark.read``: a look at messages that takes none, and what waits where."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from nsq.testing import Nsqd
from tests.spark.running import CHANNEL, TOPIC, bodies, publish, subscribe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOBODY = "127.0.0.1:1"


def look(spark: SparkSession, nsqd: Nsqd, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("nsq").options(
        mode="peek", nsqd=nsqd.tcp_address, nsqdHttp=nsqd.http_address, topic=TOPIC, **options
    )
    return (reader.schema(schema) if schema else reader).load()


@contextmanager
def publishing(nsqd: Nsqd) -> Iterator[None]:
    """Messages come all the time, a handful a moment."""
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(0.01):
            publish(nsqd, bodies(5))

    thread = threading.Thread(target=run, name="publisher")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def channels(nsqd: Nsqd) -> dict[str, tuple[int, int]]:
    """Of each: its depth, and how many messages it ever had."""
    (topic,) = nsqd.get(f"/stats?format=json&topic={TOPIC}").json()["topics"]
    return {each["channel_name"]: (each["depth"], each["message_count"]) for each in topic["channels"]}


def test_a_look_sees_rows_and_takes_none(spark: SparkSession, nsqd: Nsqd) -> None:
    subscribe(nsqd)
    with publishing(nsqd):
        rows = look(spark, nsqd, limit="12", timeout="60s").collect()

    assert len(rows) == 12
    assert {bytes(row.body) for row in rows} <= set(bodies(5))
    assert {(row.topic, row.nsqd, row.attempts) for row in rows} == {(TOPIC, nsqd.tcp_address, 1)}
    assert all(len(row.id) == 16 and row.timestamp_ns > 0 and row.timestamp for row in rows)
    depth, count = channels(nsqd)[CHANNEL]
    assert depth == count


def test_columns_may_be_chosen(spark: SparkSession, nsqd: Nsqd) -> None:
    subscribe(nsqd)
    with publishing(nsqd):
        rows = look(spark, nsqd, "body binary, id string", limit="1", timeout="60s").collect()

    assert [tuple(row.asDict()) for row in rows] == [("body", "id")]


def test_a_look_that_would_take_something_is_refused(spark: SparkSession, nsqd: Nsqd) -> None:
    from pyspark.errors import AnalysisException

    publish(nsqd, bodies(10))

    with pytest.raises(AnalysisException, match=f"'{TOPIC}' has no lasting channel"):
        look(spark, nsqd).collect()

    (topic,) = nsqd.get(f"/stats?format=json&topic={TOPIC}").json()["topics"]
    assert (topic["depth"], topic["channels"]) == (10, [])


def test_reading_without_a_mode_names_the_right_way(spark: SparkSession, nsqd: Nsqd) -> None:
    from pyspark.errors import AnalysisException

    options = {"nsqd": nsqd.tcp_address, "topic": TOPIC, "channel": CHANNEL, "wal": "/nowhere"}

    with pytest.raises(AnalysisException, match=r"spark\.readStream with \.trigger\(availableNow=True\)"):
        spark.read.format("nsq").options(**options).load().collect()


def test_statistics_are_a_table(spark: SparkSession, nsqd: Nsqd) -> None:
    from nsq.spark.batch import NsqStatsDataSource

    spark.dataSource.register(NsqStatsDataSource)
    subscribe(nsqd)
    publish(nsqd, bodies(10))
    table = spark.read.format("nsq_stats").option("nsqd", f"{nsqd.http_address},{NOBODY}").load()

    (row,) = table.where("error is null").collect()
    assert (row.nsqd, row.topic, row.channel, row.depth) == (nsqd.http_address, TOPIC, CHANNEL, 10)
    assert (row.in_flight, row.clients, row.paused, row.topic_depth) == (0, 0, False, 0)
    (lost,) = table.where("error is not null").collect()
    assert (lost.nsqd, lost.topic) == (NOBODY, None)
    assert NOBODY in lost.error
