"""``metrics``: what passes through a topic, window by window."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nsq.errors import UsageError
from nsq.spark.pipelines import streaming
from nsq.spark.pipelines.archive import BYTES, write_parquet
from nsq.spark.pipelines.files import Batch, Written, below, open_files, publish
from nsq.spark.pipelines.streaming import Addresses, OnProgress, Running, Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# The last windows of a stream that never ends; more are forgotten by the result, not by ``to``.
_REMEMBERED = 10_000

_QUANTILES = {"latency_p50": 0.5, "latency_p95": 0.95, "latency_p99": 0.99}


@dataclasses.dataclass(frozen=True)
class Window:
    """The messages whose timestamps lie in ``[start, end)``. Latencies are seconds from then to the batch
    that counted them; ``redelivered`` had been tried before; ``top`` are the most frequent keys, and about
    how often each occurred.
    """

    start: datetime.datetime
    end: datetime.datetime
    messages: int
    bytes: int
    latency_avg: float
    latency_p50: float
    latency_p95: float
    latency_p99: float
    attempts_avg: float
    attempts_max: int
    redelivered: int
    top: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class MetricsResult(Totals):
    """``windows`` in order of time, each as it was last heard of; ``rows`` are messages."""

    windows: tuple[Window, ...] = ()


def metrics(
    topic: str,
    channel: str = "metrics",
    *,
    nsqd: Addresses = (),
    lookupd: Addresses = (),
    window: str = "1 minute",
    watermark: str = "1 minute",
    key: str | None = None,
    top: int = 10,
    to: str | None = None,
    on_windows: Callable[[Sequence[Window]], None] | None = None,
    wal: str | None = None,
    checkpoint: str | None = None,
    follow: bool = False,
    every: float = 10.0,
    options: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> MetricsResult:
    """Count messages, bytes, latency, attempts and the most frequent keys of each window of time.

        result = nsq.spark.metrics("orders", nsqd="127.0.0.1:4150", window="10 seconds", key="$.country")
        nsq.spark.metrics_chart(result.windows, "orders.png")

    It takes messages off the channel: give it one of its own. ``key`` is a path into JSON bodies, ``$.a.b``,
    or an SQL expression of the columns, with ``text`` for the body as text: ``nsqd``, ``left(text, 3)``.
    ``on_windows`` is told of windows that have changed, after each batch. ``follow`` and ``every`` are those
    of ``archive``.

    Without ``to``, every window is reported as far as it is known, and all is forgotten in the end. With
    ``to``, windows are reported and written there as Parquet, exactly once, when they are closed, which is
    ``watermark`` after their end by the messages' own time; the last ones follow with the next call. Messages
    later than that are left out.
    """
    if top < 1:
        raise UsageError(f"top is {top}, but must be at least 1")
    with contextlib.ExitStack() as stack:
        # The query's last threads may still be at files that are deleted.
        forgotten = tempfile.TemporaryDirectory(prefix="nsq-metrics-", ignore_cleanup_errors=True)
        root = stack.enter_context(forgotten) if to is None else below(to)
        defaults = {"retention": "0"}
        if to is None and checkpoint is None:
            defaults["startingposition"] = "committed"  # each call has a checkpoint of its own
        reading = streaming.stream_options(root, topic, channel, nsqd, lookupd, wal, options, defaults)
        mode = "append" if to is not None else "update"
        running = Running(checkpoint or below(root, "_checkpoint"), follow, every, stop, progress, mode)
        frame = stack.enter_context(streaming.open_stream(spark, reading))
        rows = measured(frame, window, watermark, key, top)
        return collect_windows(rows, root if to is not None else None, running, on_windows)


def collect_windows(
    rows: DataFrame,
    to: str | None,
    running: Running,
    on_windows: Callable[[Sequence[Window]], None] | None = None,
) -> MetricsResult:
    """Run the query that ``measured`` has made."""
    files = open_files(to, rows.sparkSession) if to is not None else None
    known: dict[datetime.datetime, Window] = {}

    def handle(part: DataFrame, batch: Batch) -> Written:
        def write(uri: str) -> Written:
            return write_parquet(part.coalesce(1).withColumn(BYTES, part["bytes"]), uri)

        part.persist()  # windows are few, and making them means going through the batch
        try:
            changed = sorted(map(window_of, part.collect()), key=lambda each: each.start)
            written = publish(files, batch, write).files if files and changed else 0
        finally:
            part.unpersist()
        before = [known[each.start] for each in changed if each.start in known]
        known.update((each.start, each) for each in changed)
        for start in sorted(known)[:-_REMEMBERED]:
            del known[start]
        if on_windows is not None and changed:
            on_windows(changed)
        return Written(
            sum(each.messages for each in changed) - sum(each.messages for each in before),
            sum(each.bytes for each in changed) - sum(each.bytes for each in before),
            written,
        )

    totals = streaming.run(rows, handle, running)
    return MetricsResult(windows=tuple(known[start] for start in sorted(known)), **vars(totals))


def measured(stream: DataFrame, window: str, watermark: str, key: str | None, top: int) -> DataFrame:
    """A row for each window, as it is stored, of any stream with the columns of the source."""
    from pyspark.sql import functions as f

    # A batch's time is in the checkpoint: run again, it comes to the same figures. An aggregate of Spark's
    # does not accept it directly.
    late = (f.unix_micros(f.current_timestamp()) - f.unix_micros("timestamp")) / 1e6
    rows = stream.withWatermark("timestamp", watermark).withColumn("_late", late)
    quantiles = f.percentile_approx("_late", list(_QUANTILES.values()), 1000)
    aggregates = [
        f.count(f.lit(1)).alias("messages"),
        f.sum(f.octet_length("body")).alias("bytes"),
        f.avg("_late").alias("latency_avg"),
        *(quantiles[place].alias(name) for place, name in enumerate(_QUANTILES)),
        f.avg("attempts").alias("attempts_avg"),
        f.max("attempts").alias("attempts_max"),
        f.count_if(f.col("attempts") > 1).alias("redelivered"),
    ]
    if key is not None:
        rows = rows.withColumn("text", f.make_valid_utf8(f.col("body").cast("string")))
        found = f.get_json_object("text", key) if key.startswith("$") else f.expr(key)
        rows = rows.withColumn("_key", found.cast("string"))
        aggregates.append(f.expr(f"approx_top_k(_key, {top})").alias("top"))
    windows = rows.groupBy(f.window("timestamp", window).alias("window")).agg(*aggregates)
    return windows.select("window.start", "window.end", *windows.columns[1:])


def window_of(row: Row) -> Window:
    values = row.asDict()
    top = tuple((each["item"], each["count"]) for each in values.pop("top", None) or ())
    # Spark hands out local time without saying so.
    start, end = (values.pop(name).astimezone(datetime.UTC) for name in ("start", "end"))
    return Window(start, end, **values, top=top)
