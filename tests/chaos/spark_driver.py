"""A Spark driver for tests that kill it: ``python -m tests.chaos.spark_driver JSON``.

``follow`` writes a topic to Parquet until its stdin says something; ``drain`` writes what there is, ends, and
leaves every row of the sink, as Spark reads it, below ``folder/rows``. While ``folder/shut`` is there, tasks
stop in the middle of a batch and leave ``folder/waiting-<pid>``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nsq.spark import receivers
from nsq.spark.session import local_session
from tests.chaos.spark_processes import MARK

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_PAUSE = 0.05

Act = Literal["follow", "drain"]


@dataclass(frozen=True)
class Plan:
    """A driver's parameters. ``folder`` holds everything: checkpoint, sink, the log, Spark's own files."""

    folder: str
    act: Act
    master: str
    options: dict[str, str] = field(default_factory=dict)
    on_executors: int = 0  # receivers as a job of Spark

    def encode(self) -> str:
        return json.dumps(asdict(self))


def main(plan: Plan) -> None:
    folder = Path(plan.folder)
    spark = _session(plan, folder)
    if plan.act == "follow":
        if plan.on_executors:
            receivers(spark, plan.options, n=plan.on_executors)
            plan.options["receivers"] = "0"
        frame = _rows(spark, plan)
        query = _start(frame.mapInArrow(gate(folder), frame.schema), folder)
        # A daemon: when the JVM dies, no event comes any more.
        threading.Thread(target=_listen, args=(query,), name="listening", daemon=True).start()
        query.awaitTermination()
    else:
        drain(spark, plan)
    spark.stop()


def drain(spark: SparkSession, plan: Plan) -> None:
    folder = Path(plan.folder)
    _start(_rows(spark, plan), folder, availableNow=True).awaitTermination()
    rows = spark.read.parquet(str(folder / "out")).select("nsqd", "id", "attempts", "body")
    rows.coalesce(1).write.parquet(str(folder / "rows"))


def _rows(spark: SparkSession, plan: Plan) -> DataFrame:
    return spark.readStream.format("nsq").options(**plan.options).load()


def _session(plan: Plan, folder: Path) -> SparkSession:
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder / 'tmp'}"
    return local_session(
        master=plan.master,
        app="chaos",
        conf={
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            f"spark.executorEnv.{MARK}": os.environ.get(MARK, ""),  # a worker's own environment has another
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )


def _start(frame: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start(str(folder / "out"))


def _listen(query: StreamingQuery) -> None:
    os.read(0, 1)
    query.stop()


def gate(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Holds a task up behind its first rows: some of them are in the sink's files then, and some are not."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            while (folder / "shut").exists():
                (folder / f"waiting-{os.getpid()}").touch()
                time.sleep(_PAUSE)

    return wait


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
