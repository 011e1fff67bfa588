"""Charts of windows and of archives. Loads matplotlib only when one is drawn."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq.spark.pipelines.metrics import Window

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
    """Messages per second above, their latency below, as an image of the kind that ``path`` ends in.

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
    for name, label, colour in _LINES:
        values = [getattr(each, name) for each in windows]
        below.plot(middles, values, label=label, color=colour, marker="o", markersize=3)
    below.set_ylabel("latency in seconds")
    # Room for the legend.
    below.set_ylim(0, 1.25 * max(each.latency_p99 for each in windows) or 1)
    below.legend(loc="upper left", frameon=False, ncols=len(_LINES))
    below.set_xlabel("UTC")
    formatter: Any = dates.ConciseDateFormatter
    below.xaxis.set_major_formatter(formatter(below.xaxis.get_major_locator()))
    figure.savefig(path, dpi=100)
    return os.fspath(path)


def archive_chart(
    path: str, image: str | os.PathLike[str], *, title: str = "", spark: SparkSession | None = None
) -> str:
    """Messages per second of an archive, by their timestamps, as an image. Returns its path."""
    from nsq.spark.pipelines.replay import read_archive
    from nsq.spark.session import session_or_own

    with session_or_own(spark) as session:
        from pyspark.sql import functions as f

        frame = read_archive(session, path)
        least, last = frame.agg(f.min("timestamp_ns"), f.max("timestamp_ns")).collect()[0]
        if least is None:
            raise UsageError(f"there is nothing to draw: the archive {path} is empty")
        # Whole seconds, of which there are not too many.
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
    """A figure with so many rows, and its axes; the first of them shows the bars: start, length, messages."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"a chart needs matplotlib ({error}): pip install 'nsq[chart]'") from error
    # Not by pyplot, which keeps what it has drawn, and wants a display.
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
