"""Tells a Spark session about our formats, where it has not found them itself. Imports pyspark only then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from nsq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: For another Python to import what it needs: Arrow is large, and disks are slow.
_PATIENCE = 60.0
#: All that workers need, but pyspark, which Spark itself shows them.
_PROBE = "import pyarrow, nsq.spark.receiver.receiving"


def register(spark: SparkSession) -> None:
    """Make the formats "nsq" and "nsq_stats" known to this session; changes nothing else.

    Raises UsageError when Spark's workers are to be started with a Python that lacks what they need.
    """
    from nsq.spark.batch.stats import NsqStatsDataSource
    from nsq.spark.source.format import NsqDataSource

    _check_workers(_worker_python(spark))
    spark.dataSource.register(NsqDataSource)
    spark.dataSource.register(NsqStatsDataSource)


def _worker_python(spark: SparkSession) -> str | None:
    """What Spark starts workers with; None if that is decided elsewhere, as with Spark Connect."""
    try:
        chosen = spark.sparkContext.pythonExec
    except Exception:  # Connect has no context, and says so in its own way
        return None
    return shutil.which(chosen)


def _check_workers(python: str | None) -> None:
    if python is None or os.path.abspath(python) == os.path.abspath(sys.executable):
        return
    tried = subprocess.run(
        [python, "-c", _PROBE],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(
            f"Spark's workers are {python}, which cannot run this: {reason}. Install it there, or set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made"
        )
