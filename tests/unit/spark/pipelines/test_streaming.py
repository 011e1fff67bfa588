from __future__ import annotations

import pytest

from nsq.errors import ConfigError, InvalidName, UsageError
from nsq.spark.pipelines.files import Published
from nsq.spark.pipelines.streaming import (
    Batches,
    Progress,
    Running,
    Totals,
    default_wal,
    stream_options,
)


def test_what_is_read_is_checked_before_a_jvm_starts() -> None:
    reading = stream_options(
        "orders",
        "archive",
        nsqd=["a:4150", "b:4150"],
        lookupd="",
        wal="/w",
        options={"tls": True, "maxInFlight": 9},
    )
    assert reading == {
        "topic": "orders",
        "channel": "archive",
        "wal": "/w",
        "nsqd": "a:4150,b:4150",
        "tls": "true",
        "maxInFlight": "9",
    }
    with pytest.raises(ConfigError, match="did you mean maxInFlight"):
        stream_options("orders", "a", nsqd="a:4150", lookupd=(), wal="/w", options={"maxInFlihgt": 9})
    with pytest.raises(ConfigError, match="nsqd or lookupd is missing"):
        stream_options("orders", "a", nsqd=(), lookupd=(), wal="/w", options=None)
    with pytest.raises((ConfigError, InvalidName)):
        stream_options("or ders", "a", nsqd="a:4150", lookupd=(), wal="/w", options=None)


def test_the_log_is_kept_below_the_output_unless_that_is_elsewhere() -> None:
    assert default_wal("/data/orders", None) == "/data/orders/_wal"
    assert default_wal("/data/orders", "/fast/wal") == "/fast/wal"
    assert default_wal("s3a://bucket/orders", "/fast/wal") == "/fast/wal"
    with pytest.raises(ConfigError, match="wal is missing: s3a://bucket/orders"):
        default_wal("s3a://bucket/orders", None)


def test_rates_are_those_since_the_last_report() -> None:
    times = iter([0.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0])
    batches = Batches(lambda part, batch: None, lambda: next(times))
    batches.add(Published(100, 1000, 2, again=False))
    assert batches.progress() == Progress(100, 1000, 1, 2.0, 50.0)
    batches.add(Published(20, 10, 0, again=False))
    assert batches.progress(5, 1.5) == Progress(120, 1010, 2, 4.0, 10.0, 5, 1.5)
    assert batches.progress().rate == 0.0


def test_totals() -> None:
    times = iter([1.0, 4.0])
    batches = Batches(lambda part, batch: None, lambda: next(times))
    batches.add(Published(1, 2, 3, again=True))
    assert batches.totals() == Totals(1, 2, 1, 3, 3.0)


@pytest.mark.parametrize("every", [-1, float("nan")])
def test_a_trigger_needs_a_duration(every: float) -> None:
    with pytest.raises(UsageError, match="every is"):
        Running(checkpoint="/c", every=every)
