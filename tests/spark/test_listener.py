"""The listener with a real query."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nsq.spark import Listener
from nsq.testing import Nsqd
from tests.integration.patience import eventually

from .running import PATIENCE, bodies, drain, publish, stream, subscribe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_figures_of_a_query_reach_the_file(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    subscribe(nsqd)
    publish(nsqd, bodies(1))  # more could come in more batches than one
    file = tmp_path / "nsq.prom"
    seen: list[str] = []

    class Watching(Listener):
        def onQueryProgress(self, event: object) -> None:  # noqa: N802 - Spark's name
            super().onQueryProgress(event)  # type: ignore[arg-type]
            seen.append(file.read_text())

    listener = Watching(prometheus=file)
    spark.streams.addListener(listener)
    try:
        drain(stream(spark, nsqd, tmp_path), tmp_path)
        eventually(lambda: seen, within=PATIENCE)
        # It has ended, so it is no longer in the file.
        eventually(file.read_text, lambda text: "batch_rows{" not in text, PATIENCE)
    finally:
        spark.streams.removeListener(listener)
    assert re.search(r"^nsq_spark_batch_rows\{.*\} 1$", "".join(seen), re.MULTILINE)
    assert re.search(r"^nsq_spark_paused\{.*\} 0$", seen[0], re.MULTILINE)
