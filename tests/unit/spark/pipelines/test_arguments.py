"""What the pipelines refuse before they start anything, and what they make of what they are given."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsq.config import Config
from nsq.errors import ConfigError, InvalidName, UsageError
from nsq.spark.pipelines.archive import archive
from nsq.spark.pipelines.columns import Body
from nsq.spark.pipelines.fanout import fanout
from nsq.spark.pipelines.metrics import metrics
from nsq.spark.pipelines.replay import _producer, nanoseconds, replay
from nsq.spark.pipelines.sinks import Console, Function, Parquet, Topic, sink_of

NSQD = "127.0.0.1:4150"


def nothing(*_: object) -> None: ...


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda to: archive("orders", to=to), "nsqd or lookupd"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, body="text"), "one of: binary, string, json"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, body="json"), "needs a schema"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, schema="a int"), "schema is for body='json'"),
        (lambda to: archive("orders", to="s3a://b/o", nsqd=NSQD), "wal is missing"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, options={"wall": 1}), "did you mean wal"),
        (lambda to: metrics("orders", nsqd=NSQD, top=0), "top is 0"),
        (lambda to: replay(to, "again", nsqd=NSQD, rate=0), "rate 0"),
        (lambda to: replay(to, "again", nsqd=NSQD, chunk=0), "chunk is 0"),
        (lambda to: replay(to, "again"), "needs nsqd or nsqlookupd"),
        (lambda to: replay("s3a://b/o", "again", nsqd=NSQD), "state is missing"),
        (lambda to: fanout("orders", sinks={}, state=to, nsqd=NSQD), "no sink"),
        (
            lambda to: fanout("orders", sinks={"a/b": nothing}, state=to, nsqd=NSQD),
            "name becomes that of a file",
        ),
        (lambda to: fanout("orders", sinks={"a": 5}, state=to, nsqd=NSQD), "but must be a Parquet"),  # type: ignore[dict-item]
        (lambda to: fanout("orders", sinks={"a": nothing}, state=to, nsqd=NSQD, attempts=0), "attempts is 0"),
    ],
)
def test_mistakes_are_told_at_once(tmp_path: Path, call: Callable[[Path], Any], fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        call(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_points_in_time() -> None:
    day = 86_400 * 1_000_000_000
    assert nanoseconds(None) is None
    assert nanoseconds("1970-01-02") == day
    assert nanoseconds("1970-01-02T01:00:00.000001+01:00") == day + 1000
    assert nanoseconds(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)) == day
    with pytest.raises(UsageError, match="no point in time"):
        nanoseconds("yesterday")
    with pytest.raises(UsageError, match="has no time zone"):
        nanoseconds(datetime.datetime(1970, 1, 2))


def test_a_replay_repeats_rather_than_ends() -> None:
    with _producer([NSQD, "b:4150"], (), Config(publish_timeout=7.0)) as producer:
        assert (producer._config.retry_uncertain, producer._config.publish_timeout) == (True, 7.0)
        assert repr(producer) == f"<Producer {NSQD} b:4150>"


def test_sinks_are_what_they_are_given_as() -> None:
    parquet = Parquet("/data")
    assert sink_of("a", parquet) is parquet
    assert isinstance(sink_of("b", nothing), Function)
    assert Console().rows == 20
    with pytest.raises(ConfigError, match="one of"):
        Parquet("/data", body="text")
    with pytest.raises(ConfigError, match="nsqd or lookupd"):
        Topic(topic="again")
    with pytest.raises(InvalidName):
        Topic(topic="a b", nsqd=NSQD)
    with pytest.raises(ConfigError, match="mpubMessages"):
        Topic(topic="again", nsqd=NSQD, options={"mpubMessage": 5})


def test_a_body_is_checked() -> None:
    assert Body().kind == "binary"
    assert Body("json", "a int").schema == "a int"
