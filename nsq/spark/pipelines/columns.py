"""The columns of an archive, from the rows of the source, and how they are written.

Loads pyspark only when a frame is at hand.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from nsq.errors import ConfigError
from nsq.spark.pipelines.publishing import Written
from nsq.spark.rows import CORRUPT, JsonBody

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

KINDS = ("binary", "string", "json")
PARTITIONS = ("date", "hour")
BYTES = "_bytes"

_HOUR = 3_600_000_000_000
_COLUMNS = ("topic", "nsqd", "id", "timestamp", "timestamp_ns", "attempts")


@dataclasses.dataclass(frozen=True)
class Body:
    """What becomes of the body: ``binary`` as it is, ``string`` as text, ``json`` read by ``schema``."""

    kind: str = "binary"
    schema: StructType | str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"body is {self.kind!r}, but must be one of: {', '.join(KINDS)}")
        if self.kind == "json" and self.schema is None:
            raise ConfigError("body='json' needs a schema, such as schema='id bigint, name string'")
        if self.kind != "json" and self.schema is not None:
            raise ConfigError(f"schema is for body='json'; body is {self.kind!r}")


def archived(frame: DataFrame, body: Body) -> DataFrame:
    """As it is stored: the columns of the source, the body as it is wanted, and where it belongs."""
    from pyspark.sql import functions as f

    # From the number, as dates from timestamps depend on the session's time zone; `div` keeps it whole.
    day = f.expr(f"date_from_unix_date(cast(timestamp_ns div {24 * _HOUR} as int))")
    hour = f.expr(f"format_string('%02d', pmod(timestamp_ns div {_HOUR}, 24))")
    columns = [f.col(name) for name in _COLUMNS]
    size = f.octet_length("body").alias(BYTES)
    return frame.select(*columns, *_body(body), size, day.alias("date"), hour.alias("hour"))


def _body(body: Body) -> list[Column]:
    from pyspark.sql import functions as f

    raw = f.col("body")
    if body.kind == "binary":
        return [raw]
    if body.kind == "string":
        # Parquet's text is UTF-8, and other readers insist on it.
        return [f.make_valid_utf8(raw.cast("string")).alias("body")]
    return _json(raw, body)


def _json(raw: Column, body: Body) -> list[Column]:
    """Either the body, or, where the schema does not fit, its text beside it: nothing is lost."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = body.schema if isinstance(body.schema, StructType) else StructType.fromDDL(str(body.schema))
    if not isinstance(schema, StructType):
        raise ConfigError(
            f"schema is {body.schema!r}, but must be a struct, such as 'id bigint, name string'"
        )
    read = JsonBody(raw, schema)
    parsed = read.parsed()
    value = f.when(read.fits(parsed), parsed[read.VALUE]).alias("body")
    return [value, read.corrupt(parsed).alias(CORRUPT)]


def write_parquet(frame: DataFrame, uri: str, *, partitions: tuple[str, ...] = ()) -> Written:
    """Rows, and bytes of their bodies, counted on their way: the frame must have a column ``_bytes``, which
    is not written.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    # Spark's default, INT96, is read back in strange ways by others. A batch's session is the query's own.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    seen = Observation()
    counted = frame.observe(seen, f.count(f.lit(1)).alias("rows"), f.sum(BYTES).alias("bytes"))
    writer = counted.drop(BYTES).write.mode("overwrite").option("compression", "zstd")
    writer.partitionBy(*partitions).parquet(uri)
    return Written(seen.get["rows"], seen.get["bytes"] or 0)
