"""``metrics_chart``: windows as a picture. Loads matplotlib only when one is drawn."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq.spark.pipelines.metrics import Window

_BARS_AT_MOST = 200
_INK = "#334155"
_BARS = "#7dd3fc"
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
    figure, (above, below) = _axes(size)
    from matplotlib import dates

    starts = [each.start for each in windows]
    seconds = [(each.end - each.start).total_seconds() for each in windows]
    rates = [each.messages / length for each, length in zip(windows, seconds, strict=True)]
    widths: Any = [datetime.timedelta(seconds=length) for length in seconds]
    above.bar(starts, rates, width=widths, align="edge", color=_BARS, edgecolor="white", linewidth=0.5)
    above.set_ylabel("messages per second")
    middles: Any = [each.start + (each.end - each.start) / 2 for each in windows]
    for name, label, colour in _LINES:
        values = [getattr(each, name) for each in windows]
        below.plot(middles, values, label=label, color=colour, marker="o", markersize=3)
    below.set_ylabel("latency in seconds")
    # Room for the legend.
    below.set_ylim(0, 1.25 * max(each.latency_p99 for each in windows) or 1)
    below.legend(loc="upper left", frameon=False, ncols=len(_LINES))
    below.set_xlabel("UTC")
    count = sum(each.messages for each in windows)
    times = f"{windows[0].start:%Y-%m-%d %H:%M:%S} to {windows[-1].end:%H:%M:%S}"
    above.set_title(title or f"{count:,} messages, {times}", loc="left", color=_INK)
    formatter: Any = dates.ConciseDateFormatter
    below.xaxis.set_major_formatter(formatter(below.xaxis.get_major_locator()))
    figure.savefig(path, dpi=100)
    return os.fspath(path)


def archive_chart(
    path: str, image: str | os.PathLike[str], *, title: str = "", spark: SparkSession | None = None
) -> str:
    """Messages per second of an archive, by their timestamps, as an image. Returns its path."""
    from nsq.spark.pipelines.replay import selected_times
    from nsq.spark.session import session_or_own

    with session_or_own(spark) as session:
        counted, seconds = selected_times(session, path, _BARS_AT_MOST)
    if not counted:
        raise UsageError(f"there is nothing to draw: the archive {path} is empty")
    figure, (above,) = _axes((10, 4), rows=1)
    starts = [start for start, _ in counted]
    width: Any = datetime.timedelta(seconds=seconds)
    rates = [messages / seconds for _, messages in counted]
    above.bar(starts, rates, width=width, align="edge", color=_BARS, edgecolor="white", linewidth=0.5)
    above.set_ylabel("messages per second")
    above.set_xlabel("UTC")
    above.set_title(title or f"{sum(messages for _, messages in counted):,} messages", loc="left", color=_INK)
    figure.savefig(image, dpi=100)
    return os.fspath(image)


def _axes(size: tuple[float, float], rows: int = 2) -> Any:
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
    return figure, axes
