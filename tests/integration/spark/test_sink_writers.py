"""The writers as Spark uses them, without a JVM: made here, pickled, run there, told of the end."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsq.errors import ConfigError
from nsq.spark.sink import batch_writer, stream_writer
from nsq.spark.sink.markers import Content, Markers
from nsq.testing import Nsqd

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nsq.spark.sink.writers import TaskReport

pa: Any = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")


def schema(*columns: str) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in columns or ("body",)])


def batches(*bodies: str) -> Iterator[Any]:
    yield pa.record_batch([pa.array(bodies)], names=["body"])


def published(**changes: Any) -> TaskReport:
    from nsq.spark.sink.writers import TaskReport

    return TaskReport(
        **{
            "partition": 0,
            "messages": 100,
            "bytes": 2000,
            "skipped": 0,
            "seconds": 1.0,
            "query": "id",
            **changes,
        }
    )


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="nsq.spark")
    return caplog


def test_a_writer_publishes_where_it_was_sent_to(nsqd: Nsqd, told: pytest.LogCaptureFixture) -> None:
    options = {"nsqd": nsqd.tcp_address, "topic": "orders"}
    writer = pickle.loads(pickle.dumps(batch_writer(options, schema(), False)))

    message = pickle.loads(pickle.dumps(writer.write(batches("one", "three"))))
    writer.commit([message, None])

    assert (message.messages, message.bytes, message.skipped) == (2, 8, 0)
    (topic,) = nsqd.get("/stats?format=json&topic=orders").json()["topics"]
    assert topic["depth"] == 2
    assert "the write: 2 messages, 8 bytes published by 1 tasks" in told.text


def test_a_stream_without_resumption_needs_no_batch_number(nsqd: Nsqd) -> None:
    options = {
        "nsqd": nsqd.tcp_address,
        "topic": "orders",
        "checkpointlocation": "/nowhere",
        "queryname": "q",
    }

    assert stream_writer(options, schema(), False).write(batches("one")).messages == 1


def test_resuming_without_a_batch_number_is_refused(tmp_path: Path) -> None:
    options = {
        "nsqd": "a:4150",
        "topic": "orders",
        "checkpointlocation": str(tmp_path),
        "resume": "partition",
    }

    with pytest.raises(ConfigError, match="needs to know the batch"):
        stream_writer(options, schema(), False).write(batches("one"))


def test_a_commit_ends_what_is_noted_of_earlier_batches(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    markers = Markers.of(str(tmp_path), "id")
    for batch in (6, 7):
        markers.write(batch, 0, Content())
    options = {
        "nsqd": "a:4150",
        "topic": "orders",
        "checkpointlocation": str(tmp_path),
        "resume": "partition",
    }

    stream_writer(options, schema(), False).commit(
        [published(), published(messages=0, bytes=0, skipped=50)], 7
    )

    assert markers.read(6, 0) is None
    assert markers.read(7, 0) == Content()
    assert "batch 7: 100 messages, 2000 bytes published by 2 tasks; 50 had been published" in told.text


def test_an_abort_says_what_stays_published(told: pytest.LogCaptureFixture) -> None:
    options = {"nsqd": "a:4150", "topic": "orders"}

    stream_writer(options, schema(), False).abort([published(), None, published()], 7)
    batch_writer(options, schema(), False).abort(
        [None],
    )

    assert "batch 7 failed: 2 of its 3 tasks have reported their 200 messages as published" in told.text
    assert "the write failed: 0 of its 1 tasks" in told.text


@pytest.mark.parametrize(
    ("given", "overwrite", "words"),
    [
        ({}, True, r'\.outputMode\("append"\)'),
        ({"resume": "partition"}, False, r"\.option\('checkpointLocation', …\)"),
        ({"nsqd": ""}, False, "option nsqd or lookupd is missing"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_in_one_line(
    given: dict[str, str], overwrite: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        stream_writer({"nsqd": "a:4150", "topic": "orders", **given}, schema(), overwrite)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "overwrite", "words"),
    [
        ({}, True, r'\.mode\("append"\)'),
        ({"resume": "partition"}, False, "resume=partition is for streams"),
    ],
)
def test_a_write_that_cannot_be_is_refused_in_one_line(
    given: dict[str, str], overwrite: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        batch_writer({"nsqd": "a:4150", "topic": "orders", **given}, schema(), overwrite)
    assert "\n" not in str(caught.value)
