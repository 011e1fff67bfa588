"""``spark.read``: a batch read is refused, and nsq_stats is a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsq.testing import Nsqd
from tests.spark.running import CHANNEL, TOPIC, bodies, publish, subscribe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABSENT = "127.0.0.1:1"


def test_a_batch_read_names_the_right_way(spark: SparkSession, nsqd: Nsqd) -> None:
    from pyspark.errors import AnalysisException

    options = {"nsqd": nsqd.tcp_address, "topic": TOPIC, "channel": CHANNEL, "wal": "/nowhere"}

    with pytest.raises(AnalysisException, match=r"spark\.readStream with \.trigger\(availableNow=True\)"):
        spark.read.format("nsq").options(**options).load().collect()


def test_statistics_are_a_table(spark: SparkSession, nsqd: Nsqd) -> None:
    from nsq.spark.batch import NsqStatsDataSource

    spark.dataSource.register(NsqStatsDataSource)
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
