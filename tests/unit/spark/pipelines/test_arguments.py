"""Arguments of the pipelines: wrong ones are refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsq.config import Config
from nsq.errors import UsageError
from nsq.spark.pipelines.archive import archive
from nsq.spark.pipelines.metrics import metrics
from nsq.spark.pipelines.replay import _producer, replay

NSQD = "127.0.0.1:4150"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda to: archive("orders", to=to), "nsqd or lookupd is missing: nsqd="),
        (lambda to: archive("orders", to=to, nsqd=NSQD, body="text"), "one of: binary, string, json"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, body="json"), "needs a schema"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, schema="a int"), "schema is for body='json'"),
        (lambda to: archive("orders", to="s3a://b/o", nsqd=NSQD), "wal is missing"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, options={"wall": 1}), "did you mean wal"),
        (lambda to: metrics("orders", nsqd=NSQD, top=0), "top is 0"),
        (lambda to: replay(to, "again", nsqd=NSQD, rate=0), "rate 0"),
        (lambda to: replay(to, "again", nsqd=NSQD, chunk=0), "chunk is 0"),
        (lambda to: replay(to, "again"), "nsqd or lookupd is missing: nsqd="),
        (lambda to: metrics("orders", nsqd=NSQD, window="1 minut"), "window is '1 minut'"),
        (lambda to: metrics("orders", nsqd=NSQD, watermark="90"), "watermark is '90'"),
        (lambda to: archive("orders", to=to, nsqd=NSQD, body="json", schema="id bigit"), "mean bigint"),
        (lambda to: archive("orders", to="/dev/null/x", nsqd=NSQD), "to is /dev/null/x, which cannot be"),
        (lambda to: metrics("orders", to="/dev/null/x", nsqd=NSQD), "to is /dev/null/x, which cannot be"),
        (lambda to: replay("s3a://b/o", "again", nsqd=NSQD), "state is missing"),
        (lambda to: replay(to / "none", "again", nsqd=NSQD), "there is no archive at /.*/none"),
        (lambda to: replay(to / "none", "again", dry_run=True), "there is no archive at /.*/none"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(
    tmp_path: Path, call: Callable[[Path], Any], error: str
) -> None:
    with pytest.raises(UsageError, match=error):
        call(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_repeats_a_publish_instead_of_ending() -> None:
    with _producer([NSQD, "b:4150"], (), Config(publish_timeout=7.0)) as producer:
        assert (producer.config.retry_uncertain, producer.config.publish_timeout) == (True, 7.0)
        assert repr(producer) == f"<Producer {NSQD} b:4150 not connected>"


def test_the_addresses_of_a_replay_may_come_from_a_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def producer(*given: object, **more: object) -> None:
        raise LookupError(*given)

    monkeypatch.setattr("nsq.spark.pipelines.replay.Producer", producer)
    with pytest.raises(LookupError) as raised:
        replay(tmp_path, "again", nsqd=(address for address in (NSQD, "b:4150")))
    assert raised.value.args == (NSQD, "b:4150")
