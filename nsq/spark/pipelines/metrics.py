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
from nsq.spark.pipelines.archive import BYTES, write_parquet
from nsq.spark.pipelines.files import Batch, Files, Published, Written, below, open_files, publish
from nsq.spark.pipelines.streaming import (
    Addresses,
    OnProgress,
    Running,
    Totals,
    default_wal,
    open_stream,
    run,
    stream_options,
)
from nsq.spark.session import session_or_own

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

# The last windows of a stream that never ends; more are forgotten by the result, not by ``to``.
_REMEMBERED = 10_000

_QUANTILES = (0.5, 0.95, 0.99)
_ACCURACY = 1000


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


OnWindows = Callable[[Sequence[Window]], None]


@dataclasses.dataclass(frozen=True)
class MetricsResult(Totals):
    """``windows`` in order of time, each as it was last heard of; ``rows`` are messages."""

    windows: tuple[Window, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """What is counted. Durations as Spark spells them: ``"10 seconds"``."""

    window: str = "1 minute"
    watermark: str = "1 minute"
    key: str | None = None
    top: int = 10

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UsageError(f"top is {self.top}, but must be at least 1")


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
    on_windows: OnWindows | None = None,
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

    Without ``to``, every window is reported as far as it is known, and all is forgotten in the end: what had
    been received and not counted when the process dies is not counted. With ``to``, windows are reported and
    written there as Parquet, exactly once, when they are closed, which is ``watermark`` after their end by
    the messages' own time; the last ones follow with the next call. Messages later than that are left out.
    """
    measure = Measure(window=window, watermark=watermark, key=key, top=top)
    with contextlib.ExitStack() as stack:
        # The query's last threads may still be at files that are deleted.
        forgotten = tempfile.TemporaryDirectory(prefix="nsq-metrics-", ignore_cleanup_errors=True)
        root = stack.enter_context(forgotten) if to is None else below(to)
        given = {"retention": "0"}
        if to is None and checkpoint is None:
            given["startingposition"] = "committed"  # each call has a checkpoint of its own
        given |= {name.lower(): value for name, value in (options or {}).items()}
        reading = stream_options(
            topic, channel, nsqd=nsqd, lookupd=lookupd, wal=default_wal(root, wal), options=given
        )
        running = Running(
            checkpoint=checkpoint or below(root, "_checkpoint"),
            follow=follow,
            every=every,
            stop=stop,
            progress=progress,
            mode="append" if to is not None else "update",
        )
        session = stack.enter_context(session_or_own(spark))
        frame = open_stream(session, reading)
        return measure_stream(frame, root if to is not None else None, measure, running, on_windows)


def measure_stream(
    stream: DataFrame, to: str | None, measure: Measure, running: Running, on_windows: OnWindows | None = None
) -> MetricsResult:
    """The same for any stream with the columns of the source."""
    files = open_files(to, stream.sparkSession) if to is not None else None
    known: dict[datetime.datetime, Window] = {}

    def handle(part: DataFrame, batch: Batch) -> Published:
        changed, written = _changed(part, files, batch)
        before = [known.get(each.start) for each in changed]
        known.update((each.start, each) for each in changed)
        for start in sorted(known)[:-_REMEMBERED]:
            del known[start]
        if on_windows is not None and changed:
            on_windows(changed)
        return Published(
            sum(each.messages for each in changed) - sum(each.messages for each in before if each),
            sum(each.bytes for each in changed) - sum(each.bytes for each in before if each),
            written,
            again=False,
        )

    totals = run(measured(stream, measure), handle, running)
    windows = tuple(known[start] for start in sorted(known))
    return MetricsResult(windows=windows, **vars(totals))


def _changed(part: DataFrame, files: Files | None, batch: Batch) -> tuple[list[Window], int]:
    """What a batch reports, in order, and how many files it became."""
    if files is None:
        return _windows(part), 0
    part.persist()  # windows are few, and making them means going through the batch
    try:
        changed = _windows(part)

        def write(uri: str) -> Written:
            return write_parquet(part.coalesce(1).withColumn(BYTES, part["bytes"]), uri)

        return changed, publish(files, batch, write).files if changed else 0
    finally:
        part.unpersist()


def _windows(part: DataFrame) -> list[Window]:
    return sorted((window_of(row) for row in part.collect()), key=lambda each: each.start)


def measured(stream: DataFrame, measure: Measure) -> DataFrame:
    """A row for each window, as it is stored."""
    from pyspark.sql import functions as f

    # A batch's time is in the checkpoint: run again, it comes to the same figures. An aggregate of Spark's
    # does not accept it directly.
    late = (f.unix_micros(f.current_timestamp()) - f.unix_micros("timestamp")) / 1e6
    rows = stream.withWatermark("timestamp", measure.watermark).withColumn("_late", late)
    aggregates = _aggregates()
    if measure.key is not None:
        rows = rows.withColumn("text", f.make_valid_utf8(f.col("body").cast("string")))
        rows = rows.withColumn("_key", _key(measure.key).cast("string"))
        aggregates.append(f.expr(f"approx_top_k(_key, {measure.top})").alias("top"))
    found = rows.groupBy(f.window("timestamp", measure.window).alias("window")).agg(*aggregates)
    return found.select("window.start", "window.end", *found.columns[1:])


def _aggregates() -> list[Column]:
    from pyspark.sql import functions as f

    quantiles = f.percentile_approx("_late", list(_QUANTILES), _ACCURACY)
    return [
        f.count(f.lit(1)).alias("messages"),
        f.sum(f.octet_length("body")).alias("bytes"),
        f.avg("_late").alias("latency_avg"),
        *(quantiles[place].alias(f"latency_p{round(each * 100)}") for place, each in enumerate(_QUANTILES)),
        f.avg("attempts").alias("attempts_avg"),
        f.max("attempts").alias("attempts_max"),
        f.count_if(f.col("attempts") > 1).alias("redelivered"),
    ]


def _key(key: str) -> Column:
    from pyspark.sql import functions as f

    return f.get_json_object("text", key) if key.startswith("$") else f.expr(key)


def window_of(row: Row) -> Window:
    values = row.asDict()
    top = tuple((each["item"], each["count"]) for each in values.pop("top", None) or ())
    # Spark hands out local time without saying so.
    start, end = (values.pop(name).astimezone(datetime.UTC) for name in ("start", "end"))
    return Window(start, end, **values, top=top)
