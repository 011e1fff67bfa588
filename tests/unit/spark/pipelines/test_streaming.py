from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from nsq.errors import ConfigError, InvalidName, UsageError
from nsq.spark.pipelines import streaming
from nsq.spark.pipelines.files import Batch, Written
from nsq.spark.pipelines.streaming import Batches, Progress, Running, Totals, run, stream_options


def options(topic: str = "orders", root: str = "/data/orders", **changed: Any) -> dict[str, str]:
    given: dict[str, Any] = {"nsqd": "a:4150", "lookupd": (), "wal": None, "options": {}}
    return stream_options(root, topic, "archive", **given | changed)


def test_source_options_are_checked_before_spark_starts() -> None:
    given = {"retention": "0", "tls": True, "maxInFlight": 9, "Retention": "1d"}
    assert options(nsqd=["a:4150", "b:4150"], wal="/w", options=given) == {
        "topic": "orders",
        "channel": "archive",
        "wal": "/w",
        "nsqd": "a:4150,b:4150",
        "lookupd": "",
        "tls": "true",
        "maxinflight": "9",
        "retention": "1d",
    }
    with pytest.raises(ConfigError, match="did you mean maxInFlight"):
        options(options={"maxInFlihgt": 9})
    with pytest.raises(ConfigError, match="nsqd or lookupd is missing"):
        options(nsqd=())
    with pytest.raises((ConfigError, InvalidName)):
        options("or ders")


def test_the_log_is_kept_below_the_output_unless_that_is_elsewhere() -> None:
    assert options()["wal"] == "/data/orders/_wal"
    assert options(wal="/fast/wal")["wal"] == "/fast/wal"
    assert options(root="s3a://bucket/orders", wal="/fast/wal")["wal"] == "/fast/wal"
    with pytest.raises(ConfigError, match="wal is missing: s3a://bucket/orders"):
        options(root="s3a://bucket/orders")


class Part:
    """A batch that knows its query."""

    def __init__(self) -> None:
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=lambda _: "0c2e"))


def test_batches_are_added_up_and_rates_are_those_since_the_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part: Any = Part()
    times = iter([0.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 5.0])
    done = iter([Written(100, 1000, 2), Written(20, 10, 0)])
    asked: list[Batch] = []

    def handle(part: object, batch: Batch) -> Written:
        asked.append(batch)
        return next(done)

    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=lambda: next(times)))
    batches = Batches(handle)
    batches(part, 7)
    assert batches.progress({}) == Progress(100, 1000, 1, 2, 2.0, rate=50.0)
    batches(part, 8)
    assert batches.progress({"lag": 5.0, "oldestSeconds": 1.5}) == Progress(
        120, 1010, 2, 2, 4.0, rate=10.0, lag=5, lag_seconds=1.5
    )
    assert batches.progress({}).rate == 0.0
    assert batches.totals() == Totals(120, 1010, 2, 2, 5.0)
    assert asked == [Batch("0c2e", 7), Batch("0c2e", 8)]
    batches.close(1.0)
    with pytest.raises(UsageError, match="no more batches"):
        batches(part, 9)


def test_a_query_is_stopped_when_the_users_function_fails(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "0c2e"}')
    frame = MagicMock(sparkSession=SimpleNamespace())  # Spark Connect's has no sparkContext
    set_function = frame.writeStream.outputMode.return_value.foreachBatch
    query = set_function.return_value.option.return_value.trigger.return_value.start.return_value
    query.lastProgress = None
    query.awaitTermination = lambda seconds: set_function.call_args.args[0](Part(), 0)

    def absorb(done: object) -> Written:
        raise ZeroDivisionError

    running = Running(checkpoint=str(tmp_path), progress=lambda progress: None)
    with pytest.raises(ZeroDivisionError):
        run(frame, lambda part, batch: Written(1, 1), running, absorb)
    query.stop.assert_called_once_with()
    assert [path.name for path in tmp_path.iterdir()] == ["metadata"]


@pytest.mark.parametrize("every", [-1, float("nan")])
def test_a_trigger_needs_a_duration(every: float) -> None:
    with pytest.raises(UsageError, match="every is"):
        Running(checkpoint="/c", every=every)
