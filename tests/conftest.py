"""Fixtures for every test: a test must leave nothing behind.

``NSQ_TEST_SWITCH_INTERVAL=1e-6 pytest tests/unit`` switches threads thousands of times as often as usual, so
that rare races show within minutes. ``NSQ_TEST_LATE``: see ``tests.late``.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from nsq.testing import leaks
from nsq.threads.signals import _AfterStop
from tests.late import LateLines

# The time of an example depends on the load of the machine, so no test limits it.
hypothesis.settings.register_profile(
    "patient",
    max_examples=int(os.environ.get("NSQ_TEST_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")

#: Seconds for threads and processes to end, on a busy machine.
GRACE = float(os.environ.get("NSQ_TEST_LEAK_GRACE", 30.0))

# The installed package registers it; name it here for a tree that is not installed.
pytest_plugins = ["nsq.testing.plugin"]

TESTS = Path(__file__).resolve().parent
SPARK_TESTS = ["unit/spark", "integration/spark", "spark"]
SPARK_LACKS = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
collect_ignore = SPARK_TESTS if SPARK_LACKS else []


def pytest_report_header() -> str:
    return spark_said()


#: A copy of stderr, because pytest captures stderr itself while a test runs.
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)
    # A shell's background jobs ignore SIGINT, and so would programs that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if SPARK_LACKS and os.environ.get("NSQ_REQUIRE_SPARK"):
        raise pytest.UsageError(f"{spark_said()}, and NSQ_REQUIRE_SPARK is set")
    if "NSQ_TEST_LATE" in os.environ:
        pause = float(os.environ.get("NSQ_TEST_LATE_PAUSE", "0.01"))
        config.pluginmanager.register(LateLines(os.environ["NSQ_TEST_LATE"], pause, config.rootpath))
    sys.setswitchinterval(float(os.environ.get("NSQ_TEST_SWITCH_INTERVAL", sys.getswitchinterval())))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
    """Repeat what failed as the last thing: of a log that is cut, the end is kept."""
    try:
        return (yield)
    finally:
        for kind in ("failed", "error"):
            for report in terminalreporter.stats.get(kind, [])[:3]:
                terminalreporter.write_line(
                    f"{report.nodeid}, at {report.when}: …{report.longreprtext[-1500:]}"
                )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process of a test that hangs although pytest-timeout should end it; show where its threads are.

    pytest-timeout raises an exception out of SIGALRM: a test may use that signal too, or swallow it.
    """
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + 2 * GRACE, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


#: Folders whose tests share something costly: Spark's JVM, or the programs of other clients.
SHARING = ("tests/spark/", "tests/interop/")
#: Starts Sparks of its own.
ALONE = "tests/spark/test_demo.py"


def group_of(nodeid: str) -> str:
    """Return the file of a test, or its folder in SHARING: one process runs all tests of such a group."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in SHARING if file.startswith(folder) and file != ALONE), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest groups first: if they began late, all processes would wait for one."""
    order = (*SHARING, "tests/integration/", "")
    items.sort(key=lambda item: [item.nodeid.startswith(begin) for begin in order].index(True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Unlike xdist, do not run a test again that has ended its process: it would end others, too."""
            units = self.assigned_work.pop(node)
            left = [(unit, test) for unit in units.values() for test, done in unit.items() if not done]
            if not left:
                return None
            unit, crashed = left[0]
            unit[crashed] = True
            self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

    return ByGroup(config, log)


def spark_said() -> str:
    lacks = f"NO SPARK TESTS: {' and '.join(SPARK_LACKS)} not installed (pip install 'nsq[spark]')"
    return lacks if SPARK_LACKS else "spark: its tests are included"


@pytest.fixture(scope="session")
def watched_directories(pytestconfig: pytest.Config) -> list[Path]:
    """Return the directories to watch for new files: the working directory, the repository, tests/."""
    below = [path for path in TESTS.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    return list(dict.fromkeys([Path.cwd(), pytestconfig.rootpath, TESTS, *below]))


@pytest.fixture(autouse=True)
def usual_signal_handlers() -> Iterator[None]:
    """Unwrap the handlers that a stop by a signal leaves behind: they ignore its repetitions for a second."""
    yield
    for number in (signal.SIGTERM, signal.SIGINT):
        handler = signal.getsignal(number)
        if isinstance(handler, _AfterStop):
            signal.signal(number, handler.handler)


@pytest.fixture(autouse=True)
def nothing_left_behind(watched_directories: list[Path]) -> Iterator[None]:
    """Fail a test that leaves a thread, a descriptor, a child process or a file behind, and name it.

    pytest sets up fixtures of wider scope first, so their resources are in the snapshot. It tears this one
    down after the other fixtures of the test, so these have cleaned up by then.
    """

    before = leaks.snapshot(watched_directories)
    yield
    left = leaks.leftovers(before, lambda: leaks.snapshot(watched_directories), grace=GRACE)
    if left:
        pytest.fail("this test left behind:\n  " + "\n  ".join(leaks.describe(left)), pytrace=False)
