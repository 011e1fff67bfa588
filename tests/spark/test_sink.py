"""The sink under Spark: every row becomes a message, rows of repeated tasks come twice, errors are plain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nsq
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.integration.patience import eventually
from tests.integration.spark.receivers import depth, take_all
from tests.spark.running import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "published"


def write(frame: DataFrame, nsqd: Nsqd, *, mode: str = "append", topic: str = TOPIC, **options: str) -> None:
    given = {"nsqd": nsqd.tcp_address, **({"topic": topic} if topic else {}), **options}
    frame.write.format("nsq").options(**given).mode(mode).save()


def test_every_row_of_every_task_is_a_message(spark: SparkSession, nsqd: Nsqd) -> None:
    write(spark.range(0, 20_000, 1, 4).selectExpr("cast(id as string) AS body"), nsqd)

    assert take_all(nsqd, TOPIC) == Counter(b"%d" % number for number in range(20_000))


def test_rows_go_where_their_columns_say_and_when(spark: SparkSession, nsqd: Nsqd) -> None:
    assert nsqd.post("/topic/create?topic=odd").status == 200
    assert nsqd.post("/channel/create?topic=odd&channel=billing").status == 200
    frame = spark.range(100).selectExpr(
        "if(id % 2 = 0, 'even', 'odd') AS topic",
        "encode(cast(id as string), 'utf-8') AS body",
        "if(id < 50, 600000, null) AS deferMs",
        "id AS another",
    )

    write(frame.where("topic = 'odd' or deferMs is null"), nsqd, topic="")

    assert set(take_all(nsqd, "even")) == {b"%d" % number for number in range(50, 100, 2)}
    (topic,) = nsqd.get("/stats?format=json&topic=odd").json()["topics"]
    assert [(each["depth"], each["deferred_count"]) for each in topic["channels"]] == [(25, 25)]


def test_a_task_that_is_tried_again_publishes_again(spark: SparkSession, nsqd: Nsqd) -> None:
    """Delivery is at least once: no row is missing."""

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    frame = spark.range(0, 5000, 1, 2).selectExpr("cast(id as string) AS body")

    write(frame.mapInArrow(fail_once, "body string"), nsqd)

    assert set(take_all(nsqd, TOPIC)) == {b"%d" % number for number in range(5000)}


@pytest.mark.chaos
def test_a_million_rows_come_through_although_tasks_fail_and_nsqd_restarts(
    spark: SparkSession, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    """Each task fails once, when it has published half of its rows."""
    nsqd = nsqd_factory(process=True)

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 6 and context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails")
            yield batch

    def restart() -> None:
        for count in (100_000, 500_000, 900_000):
            eventually(lambda: depth(nsqd, TOPIC), lambda seen: seen >= count, PATIENCE)  # noqa: B023
            nsqd.restart()

    frame = spark.range(0, 1_000_000, 1, 8).selectExpr("cast(id as string) AS body")
    with ThreadPoolExecutor(1) as pool:
        restarting = pool.submit(restart)
        write(frame.mapInArrow(fail_once, "body string"), nsqd, retries="10")
        restarting.result()
    found = Counter[bytes]()
    consumer = nsq.Consumer(TOPIC, "drain", nsqd=nsqd.tcp_address, max_in_flight=2500)
    consumer.add_batch_handler(lambda messages: found.update(each.body for each in messages), size=1000)
    total = depth(nsqd, TOPIC)
    with consumer:
        eventually(found.total, lambda seen: seen >= total, PATIENCE)
    assert found.keys() == {b"%d" % number for number in range(1_000_000)}
    assert total > 1_000_000  # with those of the first attempts


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["id AS body"], {}, "column body is of type long, must be binary or string"),
        (["'x' AS body"], {"pipelin": "9"}, "there is no option 'pipelin'; did you mean pipeline?"),
        (["'x' AS body"], {"mode": "overwrite"}, 'cannot be overwritten: .mode("append")'),
    ],
)
def test_a_frame_that_cannot_be_published_fails_before_anything_is_sent(
    spark: SparkSession, nsqd: Nsqd, columns: list[str], options: dict[str, str], words: str
) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as raised:
        write(spark.range(3).selectExpr(*columns), nsqd, **options)

    assert words in str(raised.value)
    assert depth(nsqd, TOPIC) == 0


class Stream:
    """Lines of text files, published."""

    def __init__(self, spark: SparkSession, nsqd: Nsqd, folder: Path, **options: str) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {"nsqd": nsqd.tcp_address, "topic": TOPIC, **options}
        self._checkpoint = folder / "checkpoint"
        (folder / "in").mkdir()

    def add(self, name: str, lines: range) -> None:
        path = self._folder / "in" / name
        path.write_text("".join(f"{number}\n" for number in lines))

    def run(self, *columns: str, mode: str = "append") -> None:
        """Write all rows there are."""
        lines = self._spark.readStream.text(str(self._folder / "in"))
        writer = (
            lines.repartition(2, "value")
            .selectExpr(*(columns or ("value AS body",)))
            .writeStream.format("nsq")
        )
        query = (
            writer.options(**self._options)
            .option("checkpointLocation", str(self._checkpoint))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE), f"not at its end: {query.status}"
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """Make the checkpoint as if Spark had died after publishing the last batch."""
        commits = self._checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


def test_a_batch_that_is_run_again_is_published_again(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    stream = Stream(spark, nsqd, tmp_path)
    stream.add("first", range(1000))
    stream.run()
    assert depth(nsqd, TOPIC) == 1000
    stream.add("second", range(1000, 3000))
    stream.run()
    assert depth(nsqd, TOPIC) == 3000

    stream.forget_last_commit()
    stream.run()

    expected = {b"%d" % number: 1 for number in range(1000)}
    expected |= {b"%d" % number: 2 for number in range(1000, 3000)}
    assert take_all(nsqd, TOPIC) == Counter(expected)
