"""Bodies of JSON, read by a schema, of which nothing is dropped unseen.

Spark's ``from_json`` makes the columns. It ignores what the schema does not name, keeps one of several values
under one name, and takes some texts for JSON that are none. So every body is read a second time here, in
Python: ``ParsedBody.of`` says whether it is one JSON object, and which parts of it ``from_json`` leaves out.
Imports pyspark and pyarrow when they are needed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nsq.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

CORRUPT, RESCUED = "_corrupt", "_rescued"
_STRICT = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_STRICT |= {"columnNameOfCorruptRecord": CORRUPT}

#: What a schema names: a dict of the fields of a struct, a list with the kind of an array's elements, a tuple
#: with the kind of a map's values, or None for a plain value.
Shape = dict[str, Any] | list[Any] | tuple[Any] | None


class _Object(list[tuple[str, Any]]):
    """All names and values of a JSON object, in their order."""


class _Number(str):
    """As it is written."""

    __slots__ = ()


class ParsedBody(NamedTuple):
    """``rescued`` is a JSON text with the parts that the schema does not name; None when it names all."""

    valid: bool
    rescued: str | None = None

    @classmethod
    def of(cls, body: bytes | None, shape: Shape) -> ParsedBody:
        try:
            read = _parsed((body or b"").decode())
            if not isinstance(read, _Object):
                return cls(False)
            left = _left(read, shape)
            return cls(True, None if left is None else _text(left))
        except (ValueError, RecursionError):
            return cls(False)


def _parsed(text: str) -> Any:
    return json.loads(
        text,
        object_pairs_hook=_Object,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_refuse,
    )


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _left(value: Any, shape: Shape) -> Any:
    """What is left of a value without the parts that are named; None when nothing is."""
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
    """A body again, of the part that a schema named and what it ``left``: JSON texts."""
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
    # In front: of several values under one name the last one counts, and that is the one that was read.
    outside = [(name, value) for name, value in left if name not in inside]
    return _Object(
        [*outside, *((name, _joined(value, rest[name]) if name in inside else value) for name, value in read)]
    )


def _belong_together(read: Any, left: Any) -> bool:
    """Whether they are parts of one object or array."""
    if not isinstance(read, list) or type(read) is not type(left):
        return False
    return isinstance(read, _Object) or len(read) == len(left)


def _text(value: Any) -> str:
    if isinstance(value, _Object):
        return "{" + ", ".join(f"{json.dumps(name)}: {_text(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return value if isinstance(value, _Number) else json.dumps(value)


def shape_of(kind: DataType) -> Shape:
    """What a Spark type names."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return {field.name: shape_of(field.dataType) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [shape_of(kind.elementType)]
    return (shape_of(kind.valueType),) if isinstance(kind, MapType) else None


def read_json(body: Column, schema: StructType | str) -> Column:
    """A struct of ``value``, by the schema, or null where the body does not fit; ``corrupt``, which is then
    the body as text, in hexadecimal (``0xFF00``) where it is no UTF-8; and ``rescued``.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name
    from pyspark.sql.types import StringType, StructType

    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise ConfigError(f"schema is {schema!r}, but must be a struct, such as 'id bigint, name string'")
    own = StructType([field for field in wanted.fields if field.name not in (CORRUPT, RESCUED)])
    text = body.cast("string")
    is_text = F.is_valid_utf8(text)
    # Other bytes would fail the query.
    parsed = F.from_json(
        F.make_valid_utf8(text), StructType([*own.fields]).add(CORRUPT, StringType()), _STRICT
    )
    second = _second_reading(own)(body)
    fits = is_text & second["valid"] & parsed.isNotNull() & parsed[CORRUPT].isNull()
    value = F.when(fits, F.struct(*(parsed[name].alias(name) for name in own.fieldNames())))
    shown = F.when(is_text, text).otherwise(F.concat(F.lit("0x"), F.hex(body)))
    return F.struct(
        value.alias("value"),
        F.when(~fits, shown).alias("corrupt"),
        F.when(fits, second["rescued"]).alias("rescued"),
    )


def restore_json(value: Column, rescued: Column, corrupt: Column) -> Column:
    """The bodies that ``read_json`` has read: the same values, in an order and spelling that may differ."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812 - its usual name
    from pyspark.sql.pandas.functions import arrow_udf

    def join(read: pa.Array, left: pa.Array) -> pa.Array:
        return pa.array(map(restored, read.to_pylist(), left.to_pylist()), pa.string())

    join.__annotations__ = dict.fromkeys(("read", "left", "return"), pa.Array)
    make: Any = arrow_udf
    return F.coalesce(make(join, "string")(F.to_json(value), rescued), corrupt)


def _second_reading(schema: StructType) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    shape = shape_of(schema)

    def read(bodies: pa.Array) -> pa.Array:
        found = [ParsedBody.of(body, shape) for body in bodies.to_pylist()]
        valid = pa.array([one.valid for one in found], pa.bool_())
        rescued = pa.array([one.rescued for one in found], pa.string())
        return pa.StructArray.from_arrays([valid, rescued], names=["valid", "rescued"])

    read.__annotations__ = dict.fromkeys(("bodies", "return"), pa.Array)  # Spark reads them, not as text
    make: Any = arrow_udf
    return make(read, "valid boolean, rescued string")
