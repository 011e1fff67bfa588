from __future__ import annotations

import pytest

from nsq.errors import ConfigError

pytest.importorskip("pyspark")

from nsq.spark.sink import Columns


def test_columns_are_found_at_any_place() -> None:
    fields = [("deferMs", "long"), ("body", "binary"), ("topic", "string")]

    assert Columns.of(fields, "") == Columns(body=1, topic=2, defer=0)


def test_the_option_comes_before_the_column() -> None:
    assert Columns.of([("topic", "string"), ("body", "string")], "orders") == Columns(1, None, None)


def test_rows_of_the_source_can_be_published_as_they_are() -> None:
    source = [
        ("topic", "string"),
        ("nsqd", "string"),
        ("id", "string"),
        ("timestamp", "timestamp"),
        ("timestamp_ns", "long"),
        ("attempts", "integer"),
        ("body", "binary"),
    ]

    assert Columns.of(source, "") == Columns(body=6, topic=0, defer=None)


@pytest.mark.parametrize("name", ["deferms", "DEFERMS", "defer_ms"])
def test_a_delay_may_be_spelt_as_columns_are(name: str) -> None:
    assert Columns.of([("Body", "string"), (name, "integer")], "orders").defer == 1


@pytest.mark.parametrize(
    ("fields", "topic", "words"),
    [
        ([("value", "string")], "orders", r"no column body.*there are: value"),
        ([], "orders", "no column body"),
        ([("body", "struct")], "orders", "column body is of type struct, must be binary or string"),
        ([("body", "string")], "", "no column topic and no option topic"),
        ([("body", "string"), ("topic", "integer")], "", "column topic is of type integer, must be string"),
        ([("body", "string"), ("deferMs", "double")], "orders", "column deferMs is of type double"),
        ([("body", "string"), ("defer", "long")], "orders", "column defer is not known; did you mean"),
        ([("body", "string"), ("defer", "long"), ("BODY", "string")], "orders", "2 columns body"),
    ],
)
def test_columns_that_cannot_be_published_are_an_error_in_one_line(
    fields: list[tuple[str, str]], topic: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        Columns.of(fields, topic)
    assert "\n" not in str(raised.value)
