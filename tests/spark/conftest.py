"""One Spark session for the tests here, daemons, and a check for leaks that ignores Spark's connections."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsq.findings import FAILURE
from nsq.spark import doctor
from nsq.spark.session import STOP_TIMEOUT
from nsq.testing import leaks
from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory
from tests.fakes.s3 import CREDENTIALS
from tests.spark.home import make_home
from tests.spark.jvm import gateway, without_py4j

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["nsqd", "nsqd_factory", "nsqlookupd", "nsqlookupd_factory"]

#: Set where the tests are to judge something: then a machine that cannot run them is a failure.
REQUIRED = "NSQ_REQUIRE_SPARK"
#: The first batch of a session takes seconds on a good day, and many times that on a bad one.
_TIMEOUT = 600
#: Seconds for what is on its way out.
_GRACE = 30.0
_ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(_TIMEOUT))


@pytest.fixture(scope="package")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment of tests that start a Spark of their own."""
    _require_java()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_HOME", str(make_home(tmp_path_factory.mktemp("spark") / "home")))
        yield


@pytest.fixture(scope="package")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores. It tries a failed task twice more."""
    where = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        for name, value in CREDENTIALS.items():  # Spark's processes inherit the JVM's environment
            environment.setenv(name, value)
        # Workers run in a directory of Spark's; the package need not be installed.
        environment.setenv("PYTHONPATH", os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        session = _session(where)
        try:
            yield session
        finally:
            gateway = session.sparkContext._gateway
            session.stop()
            _end(gateway)


def _require_java() -> None:
    found = doctor.check_java()
    if found.level == FAILURE:
        reason = f"Spark tests need Java: {found.found}; {found.remedy}"
        if os.environ.get(REQUIRED):
            pytest.fail(reason, pytrace=False)
        pytest.skip(f"{reason}. {REQUIRED}=1 makes this a failure")


def _session(where: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2,3]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stopTimeout", STOP_TIMEOUT)
        .config("spark.sql.warehouse.dir", str(where / "warehouse"))
        .config("spark.local.dir", str(where / "local"))
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _end(gateway: object) -> None:
    """End the JVM, which pyspark leaves running until the interpreter ends: the next tests may be others."""
    from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER, FinalizerWorker  # type: ignore[import-untyped]
    from pyspark import SparkContext

    # A thread of py4j tells the JVM of objects that are gone. After the JVM has ended it would dial in vain.
    gateway._gateway_client.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if isinstance(thread, FinalizerWorker):
            thread.join(120)
    gateway.shutdown()  # type: ignore[attr-defined]
    process = gateway.proc  # type: ignore[attr-defined]
    process.stdin.close()
    process.wait(120)
    SparkContext._gateway = None
    SparkContext._jvm = None


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the fonts open that it has used."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.suptitle("orders")
    figure.add_subplot().set_ylabel("1.0")
    figure.savefig(tmp_path_factory.mktemp("fonts") / "warm.png")


@pytest.fixture(autouse=True)
def nothing_left_behind(watched_directories: list[Path], request: pytest.FixtureRequest) -> Iterator[None]:
    """As everywhere, but the session begins before the test: its JVM is not the test's."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark")
    if gateway() is not None:
        from pyspark.java_gateway import ensure_callback_server_started

        # From now on the JVM can call us back: foreachBatch does.
        ensure_callback_server_started(gateway())  # type: ignore[no-untyped-call]

    def look() -> leaks.Snapshot:
        return without_py4j(leaks.snapshot(watched_directories))

    before = look()
    yield
    left = leaks.leftovers(before, look, grace=_GRACE)
    if left:
        pytest.fail("this test left behind:\n  " + "\n  ".join(leaks.describe(left)), pytrace=False)
