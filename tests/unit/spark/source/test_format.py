from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from nsq.errors import ConfigError, UsageError
from nsq.spark.rows import SCHEMA
from nsq.spark.source.offsets import Limits
from nsq.spark.source.options import SourceOptions
from nsq.spark.source.stream import NsqDataSource, limits

ROOT = Path(__file__).resolve().parents[4]
GIVEN = {"topic": "orders", "channel": "spark", "wal": "/nowhere/wal", "nsqd": "a:4150"}
BODY = StructType([StructField("body", BinaryType())])


def source(**options: str) -> NsqDataSource:
    return NsqDataSource({**GIVEN, **options})


def test_the_schema_is_that_of_a_row() -> None:
    assert source().schema() == SCHEMA


def test_the_schema_raises_the_error_of_a_wrong_option() -> None:
    with pytest.raises(ConfigError, match="no option 'topick'; did you mean topic"):
        source(topick="orders").schema()


def test_a_python_without_pyarrow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"pyarrow is missing in {sys.executable}: pip install"):
        source()


def test_making_a_reader_checks_nothing() -> None:
    reader = NsqDataSource({}).streamReader(BODY)
    reader.stop()
    assert reader._running is None


def test_the_first_call_of_a_reader_raises_its_error_in_one_line() -> None:
    reader = source(topick="orders").streamReader(BODY)
    with pytest.raises(ConfigError, match="no option 'topick'") as raised:
        reader.getDefaultReadLimit()
    assert raised.value.__suppress_context__
    frames = 0
    traceback = raised.value.__traceback__
    while traceback is not None:
        frames, traceback = frames + 1, traceback.tb_next
    assert frames == 2  # this test, and the method


def test_a_reader_travels_to_the_tasks() -> None:
    reader: Any = pickle.loads(pickle.dumps(source().streamReader(BODY)))
    assert reader._columns == [("body", "binary", True)]


@pytest.mark.parametrize(
    ("given", "asked_for", "wanted"),
    [
        ({}, ReadAllAvailable(), Limits()),
        ({"max_messages_per_trigger": 5}, ReadMaxRows(5), Limits(5, None)),
        ({"max_messages_per_trigger": 5}, ReadMaxRows(3), Limits(3, None)),
        ({"max_messages_per_trigger": 5, "max_bytes_per_trigger": 7}, ReadMaxRows(5), Limits(5, 7)),
        ({"max_bytes_per_trigger": 7}, ReadMaxRows(9), Limits(9, 7)),
        ({"max_messages_per_trigger": 5, "max_bytes_per_trigger": 7}, ReadAllAvailable(), Limits()),
    ],
)
def test_our_limits_hold_beside_sparks(given: dict[str, int], asked_for: Any, wanted: Limits) -> None:
    options = SourceOptions(topic="t", channel="c", wal="/w", nsqd=("a:4150",), **given)  # type: ignore[arg-type]
    assert limits(options, asked_for) == wanted


def test_the_formats_are_where_spark_looks_for_them() -> None:
    import pyspark_nsq
    import pyspark_nsq_stats

    assert pyspark_nsq.DefaultSource.name() == "nsq"
    assert pyspark_nsq_stats.DefaultSource.name() == "nsq_stats"
    for module in (pyspark_nsq, pyspark_nsq_stats):
        with pytest.raises(AttributeError):
            module.Nothing  # noqa: B018


def test_every_public_name_is_there() -> None:
    import nsq.spark

    assert [name for name in nsq.spark.__all__ if not callable(getattr(nsq.spark, name))] == []
