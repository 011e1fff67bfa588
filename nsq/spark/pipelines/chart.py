"""``metrics_chart``: windows as a picture. Loads matplotlib only when one is drawn."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from nsq.spark.pipelines.metrics import Window

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
    above.set_title(title or _summary(windows), loc="left", color=_INK)
    formatter: Any = dates.ConciseDateFormatter
    below.xaxis.set_major_formatter(formatter(below.xaxis.get_major_locator()))
    figure.savefig(path, dpi=100)
    return os.fspath(path)


def _axes(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"a chart needs matplotlib ({error}): pip install 'nsq[chart]'") from error
    # Not by pyplot, which keeps what it has drawn, and wants a display.
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", alpha=0.3)
        each.set_axisbelow(True)
    return figure, axes


def _summary(windows: Sequence[Window]) -> str:
    count = sum(each.messages for each in windows)
    return f"{count:,} messages, {windows[0].start:%Y-%m-%d %H:%M:%S} to {windows[-1].end:%H:%M:%S}"
