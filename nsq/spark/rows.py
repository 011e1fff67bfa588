"""What a row of format "nsq" is, and what is usually done with it next. Imports pyspark when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from nsq.errors import ConfigError
from nsq.spark.json_bodies import CORRUPT, RESCUED, read_json

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


class Field(NamedTuple):
    """A column of the schema that was asked for."""

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
    """The rows with their bodies read as JSON: ``schema``, ``_rescued`` and ``_corrupt`` instead of ``body``.

    What the schema does not name stands in ``_rescued`` as JSON: other fields, those in another case, and all
    but the last value of a name that comes twice. A body that is not one JSON object of that schema, and
    nothing else, stands in ``_corrupt`` as text, in hexadecimal (``0xFF00``) where it is no UTF-8. Both are
    null where there is nothing to tell. A column of the schema takes the place of ours of the same
    name, so rename that before where both are wanted.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name
    from pyspark.sql.types import StructType

    wanted = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    named = [name for name in wanted.fieldNames() if name not in (CORRUPT, RESCUED)]
    replaced = {"body", CORRUPT, RESCUED, *named}
    kept: list[Column] = [F.col(name) for name in df.columns if name not in replaced]
    opened: list[Column] = [F.col(f"__json.value.`{name}`").alias(name) for name in named]
    aside = [F.col("__json.rescued").alias(RESCUED), F.col("__json.corrupt").alias(CORRUPT)]
    return df.withColumn("__json", read_json(F.col("body"), wanted)).select(*kept, *opened, *aside)


def dedup(df: DataFrame, delay: str = "10 minutes") -> DataFrame:
    """Without messages that came twice within ``delay``, which Spark has to remember for that long.

    nsqd delivers again what was not answered in time, under the same id, which is unique to each nsqd. A
    message published twice has two ids.
    """
    return df.withWatermark("timestamp", delay).dropDuplicatesWithinWatermark(["nsqd", "id"])
