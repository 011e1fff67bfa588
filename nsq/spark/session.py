"""Creates a Spark session for one machine, and registers our formats with a session that did not find them.
Imports pyspark only when called.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union

from nsq.errors import ConfigError, UsageError, how_to_install
from nsq.findings import FAILURE
from nsq.spark import doctor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A session, or a function that starts one; None: the active session or a new one.
GivenSession = Union["SparkSession", Callable[[], "SparkSession"], None]

#: The longest that ``query.stop()`` waits for a query that does not react; Spark's default is forever.
STOP_TIMEOUT = "60s"

# Set below spark-submit, which has started the JVM and chosen the master.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def local_session(
    *,
    master: str | None = None,
    app: str = "nsq-spark",
    conf: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """Return the active session, or a new one: all cores of this machine, no web UI, UTC, few shuffle
    partitions, little logging.

        spark = local_session(conf={"spark.driver.memory": "4g"})

    ``master`` and ``conf`` override these settings. Below spark-submit, its own master and settings apply.
    Raises ConfigError, in one line, when Java or a package is missing.
    """
    session_class = _session_class()
    if session_class.getActiveSession() is None:
        refuse_obstacles(master)
    # Spark would start `python3` from PATH, which may lack this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _is_local(master):
        # A laptop's host name often resolves to an address that it does not have now.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen: dict[str, Any] = {**settings(master), **(conf or {})}
    _start_jvm(chosen)
    spark: SparkSession = session_class.builder.appName(app).config(map=chosen).getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    return spark


def _start_jvm(conf: Mapping[str, str]) -> None:
    """Start Spark's JVM, unless there is one, in a session of its own.

    ``kill %1`` and ``timeout`` signal a whole process group. This process then lets the batch under way end,
    and needs the JVM for that.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None and _SUBMITTED not in os.environ:
        given = SparkConf().setAll(list(conf.items()))
        own = launch_gateway(given, {"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=own)


@contextlib.contextmanager
def session_or_own(spark: GivenSession) -> Iterator[SparkSession]:
    """Yield ``spark`` itself or what it returns, the active session, or a new one that is stopped after the
    block.
    """
    given = spark() if callable(spark) else spark or _session_class().getActiveSession()
    session = given or local_session()
    try:
        yield session
    finally:
        if given is None:
            session.stop()


def settings(master: str | None) -> dict[str, str]:
    """The default configuration of a session."""
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": STOP_TIMEOUT,
    }
    if _is_local(master):
        chosen["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    if master is not None or _SUBMITTED not in os.environ:
        chosen["spark.master"] = master or "local[*]"
    return chosen


def refuse_obstacles(master: str | None) -> None:
    """Raise ConfigError if a quick check finds that Spark cannot start here, or its workers cannot run."""
    if _SUBMITTED in os.environ:
        return  # Java runs already
    checks = [*doctor.check_packages(), doctor.check_java()]
    # A cluster's workers have their own Python, whose path may not exist here.
    checks += [doctor.check_workers()] if _is_local(master) else []
    for found in checks:
        if found.level == FAILURE:
            raise ConfigError(f"{found.where}: {found.found}; {found.remedy}")


def _is_local(master: str | None) -> bool:
    if master is None:
        return _SUBMITTED not in os.environ
    return master.split("[")[0] == "local"


def _session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"Spark is not installed ({error}): {how_to_install('spark')}") from error
    return SparkSession


def register(spark: SparkSession) -> None:
    """Register the formats "nsq" and "nsq_stats" with this session.

    Raises UsageError when the Python of Spark's workers lacks a package that they need.
    """
    from nsq.spark.source.stream import NsqDataSource
    from nsq.spark.stats import NsqStatsDataSource

    try:
        python = shutil.which(spark.sparkContext.pythonExec)
    except Exception:  # Spark Connect has no context: its server chooses the Python
        python = None
    another = python if python and os.path.abspath(python) != os.path.abspath(sys.executable) else None
    if another and (error := doctor.worker_error(another)):
        raise UsageError(
            f"Spark's workers cannot run this. {another}{error}. Install what is missing, or set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made"
        )
    spark.dataSource.register(NsqDataSource)
    spark.dataSource.register(NsqStatsDataSource)
