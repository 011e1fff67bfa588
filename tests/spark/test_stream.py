"""The source under Spark: every published message becomes one row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nsq
from nsq.http.nsqd import NsqdApi
from nsq.testing import Nsqd, PartitionedCluster
from nsq.testing.plugin import Factory
from tests.integration.authority import Authority
from tests.integration.patience import eventually
from tests.interop.auth_server import running_auth_server
from tests.spark.running import (
    EXACT,
    bodies,
    difference,
    drain,
    ended,
    producing,
    publish,
    segments,
    stream,
    subscribe,
    to_function,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


@pytest.fixture
def queue(nsqd: Nsqd) -> Nsqd:
    subscribe(nsqd)
    return nsqd


def test_available_now_ends_although_new_messages_are_published(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    before = bodies(1000, 1_000_000)
    publish(queue, before)
    with producing(queue) as published:
        (progress, *_) = drain(stream(spark, queue, tmp_path), tmp_path)
        assert len(written(tmp_path)) >= 1000
    (source,) = progress["sources"]
    reported = {"received", "walRows", "walBytes", "nsqdDepth", "oldestSeconds", "paused"}
    assert reported <= set(source["latestOffset"])
    drain(stream(spark, queue, tmp_path), tmp_path)
    assert difference(written(tmp_path), [*before, *published()]) == EXACT
    # No query will ask for them again. The receiver deletes its own when it stops, after the query.
    eventually(lambda: segments(tmp_path), lambda found: found == [], 60.0)


def test_messages_go_through_source_and_sink_over_tls_with_a_secret(
    spark: SparkSession, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with running_auth_server({"open-sesame": [EVERYTHING]}) as address:
        nsqd = nsqd_factory(**authority.server_options, tls_required="true", auth_http_addresses=[address])
        secure = {"tls": "true", "tlsCaFile": str(authority.certificate), "authSecret": "open-sesame"}
        frame = stream(
            spark, None, tmp_path, nsqd=nsqd.tcp_address, nsqdHttp=f"https://{nsqd.https_address}", **secure
        )
        wanted = bodies(100)
        rows = spark.createDataFrame([(body.decode(),) for body in wanted], "body string")
        rows.write.format("nsq").mode("append").options(
            topic="orders", nsqd=nsqd.tcp_address, **secure
        ).save()

        drain(frame, tmp_path)

    assert difference(written(tmp_path), wanted) == EXACT


def test_rows_say_where_they_come_from_and_are_the_same_to_each_action(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    publish(queue, bodies(500))
    seen: list[Any] = []
    frame = stream(spark, queue, tmp_path)
    assert frame.dtypes == [
        *[("topic", "string"), ("nsqd", "string"), ("id", "string"), ("timestamp", "timestamp")],
        *[("timestamp_ns", "bigint"), ("attempts", "int"), ("key", "binary")],
        *[("headers", "map<string,string>"), ("body", "binary")],
    ]

    def act(batch: DataFrame, number: int) -> None:
        once, again = batch.collect(), batch.collect()
        assert once == again
        assert len(once) == batch.count()
        seen.extend(once)

    ended(to_function(frame, tmp_path, act, availableNow=True))
    assert sorted(bytes(row.body) for row in seen) == bodies(500)
    assert len({row.id for row in seen}) == 500
    for row in seen:
        assert (row.topic, row.nsqd, row.attempts, len(row.id)) == ("orders", queue.tcp_address, 1, 16)
        assert row.timestamp.timestamp() == pytest.approx(row.timestamp_ns / 1e9, abs=1e-5)


def test_two_topics_are_joined_behind_a_pandas_udf(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    """Whole rows, with the columns of a partitioned NSQ, are in the state of the join."""
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import functions as f

    def to_number(bodies: Any) -> Any:
        return bodies.map(int)

    to_number.__annotations__ = {"bodies": pd.Series, "return": pd.Series}  # Spark needs types, not strings
    number: Any = f.pandas_udf(to_number, "bigint")

    def numbered(topic: str) -> DataFrame:
        frame = stream(spark, queue, tmp_path, topic=topic, wal=tmp_path / topic)
        return frame.withWatermark("timestamp", "1 hour").withColumn("number", number("body"))

    queue.post("/topic/create?topic=payments")
    queue.post("/channel/create?topic=payments&channel=spark")
    publish(queue, bodies(300))
    NsqdApi(queue.http_address).multi_publish("payments", bodies(300, 200))
    orders, payments = numbered("orders").alias("o"), numbered("payments").alias("p")
    condition = "o.number = p.number AND p.timestamp >= o.timestamp - interval 1 hour"
    joined = orders.join(payments, f.expr(condition))
    drain(joined.select("o.*", f.col("p.body").alias("paid")), tmp_path)
    found = list(zip(written(tmp_path), written(tmp_path, "paid"), strict=True))
    assert sorted(found) == [(body, body) for body in bodies(100, 200)]


def test_keys_and_headers_of_a_partitioned_nsq_go_through_source_and_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows of the source are published as they are. The run ends by itself: nsqds say what waits there."""
    with PartitionedCluster(nodes=2) as cluster:
        for topic in ("orders", "copies"):
            cluster.create_topic(topic, partitions=2, extended=True, channels=["spark"])
        lookupd = ",".join(cluster.lookup_addresses)
        with nsq.Producer(nsqlookupd=cluster.lookup_addresses) as producer:
            for number in range(20):
                key = f"k{number % 3}"
                headers = {"key": key, "n": number} if number % 2 else None
                producer.publish("orders", b"%d" % number, key=key, headers=headers)

        def publish_again(batch: DataFrame, number: int) -> None:
            target = batch.write.format("nsq").mode("append")
            target.options(lookupd=lookupd, topic="copies").save()

        frame = stream(spark, None, tmp_path, lookupd=lookupd)
        ended(to_function(frame, tmp_path, publish_again, availableNow=True))

        copies = stream(spark, None, tmp_path, topic="copies", lookupd=lookupd, wal=tmp_path / "copies")
        drain(copies, tmp_path / "again")
    found = dict(zip(*(written(tmp_path / "again", name) for name in ("body", "headers")), strict=True))
    wanted = {number: [("key", f"k{number % 3}"), ("n", str(number))] for number in range(1, 20, 2)}
    assert found == {b"%d" % number: wanted.get(number) for number in range(20)}
    keys = dict(zip(*(written(tmp_path / "again", name) for name in ("body", "key")), strict=True))
    assert {keys[b"%d" % number] for number in range(0, 20, 2)} == {None}
    assert keys[b"5"] == b"k2"


def test_limits_hold_and_a_schema_projects(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    wanted = bodies(2000)
    publish(queue, wanted)
    frame = stream(
        spark, queue, tmp_path, "body binary, attempts int", maxMessagesPerTrigger=700, minPartitions=2
    )
    rows = [progress["numInputRows"] for progress in drain(frame, tmp_path)]
    assert max(rows) <= 700
    assert sum(rows) == 2000
    assert difference(written(tmp_path), wanted) == EXACT
    assert set(written(tmp_path, "attempts")) == {1}
