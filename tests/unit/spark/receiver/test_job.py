"""What ``nsq.spark.receivers`` refuses before it starts anything."""

from __future__ import annotations

from typing import Any

import pytest

from nsq.errors import ConfigError, UsageError

pytest.importorskip("pyarrow", reason="pip install 'nsq[spark]'")

from nsq.spark.receiver import job


class Context:
    def __init__(self, cores: list[int]) -> None:
        self._cores = cores

    @property
    def defaultParallelism(self) -> int:  # noqa: N802
        return self._cores.pop(0) if len(self._cores) > 1 else self._cores[0]


class Spark:
    """A classic session with so many cores, asked one after the other."""

    def __init__(self, *cores: int, **settings: str) -> None:
        self.sparkContext = Context(list(cores))
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
    with pytest.raises(UsageError, match="2 of Spark's 2 slots"):
        refuse(Spark(4, spark_master="local[4]", spark_task_cpus="2"), 2)


def test_a_cluster_gets_time_to_register_its_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.time, "sleep", lambda _: None)
    refuse(Spark(2, 2, 8, spark_master="spark://host:7077"), 4)
    monkeypatch.setattr(job, "REGISTERING", 0.0)
    with pytest.raises(UsageError, match="4 receivers would hold"):
        refuse(Spark(2, spark_master="spark://host:7077"), 4)


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
def test_mistakes_are_found_at_once(options: dict[str, Any], n: int, why: str) -> None:
    given = {"topic": "t", "channel": "c", "wal": "/w", "nsqd": "a:1", **options}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ConfigError, match=why):
        job.receivers(Spark(8), given, n)  # type: ignore[arg-type]
