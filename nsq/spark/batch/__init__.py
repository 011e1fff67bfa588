"""Reading with ``spark.read``: ``format("nsq")`` looks at messages, ``format("nsq_stats")`` at queues.

A look (``.option("mode", "peek")``) takes nothing from anybody: it is a temporary channel of its own, which
sees copies of what is published while it is there. What was published before is in the other channels and not
to be seen. Where a look would take messages after all, it is refused; ``safety`` says when that is.

Importing this loads no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nsq.spark.batch.peek import PeekReader
    from nsq.spark.batch.stats import NsqStatsDataSource as NsqStatsDataSource


def peek_reader(options: Mapping[str, str], schema: StructType) -> PeekReader:
    """Raises ConfigError, in one line, unless a look is what was asked for."""
    from nsq.spark.batch import peek

    return peek.peek_reader(options, schema)


def __getattr__(name: str) -> Any:
    if name == "NsqStatsDataSource":
        from nsq.spark.batch.stats import NsqStatsDataSource

        return NsqStatsDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
