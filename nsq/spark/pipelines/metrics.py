"""``metrics`` counts a topic's messages by window of time; also draws charts of metrics and archives. Imports
matplotlib only when a chart is drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError, how_to_install
from nsq.spark.pipelines import streaming
from nsq.spark.pipelines.archive import BYTES, write_parquet
from nsq.spark.pipelines.files import Batch, Files, Written, below, check_writable, open_files, publish
from nsq.spark.pipelines.streaming import Addresses, OnProgress, Running, Totals
from nsq.spark.session import GivenSession, session_or_own

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

# The most windows in a result: an endless stream drops the oldest ones. ``to`` keeps all.
_REMEMBERED = 10_000

_QUANTILES = {"latency_p50": 0.5, "latency_p95": 0.95, "latency_p99": 0.99}


@dataclasses.dataclass(frozen=True)
class Window:
    """The messages with timestamps in ``[start, end)``. Latencies are seconds from the timestamp to the batch
    that counted the message. ``redelivered`` counts messages with more than one attempt. ``top`` holds the
    most frequent keys with approximate counts.
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
    """The result of ``metrics``: ``windows`` by time, with their last values; ``rows`` counts messages."""

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
    spark: GivenSession = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> MetricsResult:
    """Count messages, bytes, latency, attempts and the most frequent keys of each window of time.

        result = nsq.spark.metrics("orders", nsqd="127.0.0.1:4150", window="10 seconds", key="$.country")
        nsq.spark.metrics_chart(result.windows, "orders.png")

    It consumes the channel's messages, so it needs its own channel. ``key`` is a path into JSON bodies,
    ``$.a.b``, or an SQL expression of the columns and ``text``, the body as text, such as ``left(text, 3)``.
    After each batch, ``on_windows`` gets the windows that have changed. ``follow`` and ``every`` work as in
    ``archive``.

    Without ``to``, messages of any age are counted, and windows are reported while they are incomplete.
    Without ``wal`` too, nothing is kept after the call: of the messages that are published during the call,
    some may be received and not counted. Give ``wal`` to have the next call count them.

    With ``to``, a window is reported, and written there as Parquet exactly once, when it closes: when a
    message comes whose timestamp is ``watermark`` after its end. The last windows follow in the next call.
    Messages that come after their window has closed are not counted: NSQ mixes old and new messages, so
    choose a ``watermark`` longer than the age of a backlog.
    """
    check_windows(window, watermark, top)
    with contextlib.ExitStack() as stack:
        if to is None:
            # Ignore errors: the query's last threads may still use the files.
            temporary = tempfile.TemporaryDirectory(prefix="nsq-metrics-", ignore_cleanup_errors=True)
            root = stack.enter_context(temporary)
        else:
            root = below(to)
        chosen: dict[str, Any] = {"retention": "0"}
        if to is None and checkpoint is None:
            chosen["startingposition"] = "committed"  # each call has its own checkpoint
        chosen |= options or {}
        reading = streaming.stream_options(root, topic, channel, nsqd, lookupd, wal, chosen)
        mode = "append" if to is not None else "update"
        running = Running(checkpoint or below(root, "_checkpoint"), follow, every, stop, progress, mode)
        check_writable("to", root)
        frame = stack.enter_context(streaming.open_stream(spark, reading))
        # Without ``to`` all windows stay open until the call ends.
        rows = measured(frame, window, watermark if to is not None else None, key, top)
        return collect_windows(rows, root if to is not None else None, running, on_windows)


_INTERVAL = re.compile(
    r"(interval\s+)?([0-9.]+\s+(microsecond|millisecond|second|minute|hour|day|week)s?(\s+|$))+",
    re.IGNORECASE,
)


def check_windows(window: str, watermark: str, top: int) -> None:
    if top < 1:
        raise UsageError(f"top is {top}, but must be at least 1")
    check_interval("window", window)
    check_interval("watermark", watermark)


def check_interval(name: str, text: str) -> None:
    """Check how a length of time is spelt, because Spark does so only once it runs. Raises ConfigError."""
    if _INTERVAL.fullmatch(text.strip()) is None:
        wanted = "a time as Spark spells it, such as '1 minute', '1 hour 30 minutes' or '200 milliseconds'"
        raise ConfigError(f"{name} is {text!r}, but must be {wanted}")


def collect_windows(
    rows: DataFrame,
    to: str | None,
    running: Running,
    on_windows: Callable[[Sequence[Window]], None] | None = None,
) -> MetricsResult:
    """Run the query that ``measured`` returns."""
    files = open_files(to, rows.sparkSession) if to is not None else None
    known: dict[datetime.datetime, Window] = {}

    def absorb(done: tuple[list[Window], int]) -> Written:
        changed, written = done
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

    totals = streaming.run(rows, partial(windows_of_batch, files), running, absorb)
    return MetricsResult(windows=tuple(known[start] for start in sorted(known)), **vars(totals))


def windows_of_batch(files: Files | None, part: DataFrame, batch: Batch) -> tuple[list[Window], int]:
    """The windows of a batch, by time, and how many files were written."""
    part.persist()  # windows are few, and computing them again would read the whole batch
    write = partial(write_parquet, part.coalesce(1).withColumn(BYTES, part["bytes"]))
    try:
        changed = sorted(map(window_of, part.collect()), key=lambda each: each.start)
        return changed, publish(files, batch, write).files if files and changed else 0
    finally:
        part.unpersist()


def measured(stream: DataFrame, window: str, watermark: str | None, key: str | None, top: int) -> DataFrame:
    """A frame with one row per window, of any stream with the source's columns. Without ``watermark`` windows
    stay open.
    """
    from pyspark.sql import functions as f

    # current_timestamp is the batch's time, which the checkpoint stores, so a repeated batch gives the same
    # result. A column of its own, because Spark does not accept current_timestamp inside an aggregate.
    late = (f.unix_micros(f.current_timestamp()) - f.unix_micros("timestamp")) / 1e6
    rows = (stream.withWatermark("timestamp", watermark) if watermark else stream).withColumn("_late", late)
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
    # Spark returns naive datetimes in local time.
    start, end = (values.pop(name).astimezone(datetime.UTC) for name in ("start", "end"))
    return Window(start, end, **values, top=top)


# Charts


_SECOND = 1_000_000_000
_BARS_AT_MOST = 200
_TITLE: Any = {"loc": "left", "color": "#334155"}
_LINES = (
    ("latency_p50", "p50", "#16a34a"),
    ("latency_p95", "p95", "#d97706"),
    ("latency_p99", "p99", "#dc2626"),
)


def metrics_chart(
    windows: Sequence[Window],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    size: tuple[float, float] = (10, 6),
) -> str:
    """Draw messages per second above and their latency below. The image's format is the suffix of ``path``.

        nsq.spark.metrics_chart(result.windows, "orders.png", title="orders")

    Returns the path. ``size`` is in inches, 100 pixels each.
    """
    if not windows:
        raise UsageError("there is nothing to draw: no window has been counted")
    bars = [(each.start, each.end - each.start, each.messages) for each in windows]
    times = f"{windows[0].start:%Y-%m-%d %H:%M:%S} to {windows[-1].end:%H:%M:%S}"
    figure, (above, below) = _rates(bars, size, 2)
    from matplotlib import dates

    above.set_title(title or f"{sum(each.messages for each in windows):,} messages, {times}", **_TITLE)
    middles: Any = [start + length / 2 for start, length, _ in bars]
    # Without a value for missing windows, the line would be drawn straight across them.
    gaps = [place for place in range(1, len(windows)) if windows[place].start > windows[place - 1].end]
    for place in reversed(gaps):
        middles.insert(place, windows[place - 1].end)
    for name, label, colour in _LINES:
        values = [getattr(each, name) for each in windows]
        for place in reversed(gaps):
            values.insert(place, math.nan)
        below.plot(middles, values, label=label, color=colour, marker="o", markersize=3)
    below.set_ylabel("latency in seconds")
    # Space for the legend.
    below.set_ylim(0, 1.25 * max(each.latency_p99 for each in windows) or 1)
    below.legend(loc="upper left", frameon=False, ncols=len(_LINES))
    below.set_xlabel("UTC")
    formatter: Any = dates.ConciseDateFormatter
    below.xaxis.set_major_formatter(formatter(below.xaxis.get_major_locator()))
    figure.savefig(path, dpi=100)
    return os.fspath(path)


def archive_chart(
    path: str, image: str | os.PathLike[str], *, title: str = "", spark: GivenSession = None
) -> str:
    """Draw an archive's messages per second, by their timestamps, as an image. Returns its path."""
    from nsq.spark.pipelines.replay import read_archive

    with session_or_own(spark) as session:
        from pyspark.sql import functions as f

        frame = read_archive(session, path)
        least, last = frame.agg(f.min("timestamp_ns"), f.max("timestamp_ns")).collect()[0]
        if least is None:
            raise UsageError(f"there is nothing to draw: the archive {path} is empty")
        # The width of a bar: whole seconds, so that there are at most about 200 bars.
        span = max(1, (last - least) // _SECOND // _BARS_AT_MOST + 1)
        start = f.expr(f"(timestamp_ns div {span * _SECOND}) * {span}").alias("start")
        counted = frame.groupBy(start).count().orderBy("start").collect()
    length = datetime.timedelta(seconds=span)
    bars = [(datetime.datetime.fromtimestamp(row[0], datetime.UTC), length, row[1]) for row in counted]
    figure, (axes,) = _rates(bars, (10, 4), 1)
    axes.set_title(title or f"{sum(row[1] for row in counted):,} messages", **_TITLE)
    axes.set_xlabel("UTC")
    figure.savefig(image, dpi=100)
    return os.fspath(image)


def _rates(
    bars: Sequence[tuple[datetime.datetime, datetime.timedelta, int]], size: tuple[float, float], rows: int
) -> Any:
    """Make a figure with ``rows`` axes, of which the first shows the bars: start, length, messages."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"a chart needs matplotlib ({error}): {how_to_install('chart')}") from error
    # Not with pyplot, which keeps all figures and needs a display.
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", alpha=0.3)
        each.set_axisbelow(True)
    starts, lengths, _ = zip(*bars, strict=True)
    heights = [messages / length.total_seconds() for _, length, messages in bars]
    axes[0].bar(
        starts, heights, width=lengths, align="edge", color="#7dd3fc", edgecolor="white", linewidth=0.5
    )
    axes[0].set_ylabel("messages per second")
    return figure, axes
