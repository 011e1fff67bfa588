"""What a row of format "nsq" is, and what is usually done with it next. Imports pyspark when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from nsq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

TYPES = {
    "topic": "string",
    "nsqd": "string",
    "id": "string",
    "timestamp": "timestamp",
    "timestamp_ns": "bigint",
    "attempts": "int",
    "body": "binary",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
"""``timestamp`` is when nsqd took the message; ``timestamp_ns`` the same, exactly."""

CORRUPT = "_corrupt"


class Field(NamedTuple):
    """A column that somebody wants."""

    name: str
    kind: str
    nullable: bool = True


def fields(schema: StructType) -> list[Field]:
    return [Field(column.name, column.dataType.simpleString(), column.nullable) for column in schema.fields]


def checked(wanted: Sequence[Field]) -> list[Field]:
    """Any of our columns in any order, but as we have them; otherwise ConfigError."""
    for field in wanted:
        kind = TYPES.get(field.name)
        if kind is None:
            raise ConfigError(f"the schema has a column {field.name!r}; there are {', '.join(TYPES)}")
        if field.kind != kind:
            raise ConfigError(
                f"the schema wants column {field.name} as {field.kind}, but it is {kind}: leave "
                f".schema() out, or write {field.name} {kind}, and cast afterwards"
            )
    return list(wanted)


def json(df: DataFrame, schema: StructType | str) -> DataFrame:
    """The rows with their bodies read as JSON: ``schema`` and ``_corrupt`` instead of ``body``.

    What is no JSON object of that schema stands in ``_corrupt`` as text, which is null for all others. Bytes
    that are no UTF-8 are shown with replacement characters. A column of the schema takes the place of ours of
    the same name, so rename that before where both are wanted.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
    from pyspark.sql.types import StructType

    wanted = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    asked_for = wanted.fieldNames()
    # decode() would fail the query over a single body that is no UTF-8.
    text = F.make_valid_utf8(F.col("body").cast("string"))
    parsed = F.from_json(text, _with_corrupt(wanted), {"columnNameOfCorruptRecord": CORRUPT})
    kept: list[Column] = [F.col(name) for name in df.columns if name not in {"body", CORRUPT, *asked_for}]
    made = "__json"
    opened: list[Column] = [F.col(f"{made}.`{name}`").alias(name) for name in asked_for if name != CORRUPT]
    # Of an empty text from_json makes nothing at all.
    corrupt = F.coalesce(F.col(f"{made}.{CORRUPT}"), F.when(F.col(made).isNull(), text)).alias(CORRUPT)
    return df.withColumn(made, parsed).select(*kept, *opened, corrupt)


def _with_corrupt(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    own = [column for column in schema.fields if column.name != CORRUPT]
    return StructType([*own, StructField(CORRUPT, StringType())])


def dedup(df: DataFrame, delay: str = "10 minutes") -> DataFrame:
    """Without messages that came twice within ``delay``, which Spark has to remember for that long.

    nsqd delivers again what was not answered in time, under the same id, which is unique to each nsqd. A
    message published twice has two ids.
    """
    return df.withWatermark("timestamp", delay).dropDuplicatesWithinWatermark(["nsqd", "id"])
