from __future__ import annotations

import re

import pytest

from nsq.errors import ConfigError
from nsq.spark.rows import SCHEMA, TYPES, Field, check_schema, checked


def test_any_columns_in_any_order_are_accepted() -> None:
    wanted = [Field("body", "binary"), Field("topic", "string", nullable=False)]
    assert checked(wanted) == wanted
    assert checked([]) == []


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'payload'; there are topic, .*body"):
        checked([Field("payload", "binary")])


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="wants column body as string, but it is binary"):
        checked([Field("body", "string")])


def test_the_schema_names_all() -> None:
    assert [part.split() for part in SCHEMA.split(", ")] == [list(each) for each in TYPES.items()]


def test_the_schema_has_the_columns_of_the_log() -> None:
    records = pytest.importorskip("nsq.spark.wal.records")
    assert tuple(TYPES) == records.COLUMNS


@pytest.mark.parametrize(
    "schema",
    [
        "id bigint, name string",
        "id: BIGINT NOT NULL, `a, b` decimal(10, 2) COMMENT 'x, y'",
        "tags array<string>, inner struct<a: map<string, array<int>>, b: int>, at timestamp_ntz",
        "struct<id: bigint>",
        "span interval day to second, name varchar(20)",
    ],
)
def test_a_schema_that_spark_understands_passes(schema: str) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("id bigit", "Spark has no type 'bigit'; did you mean bigint?"),
        ("id", "want a name and a type"),
        ("", "want a name and a type"),
        ("id bigint name string", "'name string' cannot follow a type; is a comma missing?"),
        ("tags array<string, id int", "want a name and a type"),
        ("id bigint,, name string, x 1", "Spark has no type '1'"),
    ],
)
def test_a_mistake_in_a_schema_is_found_without_spark(schema: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_schema(schema)
