"""``nsq.spark.receivers`` refuses wrong options and full clusters before it starts anything."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.errors import ConfigError, UsageError, WalError
from nsq.spark.receiver import job
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.status import Status
from nsq.spark.wal.store import open_wal
from tests.integration.patience import eventually


class Context:
    """Has so many slots, asked one after the other."""

    defaultParallelism = 200  # noqa: N815

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots
        self._jsc: Any = SimpleNamespace(sc=lambda: self)

    def resourceProfileManager(self) -> Any:  # noqa: N802
        return SimpleNamespace(defaultResourceProfile=lambda: "default")

    def maxNumConcurrentTasks(self, profile: str) -> int:  # noqa: N802
        assert profile == "default"
        return self._slots.pop(0) if len(self._slots) > 1 else self._slots[0]


class Spark:
    """A classic session with so many slots, asked one after the other."""

    def __init__(self, *slots: int, **settings: str) -> None:
        self.sparkContext = Context(list(slots))
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}

    @property
    def conf(self) -> Any:
        return self.settings


def refuse(spark: Spark, n: int) -> None:
    job.refuse_full_cluster(spark, n)  # type: ignore[arg-type]


def test_receivers_must_leave_a_slot() -> None:
    refuse(Spark(3, spark_master="local[3]"), 2)
    with pytest.raises(UsageError, match="3 receivers would hold 3 of Spark's 3 slots"):
        refuse(Spark(3, spark_master="local[3]"), 3)
    with pytest.raises(UsageError, match="1 of Spark's 1 slots"):
        refuse(Spark(1, spark_master="local[2]", spark_task_cpus="2"), 1)


def test_a_cluster_that_grows_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    refuse(Spark(0, spark_master="yarn", spark_dynamicAllocation_enabled="true"), 2)
    assert "2 receivers would hold 2 of Spark's 0 slots" in caplog.text
    assert "unless spark.dynamicAllocation adds executors" in caplog.text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only while somebody sleeps."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))


@pytest.mark.usefixtures("clock")
def test_a_cluster_gets_time_to_register_its_executors() -> None:
    """As long as some come. The time is for the next one."""
    refuse(Spark(*[0] * 25, *[2] * 25, 8, spark_master="spark://host:7077"), 4)
    with pytest.raises(UsageError, match="4 receivers would hold 4 of Spark's 2 slots"):
        refuse(Spark(*[0] * 25, 2, spark_master="spark://host:7077"), 4)


@pytest.mark.usefixtures("clock")
def test_a_cluster_without_executors_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Spark waits for them, and so do receivers."""
    refuse(Spark(0, spark_master="spark://host:7077"), 4)
    assert "4 receivers would hold 4 of Spark's 0 slots" in caplog.text
    assert "unless executors register later" in caplog.text


class Failing:
    """A session whose jobs fail; it is stopped after the third."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.sparkContext = SimpleNamespace(
            _jsc=self, setLocalProperty=lambda *_: None, setJobDescription=lambda _: None
        )

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tags.append(tag)
        if len(self.tags) == 3:
            self.sparkContext._jsc = None
        raise RuntimeError("Job aborted due to stage failure")


def test_a_job_that_spark_gives_up_is_submitted_again_until_the_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "FIRST_PAUSE", 0.001)
    given = {"topic": "t", "channel": "c", "wal": str(tmp_path / "wal"), "nsqd": "a:1"}
    spark = Failing()
    running = job.ReceiverJob(spark, SourceOptions.of(given), 2)  # type: ignore[arg-type]
    running.start()
    running._thread.join(60.0)
    assert len(spark.tags) == 3
    with pytest.raises(RuntimeError, match="stage failure"):
        running.check()
    running.stop()


_SPARK_SAYS = """An exception was thrown from the Python worker:
Traceback (most recent call last):
nsq.errors.WalError: s3://b/w/identity.json cannot be read: no credentials

  at org.apache.spark"""


def test_the_error_of_receivers_that_spark_gives_up_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(job, "LONGEST_PAUSE", 3600.0)

    class Given(Failing):
        def addTag(self, tag: str) -> None:  # noqa: N802
            raise RuntimeError(_SPARK_SAYS)

    given = {"topic": "t", "channel": "c", "wal": str(tmp_path / "wal"), "nsqd": "a:1"}
    running = job.ReceiverJob(Given(), SourceOptions.of(given), 2)  # type: ignore[arg-type]
    running.start()
    why = "s3://b/w/identity.json cannot be read: no credentials"
    told = f"2 receivers of t/c fail: {why}"
    eventually(lambda: running.status().error, lambda error: error == told, 60.0)
    assert f"starts them again: {why}" in caplog.text
    wal = open_wal(given["wal"])
    assert wal.job_errors() == [told]
    note = job.noted_in(wal, running._job, "1")
    note(Status(error="no way to nsqd"))  # a task works now
    assert running.status().error == "no way to nsqd"
    note(Status())
    assert running.status().error == ""
    running.stop()


class Running(Failing):
    """A session whose job runs until it is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = threading.Event()

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tags.append(tag)
        self.interrupted.wait()
        raise RuntimeError("Job cancelled")

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        assert tag in self.tags
        self.interrupted.set()


def test_a_stop_that_cannot_reach_the_log_interrupts_the_job_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_stop(job: str) -> None:
        raise WalError("the store does not answer")

    given = {"topic": "t", "channel": "c", "wal": str(tmp_path / "wal"), "nsqd": "a:1"}
    spark = Running()
    running = job.ReceiverJob(spark, SourceOptions.of(given), 2)  # type: ignore[arg-type]
    monkeypatch.setattr(running._wal, "request_stop", refuse_stop)
    running.start()
    eventually(lambda: len(spark.tags), bool, 60.0)
    running.stop(timeout=3600.0)
    assert not running._thread.is_alive()
    assert running.error is None
    assert "are interrupted: the store does not answer" in caplog.text
    assert "have not ended within" not in caplog.text


@pytest.fixture
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PROBE_AFTER", 0.01)
    monkeypatch.setattr(job, "PROBE_EVERY", 0.01)
    monkeypatch.setattr(job, "PROBE_PATIENCE", 0.05)
    monkeypatch.setattr(job, "_PROBE_LOOK", 0.01)


class Narrow(Running):
    """A session of a cluster that has lost a worker, so that its receivers hold all slots."""

    def __init__(self, slots: list[int]) -> None:
        super().__init__()
        self.slots = slots
        self.sparkContext: Any = Context(slots)
        self.sparkContext.setLocalProperty = lambda *_: None
        self.sparkContext.setJobDescription = lambda _: None


class Remote(Running):
    """The same over Spark Connect, where a probe waits for a slot."""

    def __init__(self) -> None:
        super().__init__()
        del self.sparkContext
        self.probes: list[threading.Event] = []
        self.free = False

    def addTag(self, tag: str) -> None:  # noqa: N802
        if not tag.endswith("-probe"):
            super().addTag(tag)

    def range(self, *_: int) -> Any:
        interrupted = threading.Event()
        self.probes.append(interrupted)

        def collect() -> None:
            if not self.free:
                interrupted.wait()
                raise RuntimeError("Job cancelled")

        return SimpleNamespace(collect=collect)

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        if tag.endswith("-probe"):
            self.probes[-1].set()
        else:
            super().interruptTag(tag)


@pytest.mark.usefixtures("quick_probes")
@pytest.mark.parametrize("remote", [False, True])
def test_receivers_that_hold_all_slots_are_told(
    tmp_path: Path, remote: bool, caplog: pytest.LogCaptureFixture
) -> None:
    spark = Remote() if remote else Narrow([2])
    given = {"topic": "t", "channel": "c", "wal": str(tmp_path / "wal"), "nsqd": "a:1"}
    running = job.ReceiverJob(spark, SourceOptions.of(given), 2)  # type: ignore[arg-type]
    running.start()
    text = "receivers hold 2 slots, so a query" if remote else "receivers hold 2 of 2 slots, so a query"
    eventually(lambda: running.status().error, lambda error: text in error, 60.0)
    assert caplog.text.count(text) == 1
    assert ("no task began for" in caplog.text) == remote
    if isinstance(spark, Remote):
        spark.free = True
    else:
        spark.slots[0] = 3
    eventually(lambda: running.status().error, lambda error: not error, 60.0)
    assert "has a free slot again" in caplog.text
    running.stop(timeout=0.0)
    assert not running._watching.is_alive()


def test_speculation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"spark\.speculation is true"):
        refuse(Spark(8, spark_speculation="true"), 1)


@pytest.mark.parametrize(
    ("options", "n", "why"),
    [
        ({}, 0, "n is 0"),
        ({"topic": None, "topicsPattern": "a.*"}, 2, "topicsPattern cannot be shared"),
        ({"walll": "x"}, 1, "did you mean wal"),
    ],
)
def test_wrong_arguments_of_a_job_are_refused_at_once(options: dict[str, Any], n: int, why: str) -> None:
    given = {"topic": "t", "channel": "c", "wal": "/w", "nsqd": "a:1", **options}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ConfigError, match=why):
        job.receivers(Spark(8), given, n)  # type: ignore[arg-type]
