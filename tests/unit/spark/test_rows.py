from __future__ import annotations

import pytest

from nsq.errors import ConfigError
from nsq.spark.rows import SCHEMA, TYPES, Field, checked


def test_any_columns_in_any_order() -> None:
    wanted = [Field("body", "binary"), Field("topic", "string", nullable=False)]
    assert checked(wanted) == wanted
    assert checked([]) == []


def test_a_column_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"'payload'; there are topic, .*body"):
        checked([Field("payload", "binary")])


def test_a_column_of_another_type() -> None:
    with pytest.raises(ConfigError, match="wants column body as string, but it is binary"):
        checked([Field("body", "string")])


def test_the_schema_names_all() -> None:
    assert [part.split() for part in SCHEMA.split(", ")] == [list(each) for each in TYPES.items()]


def test_it_is_what_the_log_gives() -> None:
    records = pytest.importorskip("nsq.spark.wal.records")
    assert tuple(TYPES) == records.COLUMNS
