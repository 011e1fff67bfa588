"""Lets Spark find ``format("nsq_stats")``, as ``pyspark_nsq`` does for "nsq": each module has one format."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq.spark.stats import NsqStatsDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from nsq.spark.stats import NsqStatsDataSource
    except Exception as error:  # an error here would break other formats too
        from pyspark_nsq import unusable

        return unusable("nsq_stats", error)
    return NsqStatsDataSource
