"""A program that uses Spark Connect: ``python -m tests.spark.connect_program JSON``; the last line is its
result.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import nsq.spark
from nsq.spark.listener import Listener


def main(given: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    folder = Path(given["folder"])
    nsqd = {"nsqd": given["nsqd"], "nsqdHttp": given["http"]}
    warnings.simplefilter("ignore")  # of static settings that a client cannot change
    spark = SparkSession.builder.remote("local[3]").getOrCreate()
    found: dict[str, Any] = {"connect": not hasattr(spark, "sparkContext")}
    try:
        nsq.spark.register(spark)
        listener = Listener(prometheus=folder / "prom")
        spark.streams.addListener(listener)

        # The source, with receivers on the executors, and the sink.
        options = {"topic": "orders", "channel": "spark", "wal": str(folder / "wal"), **nsqd}
        with nsq.spark.receivers(spark, options, n=1) as job:
            stream = spark.readStream.format("nsq").options(**options, receivers="0").load()
            writer = stream.selectExpr("body", "'copies' as topic").writeStream.format("nsq")
            writer = writer.option("nsqd", given["nsqd"]).option(
                "checkpointLocation", str(folder / "checkpoint")
            )
            query = writer.start()
            until = time.monotonic() + 240
            rows = 0
            while rows < given["count"] and time.monotonic() < until:
                time.sleep(1)
                rows = sum(each.numInputRows for each in query.recentProgress)
            query.stop()
            found |= {"rows": rows, "receivers": len(job.alive())}
        found["left"] = len(job.alive())

        archived = nsq.spark.archive(
            "orders", "archive", to=str(folder / "archive"), nsqd=given["nsqd"], spark=spark, options=nsqd
        )
        found["archived"] = [archived.rows, archived.files]
        found["read"] = spark.read.parquet(str(folder / "archive")).count()
        counted = nsq.spark.metrics(
            "orders", "metrics", nsqd=given["nsqd"], spark=spark, options=nsqd, window="1 hour"
        )
        found["counted"] = [counted.rows, sum(window.messages for window in counted.windows)]
        spark.streams.removeListener(listener)
        found["prometheus"] = (folder / "prom").exists()
    finally:
        spark.stop()
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(main(json.loads(sys.argv[1]))))
    except Exception as error:
        traceback.print_tb(error.__traceback__)
        sys.exit(f"{type(error).__name__}: {str(error)[:1500]}")  # Java's traces are long
