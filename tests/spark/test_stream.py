"""The source under Spark: rows in, exactly those rows out."""

from __future__ import annotations

import datetime
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nsq
from nsq.spark.wal import new_receiver, open_wal
from nsq.spark.wal.records import stored
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.integration.authority import Authority
from tests.integration.patience import eventually
from tests.interop.auth_server import running_auth_server
from tests.spark.running import (
    EXACT,
    PATIENCE,
    arrival,
    bodies,
    difference,
    drain,
    ended,
    producing,
    publish,
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


EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


@pytest.fixture
def queue(nsqd: Nsqd) -> Nsqd:
    subscribe(nsqd)
    return nsqd


def test_available_now_reads_exactly_what_there_is(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    wanted = bodies(20_000)
    publish(queue, wanted)
    (progress, *_) = drain(stream(spark, queue, tmp_path), tmp_path)
    assert difference(written(tmp_path), wanted) == EXACT
    assert segments(tmp_path) == []  # nobody will ask for them again
    (source,) = progress["sources"]
    reported = source["latestOffset"]
    assert {"received", "walRows", "walBytes", "nsqdDepth", "oldestSeconds", "paused"} <= set(reported)


def test_over_tls_and_with_a_secret_all_the_way_there_and_back(
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


def test_a_row_says_where_it_comes_from(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    publish(queue, [b"one"])
    seen: list[Any] = []
    frame = stream(spark, queue, tmp_path)
    assert frame.dtypes == [
        ("topic", "string"),
        ("nsqd", "string"),
        ("id", "string"),
        ("timestamp", "timestamp"),
        ("timestamp_ns", "bigint"),
        ("attempts", "int"),
        ("body", "binary"),
    ]
    ended(to_function(frame, tmp_path, lambda batch, _: seen.extend(batch.collect()), availableNow=True))
    (row,) = seen
    assert (row.topic, row.nsqd, row.attempts, bytes(row.body)) == ("orders", queue.tcp_address, 1, b"one")
    assert len(row.id) == 16
    assert row.timestamp.timestamp() == pytest.approx(row.timestamp_ns / 1e9, abs=1e-5)


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


def test_available_now_ends_while_somebody_publishes(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    before = bodies(1000, 1_000_000)
    publish(queue, before)
    with producing(queue) as published:
        drain(stream(spark, queue, tmp_path), tmp_path)
        got = written(tmp_path)
        assert len(got) >= 1000
    drain(stream(spark, queue, tmp_path), tmp_path)
    assert difference(written(tmp_path), [*before, *published()]) == EXACT


def test_what_somebody_else_took_is_not_waited_for(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    holding, enough = threading.Barrier(6), threading.Event()

    def hold(message: nsq.Message) -> None:
        holding.wait(PATIENCE)
        assert enough.wait(PATIENCE)

    publish(queue, bodies(20))
    # For longer than the test may take.
    other = nsq.Consumer("orders", "spark", nsqd=queue.tcp_address, max_in_flight=5, msg_timeout=900.0)
    with other.add_handler(hold, threads=5):
        holding.wait(PATIENCE)
        frame = stream(spark, queue, tmp_path, availableNowIdle="200ms")
        with running(to_parquet(frame, tmp_path, availableNow=True)) as query:
            eventually(lambda: len(written(tmp_path)), lambda count: count == 15, PATIENCE)
            assert query.isActive  # they may still be given back
            enough.set()
            assert query.awaitTermination(PATIENCE)
    assert len(written(tmp_path)) == 15


def test_an_idle_stream_neither_spins_nor_repeats(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    idle: list[Any] = []

    class Counting(StreamingQueryListener):
        def onQueryStarted(self, event: object) -> None: ...  # noqa: N802
        def onQueryProgress(self, event: object) -> None: ...  # noqa: N802
        def onQueryTerminated(self, event: object) -> None: ...  # noqa: N802
        def onQueryIdle(self, event: object) -> None:  # noqa: N802
            idle.append(event)

    listener = Counting()
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    spark.streams.addListener(listener)
    try:
        with running(to_parquet(stream(spark, queue, tmp_path), tmp_path)):
            publish(queue, bodies(100))
            arrival(tmp_path, bodies(100))
            eventually(lambda: len(idle), lambda count: count > 4, PATIENCE)
            publish(queue, bodies(100, 100))
            got = arrival(tmp_path, bodies(200))
    finally:
        spark.streams.removeListener(listener)
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert difference(got, bodies(200)) == EXACT
    # Spark asks again at once, so the pauses are ours. Those of a busy machine are longer.
    moments = [datetime.datetime.fromisoformat(each.timestamp).timestamp() for each in idle]
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert sum(pauses) / len(pauses) > 0.4


def test_several_actions_see_the_same_rows(spark: SparkSession, queue: Nsqd, tmp_path: Path) -> None:
    publish(queue, bodies(500))
    same: list[bool] = []
    count: list[int] = []

    def act(batch: DataFrame, number: int) -> None:
        once, again = batch.select("id").collect(), batch.select("id").collect()
        same.append(once == again and len(once) == batch.count())
        count.append(len(once))

    ended(to_function(stream(spark, queue, tmp_path), tmp_path, act, availableNow=True))
    assert all(same)
    assert sum(count) == 500


def test_more_receivers_and_another_nsqd(
    spark: SparkSession, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    one, other = nsqd_factory(), nsqd_factory()
    subscribe(one)
    publish(one, bodies(3000))
    drain(stream(spark, one, tmp_path), tmp_path)
    subscribe(other)
    publish(one, bodies(3000, 3000))
    publish(other, bodies(3000, 6000))
    both = {
        "nsqd": f"{one.tcp_address},{other.tcp_address}",
        "nsqdHttp": f"{one.http_address},{other.http_address}",
    }
    drain(stream(spark, one, tmp_path, **both, receivers=3), tmp_path)
    assert difference(written(tmp_path), bodies(9000)) == EXACT


def test_what_receivers_elsewhere_have_sealed_is_read_too(
    spark: SparkSession, queue: Nsqd, tmp_path: Path
) -> None:
    wal = open_wal(str(tmp_path / "wal"))
    wal.prepare()
    with wal.log(new_receiver()) as log:
        ids = [b"%016d" % number for number in range(30)]
        log.append(stored("orders", ids, [10**18] * 30, [1] * 30, ["far:4150"] * 30, bodies(30)))
    frame = stream(spark, queue, tmp_path, receivers=0, availableNowIdle="200ms")
    drain(frame, tmp_path)
    assert difference(written(tmp_path), bodies(30)) == EXACT
    assert set(written(tmp_path, "nsqd")) == {"far:4150"}
