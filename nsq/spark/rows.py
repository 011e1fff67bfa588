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

    What is not one JSON object of that schema, and nothing else, stands in ``_corrupt`` as text, which is
    null for all others. Bytes that are no UTF-8 stand there in hexadecimal: ``0xFF00``. A column of the
    schema takes the place of ours of the same name, so rename that before where both are wanted.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
    from pyspark.sql.types import StructType

    wanted = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    asked_for = [name for name in wanted.fieldNames() if name != CORRUPT]
    kept: list[Column] = [F.col(name) for name in df.columns if name not in {"body", CORRUPT, *asked_for}]
    made = "__json"
    read = JsonBody(F.col("body"), wanted)
    opened: list[Column] = [F.col(f"{made}.{read.VALUE}.`{name}`").alias(name) for name in asked_for]
    corrupt = read.corrupt(F.col(made)).alias(CORRUPT)
    return df.withColumn(made, read.parsed()).select(*kept, *opened, corrupt)


class JsonBody:
    """A column of bodies, read as JSON of a schema, of which nothing is lost.

    Spark reads the first value of a text and ignores what stands behind it, such as a second line of JSON. So
    the body is put into an object, before a mark that is not reached unless the body was one value. The mark
    is made of the body, so that no body can contain its own. What gets there all the same, a value and more
    keys of that object, is nothing that can stand in an array: there it is tried too.
    """

    VALUE = "value"
    _MARK = "mark"

    def __init__(self, body: Column, schema: StructType) -> None:
        self._body = body
        self._schema = schema

    def parsed(self) -> Column:
        """With the body's own fields in ``value``."""
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StringType, StructType

        own = StructType([column for column in self._schema.fields if column.name != CORRUPT])
        whole = StructType().add(self.VALUE, own).add(self._MARK, StringType()).add(CORRUPT, StringType())
        text = F.concat(
            F.lit(f'{{"{self.VALUE}":'),
            self._text(),
            F.lit(f',"{self._MARK}":"'),
            F.md5(self._body),
            F.lit('"}'),
        )
        return F.from_json(text, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})

    def fits(self, parsed: Column) -> Column:
        """Whether that is the whole body."""
        from pyspark.sql import functions as F  # noqa: N812

        read = parsed[self.VALUE].isNotNull() & parsed[CORRUPT].isNull()
        marked = F.coalesce(parsed[self._MARK] == F.md5(self._body), F.lit(False))
        return read & marked & self._is_alone() & F.is_valid_utf8(self._body.cast("string"))

    def _is_alone(self) -> Column:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import ArrayType, StructType

        inside = F.from_json(F.concat(F.lit("["), self._text(), F.lit("]")), ArrayType(StructType()))
        return F.coalesce(F.size(inside) == 1, F.lit(False))

    def _text(self) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.make_valid_utf8(self._body.cast("string"))  # others would fail the query

    def corrupt(self, parsed: Column) -> Column:
        """The body where it does not fit, as text."""
        from pyspark.sql import functions as F  # noqa: N812

        text = self._body.cast("string")
        shown = F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("0x"), F.hex(self._body)))
        return F.when(~self.fits(parsed), shown)


def dedup(df: DataFrame, delay: str = "10 minutes") -> DataFrame:
    """Without messages that came twice within ``delay``, which Spark has to remember for that long.

    nsqd delivers again what was not answered in time, under the same id, which is unique to each nsqd. A
    message published twice has two ids.
    """
    return df.withWatermark("timestamp", delay).dropDuplicatesWithinWatermark(["nsqd", "id"])
