"""A scene of a Spark test: messages are published, a stream writes them to Parquet, processes are killed,
and the rows are counted.

scene.publishing(): …            on and on, in a thread here
    scene.follow("local[2]")     Spark, in processes of its own
    scene.hold()                 a batch is logged, its tasks are half done
    scene.kill(JVM)
scene.drain()                    another driver reads the rest; its verdict
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsq.findings import FAILURE
from nsq.http.nsqd import NsqdApi
from nsq.spark import doctor
from nsq.testing import Nsqd
from tests.chaos import spark_driver, spark_processes
from tests.chaos.spark_driver import Act, Plan
from tests.chaos.spark_processes import DRIVER, EXECUTOR, JVM, MARK
from tests.chaos.spark_standalone import Standalone
from tests.integration.patience import eventually
from tests.spark.home import make_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds that anything may take on a machine that has other things to do.
PATIENCE = 300.0
TOPIC, CHANNEL = "orders", "spark"
#: What one receiver may have in flight: so much a kill of it may repeat.
WINDOW = 2500
_ROOT = Path(__file__).resolve().parents[2]
_AT_ONCE = 200


def require_spark() -> None:
    """Skip where there is none; with NSQ_REQUIRE_SPARK, fail."""
    if not sys.platform.startswith("linux"):
        pytest.skip("processes are found by their environment, in Linux's /proc")
    found = doctor.check_java()
    if found.level == FAILURE:
        reason = f"Spark needs Java: {found.found}; {found.remedy}"
        if os.environ.get("NSQ_REQUIRE_SPARK"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@dataclass(frozen=True)
class Verdict:
    """``duplicates``: rows that came again, of which ``repeated`` are the very same delivery of nsqd's: those
    the log, or Spark, would have made. ``foreign`` were never published. ``again``: rows of attempts > 1."""

    published: int
    missing: int
    duplicates: int
    repeated: int
    foreign: int
    again: int
    killed: int
    left: str  # in the log or in nsqd

    def __str__(self) -> str:
        return (
            f"{self.killed} killed, {self.published:,} published, {self.missing} missing, {self.duplicates} "
            f"duplicates, {self.repeated} of them made behind nsqd; {self.again} rows were redelivered"
        )


@contextmanager
def playing(nsqd: Nsqd, folder: Path, *, a_second: int, **options: str) -> Iterator[Scene]:
    """However the block ends, no process stays. Skips where there is no Spark."""
    require_spark()
    scene = Scene(nsqd, folder, a_second=a_second, **options)
    try:
        yield scene
    finally:
        scene.close()


class Scene:
    def __init__(self, nsqd: Nsqd, folder: Path, *, a_second: int, **options: str) -> None:
        self.mark = secrets.token_hex(16)
        self.killed = 0
        self._nsqd = nsqd
        self._folder = folder
        self._pause = _AT_ONCE / a_second
        self._options = {
            "topic": TOPIC,
            "channel": CHANNEL,
            "wal": str(folder / "wal"),
            "retention": "0",
            "nsqd": nsqd.tcp_address,
            "nsqdHttp": nsqd.http_address,
            "maxInFlight": str(WINDOW),
            **options,
        }
        self._published = 0
        self._driver: subprocess.Popen[bytes] | None = None
        for name in ("tmp", "local"):
            (folder / name).mkdir()
        self._home = make_home(folder / "home")
        api = NsqdApi(nsqd.http_address, timeout=100.0)
        api.create_topic(TOPIC)
        api.create_channel(TOPIC, CHANNEL)

    # Publishing.

    @contextmanager
    def publishing(self) -> Iterator[None]:
        enough = threading.Event()

        def publish() -> None:
            api = NsqdApi(self._nsqd.http_address, timeout=100.0)
            while not enough.wait(self._pause):
                first = self._published
                api.multi_publish(TOPIC, [b"%010d" % number for number in range(first, first + _AT_ONCE)])
                self._published += _AT_ONCE  # nsqd has confirmed them

        thread = threading.Thread(target=publish, name="publishing")
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join(PATIENCE)

    # Spark.

    @contextmanager
    def standalone(self) -> Iterator[Standalone]:
        """A standalone cluster that the drivers of this scene can use."""
        environment = self._environment(f"cluster of {self.mark}")  # it outlives the drivers
        with Standalone(self._home, self._folder, environment).running() as cluster:
            yield cluster

    def follow(self, master: str, on_executors: int = 0) -> None:
        plan = self._plan("follow", master)
        self._start(replace(plan, on_executors=on_executors))

    def await_batches(self, count: int) -> None:
        """Wait until this many more batches are committed."""
        before = len(self._batches("commits"))
        self._await(lambda: len(self._batches("commits")) >= before + count)

    def hold(self) -> None:
        """Have a batch held up behind its first rows: it is logged, and cannot end."""
        (self._folder / "shut").touch()
        self._await(lambda: self.waiting() and self.pending())

    def go_on(self) -> None:
        (self._folder / "shut").unlink()
        for path in self._folder.glob("waiting-*"):
            path.unlink()

    def waiting(self) -> list[int]:
        """The workers whose tasks are held up."""
        found = {int(path.name.partition("-")[2]) for path in self._folder.glob("waiting-*")}
        return sorted(found & spark_processes.marked(self.mark).keys())

    def pending(self) -> set[int]:
        """The batches that are logged and not committed."""
        return self._batches("offsets") - self._batches("commits")

    def processes(self, *roles: str) -> list[int]:
        return spark_processes.called(self.mark, *roles)

    def kill(self, *roles: str) -> None:
        """Kill all these processes at once."""
        self._kill(self.processes(*roles))

    def kill_executor_at_work(self) -> int:
        victim = spark_processes.ancestor(self.waiting()[0], self.processes(EXECUTOR))
        self._kill([victim])
        return victim

    def kill_worker_at_work(self, cluster: Standalone) -> None:
        """Kill the worker of a standalone cluster, whose executors end then. Another one takes its place."""
        self.killed += 1
        cluster.replace_worker(spark_processes.ancestor(self.waiting()[0], cluster.workers))

    def _kill(self, victims: list[int]) -> None:
        assert victims, f"no process to kill: {spark_processes.marked(self.mark)}\n{self._said()}"
        self.killed += len(victims)
        spark_processes.kill(victims)

    def await_end(self) -> None:
        """Wait until no process of the driver is left."""
        assert self._driver is not None
        try:
            self._driver.wait(PATIENCE)
            eventually(lambda: spark_processes.marked(self.mark), lambda alive: not alive, PATIENCE)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"processes were left: {error}\n{self._said()}") from None
        finally:
            self._forget()

    def stop(self) -> None:
        """Stop the query gracefully."""
        assert self._driver is not None
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        status = self._driver.wait(PATIENCE)
        assert status == 0, self._said()
        self.await_end()

    def drain(self) -> Verdict:
        """Read the rest in another driver; return the verdict about all rows."""
        self._start(self._plan("drain"))
        assert self._driver is not None
        status = self._driver.wait(PATIENCE)
        assert status == 0, self._said()
        self.await_end()
        return self._judge()

    def drain_in(self, spark: SparkSession) -> Verdict:
        """Read the rest in a session that runs already; return the verdict about all rows."""
        spark_driver.drain(spark, self._plan("drain"))
        return self._judge()

    def _plan(self, act: Act, master: str = "local[2]") -> Plan:
        return Plan(str(self._folder), act, master, self._options)

    def close(self) -> None:
        """Kill everything that is left."""
        while alive := self.processes(DRIVER, JVM) or list(spark_processes.marked(self.mark)):
            spark_processes.kill(alive)
            if self._driver is not None:
                self._driver.wait(PATIENCE)
        self._forget()

    def _forget(self) -> None:
        if self._driver is not None and self._driver.stdin is not None:
            self._driver.stdin.close()

    def _start(self, plan: Plan) -> None:
        with (self._folder / "said").open("ab") as said:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", DRIVER, plan.encode()],
                cwd=self._folder,
                env=self._environment(self.mark),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
            )

    def _environment(self, mark: str) -> dict[str, str]:
        return {
            **os.environ,
            MARK: mark,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(self._home),
            "TMPDIR": str(self._folder / "tmp"),  # what is killed tidies up nothing
        }

    def _await(self, holds: Callable[[], object]) -> None:
        def look() -> object:
            assert self._driver is not None
            assert self._driver.poll() is None, f"the driver has ended: {self._said()}"
            return holds()

        try:
            eventually(look, within=PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._said()}") from None

    def _batches(self, log: str) -> set[int]:
        names = [path.name for path in (self._folder / "checkpoint" / log).glob("*")]
        return {int(name) for name in names if name.isdigit()}

    def _said(self) -> str:
        return (self._folder / "said").read_text(errors="replace")[-4000:]

    # The verdict.

    def _judge(self) -> Verdict:
        import pyarrow.parquet as pq

        (file,) = (self._folder / "rows").glob("*.parquet")
        rows = pq.read_table(file)
        bodies = Counter(rows.column("body").to_pylist())
        deliveries = Counter(
            zip(*(rows.column(name).to_pylist() for name in ("nsqd", "id", "attempts")), strict=True)
        )
        wanted = {b"%010d" % number for number in range(self._published)}
        return Verdict(
            published=self._published,
            missing=len(wanted - bodies.keys()),
            duplicates=sum(bodies.values()) - len(bodies),
            repeated=sum(deliveries.values()) - len(deliveries),
            foreign=len(bodies.keys() - wanted),
            again=sum(count for (_, _, attempts), count in deliveries.items() if attempts > 1),
            killed=self.killed,
            left=self._left(),
        )

    def _left(self) -> str:
        wal = self._folder / "wal"
        files = [str(path) for path in wal.glob("s/*/*.arrow")]
        (topic,) = json.loads(self._nsqd.get(f"/stats?format=json&topic={TOPIC}").body)["topics"]
        (channel,) = topic["channels"]
        counts = {name: channel[name] for name in ("depth", "in_flight_count", "deferred_count")}
        return " ".join([*files, *(f"{name}={count}" for name, count in counts.items() if count)])


def judge(verdict: Verdict, duplicates: int) -> None:
    """Everything is there; what came twice nsqd has delivered twice, and no more than ``duplicates``."""
    assert verdict.published > 0
    assert (verdict.missing, verdict.foreign) == (0, 0), verdict
    assert verdict.repeated == 0, verdict
    assert verdict.duplicates <= duplicates, verdict
    assert verdict.left == "", verdict
