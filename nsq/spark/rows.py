"""The rows of format "nsq", their deduplication, and bodies of JSON. Imports pyspark and pyarrow only when
needed.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from json import dumps, loads
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nsq.errors import ConfigError, UsageError, how_to_install
from nsq.options import closest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

TYPES = {
    "topic": "string",
    "nsqd": "string",
    "id": "string",
    "timestamp": "timestamp",
    "timestamp_ns": "bigint",
    "attempts": "int",
    "key": "binary",
    "headers": "map<string,string>",
    "body": "binary",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
"""The schema. ``timestamp`` is when nsqd took the message; ``timestamp_ns`` is the same, exactly."""


def require_arrow() -> None:
    """Raise UsageError when this Python has no pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            f"pyarrow is missing in {sys.executable}: {how_to_install('spark')} there, or set "
            "PYSPARK_PYTHON to the Python that has it"
        )


#: The column with which ``dedup`` measures time.
_READ_AT = "_read_at"


class Field(NamedTuple):
    """A column of the requested schema."""

    name: str
    kind: str
    nullable: bool = True


def fields(schema: StructType) -> list[Field]:
    return [Field(column.name, column.dataType.simpleString(), column.nullable) for column in schema.fields]


def checked(wanted: Sequence[Field]) -> list[Field]:
    """Check a requested schema: any of our columns in any order, with our types. Raises ConfigError."""
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


def dedup(df: DataFrame, delay: str = "10 minutes") -> DataFrame:
    """Drop messages that Spark reads again within ``delay``. Spark keeps their ids for that long.

    nsqd delivers a message again, under the same id, when it was not finished in time. Ids are unique within
    one nsqd. A message published twice has two ids.

    ``delay`` is measured by the driver's clock from batch to batch, not by the messages' timestamps: NSQ
    mixes old and new messages, and Spark would delete those that are ``delay`` older than the newest one. So
    the driver's clock must not be set back by more than ``delay``.
    """
    from pyspark.sql import functions as f

    # current_timestamp is the batch's time, the same for all its rows: no row is later than the watermark.
    read = df.withColumn(_READ_AT, f.current_timestamp()).withWatermark(_READ_AT, delay)
    return read.dropDuplicatesWithinWatermark(["nsqd", "id"]).drop(_READ_AT)


# Bodies of JSON, read by a schema without dropping anything silently.
#
# Spark's ``from_json`` makes the columns. It ignores fields that the schema does not name, keeps one of
# several values with the same name, and accepts some invalid JSON. So we parse every body again in Python:
# ``read_again`` says whether it is one JSON object, and which parts ``from_json`` drops.


CORRUPT, RESCUED = "_corrupt", "_rescued"


def json(df: DataFrame, schema: StructType | str) -> DataFrame:
    """Parse bodies as JSON: replaces ``body`` by the columns of ``schema``, ``_rescued`` and ``_corrupt``.

    ``_rescued`` holds, as JSON, what the schema does not name: other fields, fields in another case, and all
    but the last value of a repeated name. ``_corrupt`` holds the whole body if it is not exactly one JSON
    object of that schema: as text, or in hexadecimal (``0xFF00``) if it is not UTF-8. Each is null when there
    is nothing to hold. A column of the schema replaces a column of ``df`` with the same name: rename that one
    first to keep both.
    """
    from pyspark.sql import functions as f

    wanted = struct_of(schema)
    replaced = {"body", CORRUPT, RESCUED, *wanted.fieldNames()}
    kept = [f.col(name) for name in df.columns if name not in replaced]
    aside = [f.col("__json.rescued").alias(RESCUED), f.col("__json.corrupt").alias(CORRUPT)]
    read = df.withColumn("__json", read_json(f.col("body"), wanted))
    return read.select(*kept, "__json.value.*", *aside)


#: The first words of Spark's types.
_TYPE_WORDS = frozenset(
    re.findall(
        r"\w+",
        """array bigint binary boolean byte char character date dec decimal double float int integer interval
        long map numeric real short smallint string struct time timestamp timestamp_ltz timestamp_ntz tinyint
        varchar variant void""",
    )
)
#: The parts of a column that commas separate; a comma in brackets or quotes does not.
_PARTS = re.compile(r"(?:`[^`]*`|'[^']*'|[^,])+")
_BRACKETS = re.compile(r"<[^<>]*>|\([^()]*\)")
_COLUMN = re.compile(r"(?:`[^`]+`|[^\s`:]+)(?:\s*:\s*|\s+)(\w+)\s*(.*)", re.DOTALL)
_AFTER_TYPE = re.compile(r"(not|comment|collate|default|day|year|month|hour|minute|second|without)\b", re.I)


def check_schema(text: str) -> None:
    """Check the columns of a schema as text, because Spark does so only once it runs; types in brackets are
    left to Spark. Raises ConfigError.
    """
    outline, before = text, ""
    while outline != before:
        before, outline = outline, _BRACKETS.sub("", outline)
    if outline.strip().lower() == "struct":
        return
    for part in _PARTS.findall(outline) or [""]:
        found = _COLUMN.fullmatch(part.strip())
        wrong = f"schema is {text!r}, with {part.strip()!r}: "
        if found is None or set("<>()") & set(part):
            raise ConfigError(f"{wrong}want a name and a type, such as 'id bigint', with commas in between")
        kind, rest = found[1].lower(), found[2]
        if kind not in _TYPE_WORDS:
            close = closest(kind, _TYPE_WORDS, 0.6)
            hint = f"; did you mean {close}?" if close else ""
            raise ConfigError(f"{wrong}Spark has no type {found[1]!r}{hint}")
        if rest and not _AFTER_TYPE.match(rest):
            raise ConfigError(f"{wrong}{rest!r} cannot follow a type; is a comma missing?")


def struct_of(schema: StructType | str) -> StructType:
    """The schema without ``_corrupt`` and ``_rescued``, which are always added."""
    from pyspark.sql.types import StructType

    if isinstance(schema, str):
        check_schema(schema)
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise ConfigError(f"schema is {schema!r}, but must be a struct, such as 'id bigint, name string'")
    return StructType([field for field in wanted.fields if field.name not in (CORRUPT, RESCUED)])


def read_json(body: Column, schema: StructType | str) -> Column:
    """Parse a body into a struct of ``value``, ``corrupt`` and ``rescued``. If the body does not fit the
    schema, ``value`` is null and ``corrupt`` the body, as text or in hexadecimal (``0xFF00``); see ``json``.
    """
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    own = struct_of(schema)
    shape = shape_of(own)

    def second_reading(bodies: pa.Array) -> pa.Array:
        found = [read_again(each, shape) for each in bodies.to_pylist()]
        valid = pa.array([each for each, _ in found], pa.bool_())
        rescued = pa.array([each for _, each in found], pa.string())
        return pa.StructArray.from_arrays([valid, rescued], names=["valid", "rescued"])

    text = body.cast("string")
    is_text = f.is_valid_utf8(text)
    # from_json fails the query on invalid UTF-8.
    first = f.from_json(
        f.make_valid_utf8(text), StructType([*own.fields]).add(CORRUPT, StringType()), _STRICT
    )
    second = _arrow_udf(second_reading, "valid boolean, rescued string")(body)
    fits = is_text & second["valid"] & first.isNotNull() & first[CORRUPT].isNull()
    value = f.when(fits, f.struct(*(first[name].alias(name) for name in own.fieldNames())))
    shown = f.when(is_text, text).otherwise(f.concat(f.lit("0x"), f.hex(body)))
    return f.struct(
        value.alias("value"),
        f.when(~fits, shown).alias("corrupt"),
        f.when(fits, second["rescued"]).alias("rescued"),
    )


def restore_json(value: Column, rescued: Column, corrupt: Column) -> Column:
    """Rebuild bodies that ``read_json`` has parsed: the same values; order and spelling may differ."""
    import pyarrow as pa
    from pyspark.sql import functions as f

    def join(read: pa.Array, left: pa.Array) -> pa.Array:
        return pa.array(map(restored, read.to_pylist(), left.to_pylist()), pa.string())

    return f.coalesce(_arrow_udf(join, "string")(f.to_json(value), rescued), corrupt)


def _arrow_udf(function: Any, kind: str) -> Any:
    """Make an Arrow UDF. Spark needs annotations that are types, not strings."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    function.__annotations__ = dict.fromkeys(function.__annotations__, pa.Array)
    make: Any = arrow_udf
    return make(function, kind)


def shape_of(kind: DataType) -> Shape:
    """The names in a Spark type, as a ``Shape``."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return {field.name: shape_of(field.dataType) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [shape_of(kind.elementType)]
    return (shape_of(kind.valueType),) if isinstance(kind, MapType) else None


_STRICT = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_STRICT |= {"columnNameOfCorruptRecord": CORRUPT}

#: The names in a schema: a dict for a struct's fields, a list of one shape for an array's elements, a tuple
#: of one shape for a map's values, or None for a plain value.
Shape = dict[str, Any] | list[Any] | tuple[Any] | None


class _Object(list[tuple[str, Any]]):
    """A JSON object as a list of names and values, in order and with duplicates."""


class _Number(str):
    """A JSON number, spelled as in the body."""

    __slots__ = ()


def read_again(body: bytes | None, shape: Shape) -> tuple[bool, str | None]:
    """Return whether a body is a JSON object, and the parts that the schema does not name, as JSON; None
    when there are no such parts.
    """
    try:
        read = _parsed((body or b"").decode())
        left = _left(read, shape)
        return isinstance(read, _Object), None if left is None else _text(left)
    except (ValueError, RecursionError):
        return False, None


def _parsed(text: str) -> Any:
    return loads(
        text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_refuse
    )


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _left(value: Any, shape: Shape) -> Any:
    """The parts of a value that ``shape`` does not name; None when there are none."""
    if isinstance(value, _Object) and isinstance(shape, (dict, tuple)):
        last = {name: place for place, (name, _) in enumerate(value)}
        left = _Object()
        for place, (name, each) in enumerate(value):
            named = isinstance(shape, tuple) or name in shape
            if not named or last[name] != place:  # of several values under one name Spark keeps the last
                left.append((name, each))
                continue
            rest = _left(each, shape[0] if isinstance(shape, tuple) else shape[name])
            if rest is not None:
                left.append((name, rest))
        return left or None
    if isinstance(value, list) and isinstance(shape, list):
        parts = [_left(each, shape[0]) for each in value]
        return parts if any(part is not None for part in parts) else None
    return None


def restored(read: str | None, left: str | None) -> str | None:
    """Join the part of a body that the schema named and the part it ``left``, both JSON."""
    if read is None or left is None:
        return read
    return _text(_joined(_parsed(read), _parsed(left)))


def _joined(read: Any, left: Any) -> Any:
    if not _belong_together(read, left):
        return read
    if not isinstance(read, _Object):
        return [_joined(*pair) for pair in zip(read, left, strict=True)]
    rest = dict(left)
    inside = {name for name, value in read if _belong_together(value, rest.get(name))}
    # In front: of several values with one name the last one counts, which is in ``read``.
    outside = [(name, value) for name, value in left if name not in inside]
    return _Object(
        [*outside, *((name, _joined(value, rest[name]) if name in inside else value) for name, value in read)]
    )


def _belong_together(read: Any, left: Any) -> bool:
    """Whether both are parts of the same object or array."""
    if not isinstance(read, list) or type(read) is not type(left):
        return False
    return isinstance(read, _Object) or len(read) == len(left)


def _text(value: Any) -> str:
    if isinstance(value, _Object):
        return "{" + ", ".join(f"{dumps(name)}: {_text(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return value if isinstance(value, _Number) else dumps(value)
