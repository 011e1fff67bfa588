"""NSQ for Spark: a source that loses no message, a sink, and ready pipelines. ``pip install 'nsq[spark]'``

    stream = (spark.readStream.format("nsq")
        .option("lookupd", "10.0.0.7:4161").option("topic", "orders").option("channel", "spark")
        .option("wal", "/data/orders-wal").load())

Spark finds the format by itself where this package is installed; otherwise call ``register(spark)``.
This module holds only the public names; importing it loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq.spark.listener import Listener as Listener
    from nsq.spark.pipelines.archive import archive as archive
    from nsq.spark.pipelines.metrics import archive_chart as archive_chart
    from nsq.spark.pipelines.metrics import metrics as metrics
    from nsq.spark.pipelines.metrics import metrics_chart as metrics_chart
    from nsq.spark.pipelines.replay import replay as replay
    from nsq.spark.receiver.job import receivers as receivers
    from nsq.spark.rows import dedup as dedup
    from nsq.spark.rows import json as json
    from nsq.spark.session import register as register

_HOME = {
    "Listener": "nsq.spark.listener",
    "archive": "nsq.spark.pipelines.archive",
    "archive_chart": "nsq.spark.pipelines.metrics",
    "dedup": "nsq.spark.rows",
    "json": "nsq.spark.rows",
    "metrics_chart": "nsq.spark.pipelines.metrics",
    "metrics": "nsq.spark.pipelines.metrics",
    "receivers": "nsq.spark.receiver.job",
    "register": "nsq.spark.session",
    "replay": "nsq.spark.pipelines.replay",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'nsq.spark' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
