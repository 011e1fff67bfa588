"""The sink's writers, called as Spark calls them, without a JVM: created, pickled, run, committed and
aborted.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from nsq.errors import ConfigError
from nsq.testing import Nsqd

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

pytest.importorskip("pyspark")

from nsq.spark.sink import BatchWriter, StreamWriter, TaskReport

pa: Any = pytest.importorskip("pyarrow")


def schema(*columns: str) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in columns or ("body",)])


def batches(*bodies: str) -> Iterator[Any]:
    yield pa.record_batch([pa.array(bodies)], names=["body"])


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="nsq.spark")
    return caplog


def test_a_writer_publishes_where_it_was_sent_to(nsqd: Nsqd, told: pytest.LogCaptureFixture) -> None:
    options = {"nsqd": nsqd.tcp_address, "topic": "orders"}
    writer = pickle.loads(pickle.dumps(BatchWriter(options, schema(), False)))

    message = pickle.loads(pickle.dumps(writer.write(batches("one", "three"))))
    writer.commit([message, None])

    assert (message.messages, message.bytes) == (2, 8)
    (topic,) = nsqd.get("/stats?format=json&topic=orders").json()["topics"]
    assert topic["depth"] == 2
    assert "the write: 2 messages, 8 bytes published by 1 tasks" in told.text


def test_options_that_spark_adds_are_ignored(nsqd: Nsqd) -> None:
    options = {
        "nsqd": nsqd.tcp_address,
        "topic": "orders",
        "checkpointlocation": "/nowhere",
        "queryname": "q",
    }

    assert StreamWriter(options, schema(), False).write(batches("one")).messages == 1


def test_a_commit_says_what_was_published(told: pytest.LogCaptureFixture) -> None:
    writer = StreamWriter({"nsqd": "a:4150", "topic": "orders"}, schema(), False)
    writer.commit([TaskReport(100, 2000), TaskReport(0, 0)], 7)
    assert "batch 7: 100 messages, 2000 bytes published by 2 tasks" in told.text


def test_an_abort_says_what_stays_published(told: pytest.LogCaptureFixture) -> None:
    options = {"nsqd": "a:4150", "topic": "orders"}

    StreamWriter(options, schema(), False).abort([TaskReport(100, 2000), None, TaskReport(100, 2000)], 7)
    BatchWriter(options, schema(), False).abort(
        [None],
    )

    assert "batch 7 failed: 2 of its 3 tasks have reported their 200 messages as published" in told.text
    assert "the write failed: 0 of its 1 tasks" in told.text


@pytest.mark.parametrize(
    ("given", "overwrite", "words"),
    [
        ({}, True, r'\.outputMode\("append"\)'),
        ({"nsqd": ""}, False, "option nsqd or lookupd is missing"),
    ],
)
def test_an_impossible_stream_is_refused_in_one_line(
    given: dict[str, str], overwrite: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        StreamWriter({"nsqd": "a:4150", "topic": "orders", **given}, schema(), overwrite)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "overwrite", "words"),
    [
        ({}, True, r'\.mode\("append"\)'),
    ],
)
def test_an_impossible_write_is_refused_in_one_line(
    given: dict[str, str], overwrite: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        BatchWriter({"nsqd": "a:4150", "topic": "orders", **given}, schema(), overwrite)
    assert "\n" not in str(caught.value)
