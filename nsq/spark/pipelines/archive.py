"""``archive``: a topic as Parquet files by date and hour."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nsq.spark.pipelines.columns import PARTITIONS, Body, archived, write_parquet
from nsq.spark.pipelines.compaction import recover
from nsq.spark.pipelines.files import Files, below, open_files
from nsq.spark.pipelines.publishing import Batch, Published, publish
from nsq.spark.pipelines.streaming import Addresses, OnProgress, Running, StreamInput, default_wal, run
from nsq.spark.session import session_or_own

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclasses.dataclass(frozen=True)
class ArchiveResult:
    """``bytes`` are those of the bodies, ``files`` those that readers of ``path`` find in addition."""

    path: str
    rows: int
    bytes: int
    batches: int
    files: int
    seconds: float


def archive(
    topic: str,
    channel: str = "archive",
    *,
    to: str | os.PathLike[str],
    nsqd: Addresses = (),
    lookupd: Addresses = (),
    wal: str | None = None,
    checkpoint: str | None = None,
    follow: bool = False,
    every: float = 10.0,
    body: str = "binary",
    schema: StructType | str | None = None,
    options: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> ArchiveResult:
    """Move what is in a channel into Parquet files ``<to>/date=2026-03-01/hour=07/part-….parquet``.

        nsq.spark.archive("orders", to="/data/orders", nsqd="127.0.0.1:4150")
        spark.read.parquet("/data/orders").where("date = '2026-03-01'")

    It ends when all is stored that was in the channel at its beginning; ``follow=True`` goes on, a batch
    ``every`` so many seconds, until ``stop`` is set, or Ctrl-C. Call it again, and it continues.

    Date and hour are those of the message's timestamp, in UTC. ``body="string"`` stores text, with � for what
    is no UTF-8; ``body="json"`` a struct by ``schema``, null where that does not fit, and then the text in
    ``_corrupt``, or ``0x…`` for what is no UTF-8. ``options`` are those of ``format("nsq")``, such as
    ``{"maxInFlight": 5000}``.

    What nsqd has been told is finished is in the log ``wal``, and from there every message reaches the files
    exactly once, whatever crashes on the way. Between nsqd and the log it is at least once, as ever in NSQ.
    ``wal`` and ``checkpoint`` are ``<to>/_wal`` and ``<to>/_checkpoint`` by default, which Spark, pyarrow and
    pandas do not take for data; for a glob, use ``<to>/date=*/hour=*/*.parquet``.
    """
    root = below(to)
    wanted = Body(body, schema)
    reading = StreamInput.of(
        topic, channel, nsqd=nsqd, lookupd=lookupd, wal=default_wal(root, wal), options=options
    )
    running = Running(
        checkpoint=checkpoint or below(root, "_checkpoint"),
        follow=follow,
        every=every,
        stop=stop,
        progress=progress,
    )
    with session_or_own(spark) as session:
        return archive_stream(reading.open(session), root, wanted, running)


def archive_stream(stream: DataFrame, root: str, body: Body, running: Running) -> ArchiveResult:
    """The same for any stream with the columns of the source."""
    files = open_files(root, stream.sparkSession)
    recover(root)

    def handle(part: DataFrame, batch: Batch) -> Published:
        return archive_batch(part, batch, files, body)

    totals = run(stream, handle, running)
    return ArchiveResult(path=root, **dataclasses.asdict(totals))


def archive_batch(part: DataFrame, batch: Batch, files: Files, body: Body) -> Published:
    return publish(files, batch, lambda uri: write_parquet(archived(part, body), uri, partitions=PARTITIONS))
