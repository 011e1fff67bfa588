"""A Spark session for one machine, for those who bring none; and our formats made known to a session that has
not found them itself. Loads pyspark only then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nsq.errors import ConfigError, UsageError
from nsq.spark import doctor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# spark-submit has started the JVM already, and has decided where things run.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def local_session(
    *,
    master: str | None = None,
    app: str = "nsq-spark",
    conf: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """The session there is, or a new one: all cores of this machine, no web interface, UTC, few shuffle
    partitions, quiet.

        spark = local_session(conf={"spark.driver.memory": "4g"})

    ``master`` and ``conf`` overrule that. Below spark-submit, its own master and settings hold. Raises
    ConfigError, in a line, where Java or a package is missing: Spark's own words are many.
    """
    session_class = _session_class()
    if session_class.getActiveSession() is None:
        refuse_obstacles(master)
    # Spark would start `python3` of the PATH, which may be another one, without this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _is_local(master):
        # A laptop's host name often leads to an address it does not have just now.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = session_class.builder.appName(app).config(map={**settings(master), **(conf or {})})
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    return spark


@contextlib.contextmanager
def session_or_own(spark: SparkSession | None) -> Iterator[SparkSession]:
    """``spark`` itself, or the active one, or one that lives as long as the block."""
    existing = spark or _session_class().getActiveSession()
    session = existing or local_session()
    try:
        yield session
    finally:
        if existing is None:
            session.stop()


def settings(master: str | None) -> dict[str, str]:
    """The configuration of the session, where nothing else is said."""
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    if _is_local(master):
        chosen["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    if master is not None or _SUBMITTED not in os.environ:
        chosen["spark.master"] = master or "local[*]"
    return chosen


def refuse_obstacles(master: str | None) -> None:
    """A quick look at what would keep Spark from starting here, and its workers from working."""
    if _SUBMITTED in os.environ:
        return  # Java runs already
    looked_at = [*doctor.check_packages(), doctor.check_java()]
    # Workers of a cluster have a Python of their own, under a name that may mean nothing here.
    looked_at += [doctor.check_workers()] if _is_local(master) else []
    for found in looked_at:
        if found.state == doctor.WRONG:
            raise ConfigError(f"{found.what}: {found.text}; {found.remedy}")


def _is_local(master: str | None) -> bool:
    if master is None:
        return _SUBMITTED not in os.environ
    return master.split("[")[0] == "local"


def _session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"Spark is not installed ({error}): pip install 'nsq[spark]'") from error
    return SparkSession


def register(spark: SparkSession) -> None:
    """Make the formats "nsq" and "nsq_stats" known to this session; changes nothing else.

    Raises UsageError when Spark's workers would start with a Python that lacks what they need.
    """
    from nsq.spark.batch import NsqStatsDataSource
    from nsq.spark.source.stream import NsqDataSource

    try:
        python = shutil.which(spark.sparkContext.pythonExec)
    except Exception:  # Spark Connect has no context, and says so in its own way: it is decided elsewhere
        python = None
    another = python if python and os.path.abspath(python) != os.path.abspath(sys.executable) else None
    if another and (fault := doctor.worker_fault(another)):
        raise UsageError(
            f"Spark's workers cannot run this. {another}{fault}. Install what is missing, or set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made"
        )
    spark.dataSource.register(NsqDataSource)
    spark.dataSource.register(NsqStatsDataSource)
