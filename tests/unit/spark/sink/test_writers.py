"""What the sink's writers say and refuse; tests/spark/test_sink.py has Spark write."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from nsq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

pytest.importorskip("pyspark")

from nsq.spark.sink import BatchWriter, StreamWriter, TaskReport


def schema() -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("body", StringType())])


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="nsq.spark")
    return caplog


def test_a_commit_says_what_was_published(logged: pytest.LogCaptureFixture) -> None:
    writer = StreamWriter({"nsqd": "a:4150", "topic": "orders"}, schema(), False)
    writer.commit([TaskReport(100, 2000), TaskReport(0, 0)], 7)
    assert "batch 7: 100 messages, 2000 bytes published by 2 tasks" in logged.text


def test_an_abort_says_what_stays_published(logged: pytest.LogCaptureFixture) -> None:
    options = {"nsqd": "a:4150", "topic": "orders"}

    StreamWriter(options, schema(), False).abort([TaskReport(100, 2000), None, TaskReport(100, 2000)], 7)
    BatchWriter(options, schema(), False).abort([None])
    assert "batch 7 failed: 2 of its 3 tasks have reported their 200 messages as published" in logged.text
    assert "the write failed: 0 of its 1 tasks" in logged.text


@pytest.mark.parametrize(
    ("writer", "nsqd", "overwrite", "words"),
    [
        (StreamWriter, "a:4150", True, r'\.outputMode\("append"\)'),
        (StreamWriter, "", False, "option nsqd or lookupd is missing"),
        (BatchWriter, "a:4150", True, r'\.mode\("append"\)'),
    ],
)
def test_a_write_that_cannot_be_is_refused_in_one_line(
    writer: type[StreamWriter | BatchWriter], nsqd: str, overwrite: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        writer({"nsqd": nsqd, "topic": "orders"}, schema(), overwrite)
    assert "\n" not in str(caught.value)
