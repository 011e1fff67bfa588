from __future__ import annotations

import re

import pytest

from nsq.errors import ConfigError
from nsq.spark.rows import SCHEMA, TYPES, Field, Shape, check_schema, checked, read_again, restored


def test_any_columns_in_any_order_are_accepted() -> None:
    wanted = [Field("body", "binary"), Field("topic", "string", nullable=False)]
    assert checked(wanted) == wanted
    assert checked([]) == []


def test_an_unknown_column_or_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'payload'; there are topic, .*body"):
        checked([Field("payload", "binary")])
    with pytest.raises(ConfigError, match="wants column body as string, but it is binary"):
        checked([Field("body", "string")])


def test_the_schema_names_all() -> None:
    assert [part.split() for part in SCHEMA.split(", ")] == [list(each) for each in TYPES.items()]


def test_the_schema_has_the_columns_of_the_log() -> None:
    from nsq.spark.wal import records

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


SHAPE: Shape = {"a": None, "s": {"x": None}, "l": [{"x": None}], "m": ({"x": None},)}


@pytest.mark.parametrize(
    ("body", "rescued"),
    [
        *[('{"a": 1}', None), ("{}", None), ('{"a": {"any": "thing"}}', None)],
        *[('{"a": 1, "b": 2}', '{"b": 2}'), ('{"A": 1}', '{"A": 1}')],
        ('{"a": 1, "a": 2, "a": 3}', '{"a": 1, "a": 2}'),
        ('{"s": {"x": 1, "y": [true]}}', '{"s": {"y": [true]}}'),
        ('{"s": null, "l": "no list"}', None),
        ('{"l": [{"x": 1}, {"y": 2}]}', '{"l": [null, {"y": 2}]}'),
        ('{"m": {"any": {"x": 1, "y": 1}}}', '{"m": {"any": {"y": 1}}}'),
        ('{"n": 1.10, "e": 1e400, "i": 123456789012345678901234567890}', ...),
        ('{"\\u00e9": "\\ud800"}', ...),
    ],
)
def test_fields_that_the_schema_does_not_name_are_rescued(body: str, rescued: str | None) -> None:
    expected = body if rescued is ... else rescued
    assert read_again(body.encode(), SHAPE) == (True, expected)


@pytest.mark.parametrize(
    "body",
    [None, b"", b"{'a': 1}", b'{"a": NaN}', b'{"a": -Infinity}', b"[1]", b"1", b"null", b'{"a": 1} {"a": 2}',
     b'{"a": 01}', b'{a: 1}', b'{"a": 1,}', b'\xef\xbb\xbf{}', b'{"a": "\xe9"}', b"[" * 100_000],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_corrupt(body: bytes | None) -> None:
    assert not read_again(body, SHAPE)[0]


@pytest.mark.parametrize(
    ("read", "left", "body"),
    [
        ('{"a":1}', None, '{"a":1}'),
        (None, None, None),
        ("{}", '{"b": 2}', '{"b": 2}'),
        ('{"a":3}', '{"a": 1, "a": 2}', '{"a": 1, "a": 2, "a": 3}'),
        ('{"a":1,"s":{"x":1}}', '{"s": {"y": [true]}}', '{"a": 1, "s": {"y": [true], "x": 1}}'),
        ('{"l":[{"x":1},{}]}', '{"l": [null, {"y": 2}]}', '{"l": [{"x": 1}, {"y": 2}]}'),
        ('{"l":[{"x":1}]}', '{"l": [1, 2]}', '{"l": [1, 2], "l": [{"x": 1}]}'),
        ('{"l":[{"x":1}]}', '{"l": {"x": 2}}', '{"l": {"x": 2}, "l": [{"x": 1}]}'),
        ('{"s":{"x":1}}', '{"b": null, "s": 5}', '{"b": null, "s": 5, "s": {"x": 1}}'),
        ('{"a":1.50}', '{"n": 1e400}', '{"n": 1e400, "a": 1.50}'),
    ],
)
def test_a_body_is_put_together_again(read: str | None, left: str | None, body: str | None) -> None:
    assert restored(read, left) == body
    if body is not None:
        assert read_again(body.encode(), SHAPE) == (True, left)
