"""Which parts of a log a batch read takes, and which conditions of a query it applies itself."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from nsq.errors import ConfigError, SegmentLost, UsageError, WalError, WalForeign
from nsq.spark.rows import Field
from nsq.spark.source import batch
from nsq.spark.source.batch import LogReader, narrowed_by, reader_of
from nsq.spark.source.offsets import ALWAYS, Offset, TimeRange
from nsq.spark.wal import Segment, Subject, open_wal
from nsq.spark.wal.log import Wal
from nsq.spark.wal.names import Position
from nsq.spark.wal.readers import ReaderState
from nsq.spark.wal.records import stored
from tests.unit.spark.wal.conftest import log_of

BODY = [Field("body", "binary")]
#: Message n is of second n after this one.
BEGIN = 1_700_000_000
DAY = datetime.datetime.fromtimestamp(BEGIN, datetime.UTC)


def put(wal: Wal, receiver: str, *segments: range) -> None:
    """Messages with these numbers, one list for each segment."""
    with log_of(wal, receiver) as log:
        for numbers in segments:
            times = [(BEGIN + number) * 10**9 for number in numbers]
            ids, bodies = [b"%016d" % one for one in numbers], [b"%d" % one for one in numbers]
            log.put(stored("orders", ids, times, [1] * len(ids), ["a:1"] * len(ids), bodies), lambda: None)


@pytest.fixture
def wal(tmp_path: Path) -> Wal:
    """Receiver a has messages 0 to 9, 10 to 19 and 20 to 29; b has 100 to 104 and 15."""
    made = open_wal(str(tmp_path / "wal"), fsync=False)
    made.prepare(Subject("orders", "spark"))
    put(made, "a", range(10), range(10, 20), range(20, 30))
    put(made, "b", range(100, 105), range(15, 16))
    return made


def numbers(wal: Wal, *conditions: Filter, **options: object) -> list[int]:
    """The messages of a read; ``conditions`` are pushed."""
    given = {"wal": wal.location} | {name: str(value) for name, value in options.items()}
    reader = batch.FilteringReader(given, BODY)
    assert reader.pushFilters(list(conditions)) == []
    rows = [row for part in reader.partitions() for row in reader.read(part)]
    return sorted(int(body) for row in rows for body in row["body"].to_pylist())


def at(**positions: Any) -> str:
    return json.dumps({"wal": "", "at": positions})


EVERYTHING = [*range(30), *range(100, 105)]


def second(number: float) -> str:
    return (DAY + datetime.timedelta(seconds=number)).isoformat()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, sorted([*EVERYTHING, 15])),
        ({"startingTimestamp": second(18), "endingTimestamp": second(22)}, [18, 19, 20, 21]),
        ({"startingTimestamp": "0", "endingTimestamp": second(2)}, [0, 1]),
        ({"startingTimestamp": second(25)}, [*range(25, 30), *range(100, 105)]),
        ({"endingTimestamp": second(0)}, []),
        ({"startingPosition": at(a=1, b=1), "endingPosition": at(a=2, b=2)}, sorted([*range(10, 20), 15])),
        ({"startingPosition": at(a=[1, 4]), "endingPosition": at(a=[2, 3])}, [*range(14, 23)]),
        ({"endingPosition": at(a=[0, 2])}, [0, 1]),
        ({"startingPosition": "committed"}, [*range(20, 30)]),
        (
            {"endingPosition": "committed", "startingTimestamp": second(8)},
            sorted([*range(8, 20), 15, *range(100, 105)]),
        ),
    ],
)
def test_a_read_is_bounded_by_positions_and_times(
    wal: Wal, options: dict[str, str], wanted: list[int]
) -> None:
    claim = wal.own("default", "a test", 0.0)
    state = ReaderState({"a": Position(2), "b": Position(2)}, True, updated=1.0)
    wal.save_reader("default", state)
    claim.release()
    identity = wal.identity() or ""
    given = {name: text.replace('"wal": ""', f'"wal": "{identity}"') for name, text in options.items()}
    assert numbers(wal, **given) == wanted
    assert len(wal.segments()) == 5
    assert wal.readers() == {"default": state}


def test_the_rows_of_a_batch_can_be_read_again(wal: Wal) -> None:
    """The first offset of a receiver says where it began."""
    identity = wal.identity() or ""
    end = Offset(identity, {"a": Position(2, 1)}, {"a": Position(1)}).to_json()
    start = Offset(identity).to_json()
    for first in (start, None):
        given = {"startingPosition": json.dumps(first), "endingPosition": json.dumps(end)}
        assert numbers(wal, **given) == [*range(10, 21)]


def test_many_rows_make_several_tasks(wal: Wal) -> None:
    reader = LogReader({"wal": wal.location, "minPartitions": "4"}, BODY)
    assert len(reader.partitions()) == 4


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"wal": "/nowhere/wal"}, WalError, "there is no log at /nowhere/wal"),
        ({"startingPosition": "committed"}, UsageError, "has no reader 'default'; there are: none"),
        ({"startingPosition": at(a=1)}, WalForeign, "the position belongs to the log , but .*option wal"),
        ({"startingPosition": "latest"}, ConfigError, "leaves nothing to read"),
        ({"endingPosition": "earliest"}, ConfigError, "leaves nothing to read"),
        ({"startingPosition": '{"at": 7}'}, ConfigError, "is not an offset of this source"),
        ({"startingOffsets": "earliest"}, ConfigError, "here it is startingPosition"),
        ({"endingOffsets": "latest"}, ConfigError, "here it is endingPosition"),
        ({"topic": "clicks", "channel": "spark"}, WalForeign, "is the log of orders/spark"),
        ({"endingTimestmp": "7"}, ConfigError, "did you mean endingTimestamp"),
    ],
)
def test_wrong_options_are_refused(
    wal: Wal, options: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        LogReader({"wal": wal.location} | options, BODY).partitions()


def test_options_of_a_stream_may_stay(wal: Wal) -> None:
    stream = {"topic": "orders", "channel": "spark", "nsqd": "a:4150", "receivers": "0", "linger": "1s"}
    assert len(numbers(wal, **stream)) == 36


def test_what_the_log_no_longer_has_is_named(wal: Wal, caplog: pytest.LogCaptureFixture) -> None:
    identity = wal.identity() or ""
    wal.listing()
    wal.delete([Segment("a", 2, 10, 20)])
    left = sorted([*range(20, 30), 15, *range(100, 105)])
    assert numbers(wal) == left  # all that it has
    lost = [
        ({"startingTimestamp": second(19)}, "messages of receiver a up to 2023-11-14 22:13:39"),
        ({"startingPosition": at(a=1, b=2)}, "segments 2 to 2 of receiver a"),
        ({"startingPosition": at(a=1, gone=7)}, "the manifest of receiver gone, segments 2 to 2"),
        (
            {"startingPosition": at(), "endingPosition": at(a=2)},
            r"s/a/000000001\.arrow, s/a/000000002\.arrow",
        ),
    ]
    for options, words in lost:
        given = {name: text.replace('"wal": ""', f'"wal": "{identity}"') for name, text in options.items()}
        with pytest.raises(SegmentLost, match=f"lacks a part of what is to be read: {words}.*failOnData"):
            numbers(wal, **given)
        caplog.clear()
        assert set(numbers(wal, **given, failOnDataLoss="false")) <= set(left)
        assert "going on without it" in caplog.text
    assert numbers(wal, startingTimestamp=second(19.1)) == [*range(20, 30), *range(100, 105)]
    behind = {"startingPosition": at(a=2, b=2).replace('"wal": ""', f'"wal": "{identity}"')}
    assert numbers(wal, startingTimestamp=second(0), **behind) == [*range(20, 30)]
    wal.delete([Segment("a", 3, 10, 20)])  # nothing is left of this receiver but its manifest
    assert numbers(wal, startingTimestamp=second(29.1)) == [*range(100, 105)]


# Conditions of a query


LATER, MOMENT = DAY + datetime.timedelta(seconds=20), BEGIN * 10**9
STAMP, NANOS = ("timestamp",), ("timestamp_ns",)


@pytest.mark.parametrize(
    ("condition", "since", "until"),
    [
        (GreaterThanOrEqual(STAMP, DAY), MOMENT, None),
        (GreaterThan(STAMP, DAY), MOMENT + 1000, None),
        (LessThan(STAMP, DAY), None, MOMENT),
        (LessThanOrEqual(STAMP, DAY), None, MOMENT + 1000),
        (EqualTo(STAMP, DAY), MOMENT, MOMENT + 1000),
        (EqualNullSafe(STAMP, DAY), MOMENT, MOMENT + 1000),
        (GreaterThan(NANOS, 7), 8, None),
        (LessThanOrEqual(NANOS, 7), None, 8),
        (EqualTo(NANOS, 7), 7, 8),
    ],
)
def test_comparisons_with_a_time_are_applied(condition: Filter, since: int | None, until: int | None) -> None:
    assert narrowed_by(condition, ALWAYS) == ALWAYS.narrowed(since, until)


@pytest.mark.parametrize(
    "condition",
    [
        In(STAMP, (DAY, LATER)),
        Not(EqualTo(STAMP, DAY)),
        IsNotNull(STAMP),
        EqualTo(("attempts",), 7),
        EqualTo(STAMP, datetime.datetime(2026, 3, 1)),
    ],
)
def test_other_conditions_are_left_to_spark(condition: Filter) -> None:
    reader = batch.FilteringReader({"wal": "/nowhere"}, BODY)
    assert reader.pushFilters([condition, LessThan(NANOS, 7)]) == [condition]
    assert reader._times == ALWAYS.narrowed(None, 7)


def test_conditions_and_options_are_applied_together(wal: Wal) -> None:
    conditions = [LessThan(STAMP, LATER), GreaterThan(NANOS, MOMENT + 17 * 10**9)]
    assert numbers(wal, *conditions, startingTimestamp=second(16)) == [18, 19]
    assert numbers(wal, LessThan(NANOS, 0)) == []


def test_times_that_arrow_cannot_hold_are_no_error() -> None:
    far = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)
    assert narrowed_by(LessThan(STAMP, far), ALWAYS) == ALWAYS
    assert narrowed_by(GreaterThan(STAMP, far), ALWAYS) == TimeRange(ALWAYS.until, ALWAYS.until)


def test_only_the_process_that_pushes_conditions_gets_a_reader_that_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark refuses one that does so unless pushing is enabled."""
    assert reader_of({"wal": "w"}, BODY).pushFilters.__func__ is DataSourceReader.pushFilters
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
    assert isinstance(reader_of({"wal": "w"}, BODY), batch.FilteringReader)
