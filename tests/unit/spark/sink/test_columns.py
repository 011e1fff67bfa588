from __future__ import annotations

import pytest

from nsq.errors import ConfigError

pytest.importorskip("pyspark")

from nsq.spark.rows import TYPES
from nsq.spark.sink import Columns

OF_SOURCE = [(name, kind) for name, kind in TYPES.items()]


@pytest.mark.parametrize(
    ("fields", "topic", "found"),
    [
        (
            [("deferMs", "long"), ("body", "binary"), ("topic", "string")],
            "",
            Columns(1, topic=2, defer=0),
        ),
        # The option comes before the column.
        ([("topic", "string"), ("body", "string")], "orders", Columns(1, None, None)),
        # Rows of the source can be published as they are.
        (OF_SOURCE, "", Columns(body=6, topic=0, defer=None)),
        *(
            ([("Body", "string"), (name, "integer")], "orders", Columns(0, None, 1))
            for name in ("deferms", "DEFERMS", "defer_ms")
        ),
    ],
)
def test_columns_are_found_at_any_place_and_in_any_spelling(
    fields: list[tuple[str, str]], topic: str, found: Columns
) -> None:
    assert Columns.of(fields, topic) == found


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
