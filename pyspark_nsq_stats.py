"""Like ``pyspark_nsq``, for ``format("nsq_stats")``: Spark takes one format from each such module."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq.spark.batch import NsqStatsDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from nsq.spark.batch import NsqStatsDataSource
    except Exception as error:  # whatever it is, other formats must not suffer
        from pyspark_nsq import unusable

        return unusable("nsq_stats", error)
    return NsqStatsDataSource
