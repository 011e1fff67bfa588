"""Tells a Spark session about our formats, where it has not found them itself. Imports pyspark only then."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING

from nsq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_arrow() -> None:
    """Raises UsageError, in a line, in a Python that has none."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            f"pyarrow is missing in {sys.executable}: pip install 'nsq[spark]' there, or set "
            "PYSPARK_PYTHON to the Python that has it"
        )


def register(spark: SparkSession) -> None:
    """Make the formats "nsq" and "nsq_stats" known to this session; changes nothing else.

    Raises UsageError when Spark's workers would start with a Python that lacks what they need.
    """
    from nsq.spark.batch.stats import NsqStatsDataSource
    from nsq.spark.source.stream import NsqDataSource

    try:
        python = shutil.which(spark.sparkContext.pythonExec)
    except Exception:  # Spark Connect has no context, and says so in its own way: it is decided elsewhere
        python = None
    if python is not None and os.path.abspath(python) != os.path.abspath(sys.executable):
        from nsq.spark.doctor import worker_fault

        if fault := worker_fault(python):
            raise UsageError(
                f"Spark's workers cannot run this. {python}{fault}. Install what is missing, or set "
                f"PYSPARK_PYTHON={sys.executable} before the session is made"
            )
    spark.dataSource.register(NsqDataSource)
    spark.dataSource.register(NsqStatsDataSource)
