"""``archive`` stores a topic as Parquet files by date and hour, or as a Delta table. Imports pyspark and
deltalake only when called.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError, how_to_install
from nsq.spark.pipelines import streaming
from nsq.spark.pipelines.files import Batch, Files, Written, below, check_writable, open_files, publish
from nsq.spark.pipelines.streaming import Addresses, OnProgress, Running, Totals
from nsq.spark.rows import CORRUPT, RESCUED, TYPES, check_schema, read_json, struct_of
from nsq.spark.session import GivenSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

KINDS = ("binary", "string", "json")
BYTES = "_bytes"
_PARTITIONS = ("date", "hour")
_HOUR = 3_600_000_000_000
_DELTA = "delta:"

#: The archive is the copy to keep, so the log keeps nothing. A task writes a file of this size per hour.
_DEFAULTS = {"retention": "0", "targetpartitionbytes": "128m"}
#: The rows of a batch for a table pass through the driver's memory.
_TABLE_DEFAULTS = _DEFAULTS | {"maxbytespertrigger": "256m"}


@dataclasses.dataclass(frozen=True)
class ArchiveResult(Totals):
    """The result of ``archive``: ``bytes`` is the size of the bodies, ``files`` counts the new files."""

    path: str = ""


def archive(
    topic: str,
    channel: str = "archive",
    *,
    to: str | os.PathLike[str],
    nsqd: Addresses = (),
    lookupd: Addresses = (),
    wal: str | None = None,
    checkpoint: str | None = None,
    follow: bool = False,
    every: float = 60.0,
    body: str = "binary",
    schema: StructType | str | None = None,
    options: Mapping[str, Any] | None = None,
    spark: GivenSession = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> ArchiveResult:
    """Move what is in a channel into Parquet files ``<to>/date=2026-03-01/hour=07/part-….parquet``, or with
    ``to="delta:/data/orders"`` into a Delta table (``nsq[delta]``).

        nsq.spark.archive("orders", to="/data/orders", nsqd="127.0.0.1:4150")
        spark.read.parquet("/data/orders").where("date = '2026-03-01'")

    It returns when everything that was in the channel at the start is stored. ``follow=True`` goes on with a
    batch every ``every`` seconds until ``stop`` is set, or Ctrl-C. The next call continues where this one
    ended. A batch makes a file per hour, and one per 128 MiB: a longer ``every`` makes fewer, larger files.

    Date and hour come from the message's timestamp, in UTC. ``body="string"`` stores text, with � for invalid
    UTF-8. ``body="json"`` stores a struct by ``schema``; a body that does not fit is null, with its text in
    ``_corrupt``. A later call may name more fields; the archive keeps its schema in ``_schema.json``, and a
    call with another type or another ``body`` raises UsageError. ``options`` are those of ``format("nsq")``,
    such as ``{"maxInFlight": 5000}``.

    From the log ``wal`` on, every message reaches the files exactly once, whatever crashes. ``wal`` and
    ``checkpoint`` default to ``<to>/_wal`` and ``<to>/_checkpoint``, folders that Spark, pyarrow and pandas
    ignore when they read ``to``; for a glob, use ``<to>/date=*/hour=*/*.parquet``.
    """
    check_body(body, schema)
    table = os.fspath(to).startswith(_DELTA)
    path = os.fspath(to).removeprefix(_DELTA)
    # The log and the checkpoint of a table are beside it, not inside.
    root = below(f"{path}.nsq" if table else path)
    if table:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise ConfigError(f"to={_DELTA}… needs deltalake ({error}): {how_to_install('delta')}") from None
    chosen = {**(_TABLE_DEFAULTS if table else _DEFAULTS), **(options or {})}
    reading = streaming.stream_options(root, topic, channel, nsqd, lookupd, wal, chosen)
    running = Running(checkpoint or below(root, "_checkpoint"), follow, every, stop, progress)
    check_writable("to", root)
    with streaming.open_stream(spark, reading) as stream:
        session = stream.sparkSession
        found = None if table else partial(schema_of_files, session, path)
        agreed = agreed_schema(open_files(root, session), body, schema, found)
        return store_rows(archived(stream, body, agreed), below(path), running, table=table)


def check_body(body: str, schema: StructType | str | None) -> None:
    if body not in KINDS:
        raise ConfigError(f"body is {body!r}, but must be one of: {', '.join(KINDS)}")
    if body == "json" and schema is None:
        raise ConfigError("body='json' needs a schema, such as schema='id bigint, name string'")
    if body != "json" and schema is not None:
        raise ConfigError(f"schema is for body='json'; body is {body!r}")
    if isinstance(schema, str):
        check_schema(schema)


# The schema of an archive is kept beside it: files with other types than before would make it unreadable


_SCHEMA_FILE = "_schema.json"


def agreed_schema(
    files: Files,
    body: str,
    schema: StructType | str | None,
    find: Callable[[], dict[str, Any] | None] | None = None,
) -> StructType | None:
    """The fields of earlier runs and those of ``schema`` together; notes them in the archive. None unless
    ``body`` is json. Raises UsageError when they do not fit. ``find`` returns what an archive holds whose
    earlier runs noted nothing.
    """
    from pyspark.sql.types import StructType

    wanted = struct_of(schema) if schema is not None else None
    text = files.read(_SCHEMA_FILE)
    known: dict[str, Any] | None = json.loads(text) if text else find() if find else None
    known = known or {"body": body, "fields": None}
    if known["body"] != body:
        raise UsageError(
            f"{files.uri('')} stores bodies as {known['body']}, not {body}: archive into another folder"
        )
    if wanted is not None and known["fields"] is not None:
        wanted = merge_structs(StructType.fromJson(known["fields"]), wanted)
    news = {"body": body, "fields": wanted.jsonValue() if wanted is not None else None}
    if news != known or not text:
        files.write(_SCHEMA_FILE, json.dumps(news, indent=1))
    return wanted


def schema_of_files(spark: SparkSession, path: str) -> dict[str, Any] | None:
    """The content for ``_schema.json`` that fits the files of an archive; None when it has no files."""
    from nsq.spark.pipelines.replay import read_archive

    try:
        fields = {field.name: field.dataType for field in read_archive(spark, path).schema}
    except UsageError:
        return None
    kind = fields.get("body")
    if kind is None:
        return None
    struct = kind.typeName() == "struct"
    return {"body": "json" if struct else kind.typeName(), "fields": kind.jsonValue() if struct else None}


def merge_structs(known: StructType, wanted: StructType, path: str = "body") -> StructType:
    """The fields of both, those of ``known`` first. Raises UsageError when a field has two types."""
    from pyspark.sql.types import StructField, StructType

    merged = {field.name.lower(): field for field in known.fields}
    for field in wanted.fields:
        before = merged.get(field.name.lower(), field)
        name = f"{path}.{field.name}"
        if before.name != field.name:
            raise UsageError(f"field {name} is stored as {before.name}: write its name like that")
        kind = _merge_types(before.dataType, field.dataType, name)
        merged[field.name.lower()] = StructField(field.name, kind)
    return StructType(list(merged.values()))


def _merge_types(known: DataType, wanted: DataType, name: str) -> DataType:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(known, StructType) and isinstance(wanted, StructType):
        return merge_structs(known, wanted, name)
    if isinstance(known, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(_merge_types(known.elementType, wanted.elementType, name))
    if known.simpleString() != wanted.simpleString():
        raise UsageError(
            f"field {name} is stored as {known.simpleString()}, not {wanted.simpleString()}: keep its type, "
            "or archive into another folder"
        )
    return known


def store_rows(rows: DataFrame, path: str, running: Running, *, table: bool = False) -> ArchiveResult:
    """Run the query that ``archived`` returns."""
    files = None if table else open_files(path, rows.sparkSession)
    handle = partial(store_batch, files, path)
    return ArchiveResult(path=path, **vars(streaming.run(rows, handle, running)))


def store_batch(files: Files | None, path: str, part: DataFrame, batch: Batch) -> Written:
    """Store a batch in a folder; without ``files``, in the Delta table at ``path``."""
    if files is None:
        return write_delta(part, path, batch)
    return publish(files, batch, lambda uri: write_parquet(part, uri, partitions=_PARTITIONS))


def archived(frame: DataFrame, body: str, schema: StructType | str | None = None) -> DataFrame:
    """The rows to store, of any frame with the source's columns: these columns, the body as chosen, its size,
    and the partition columns date and hour.
    """
    from pyspark.sql import functions as f

    raw = f.col("body")
    if body == "json":
        # Either body and _rescued are set, or, where the body does not fit, _corrupt.
        read = read_json(raw, schema or "")
        parts = {"value": "body", "rescued": RESCUED, "corrupt": CORRUPT}
        stored = [read[name].alias(column) for name, column in parts.items()]
    else:
        # Text in Parquet must be UTF-8; other readers fail otherwise.
        text = f.make_valid_utf8(raw.cast("string")).alias("body")
        stored = [raw if body == "binary" else text]
    # From timestamp_ns, because date functions depend on the session's time zone; `div` divides integers.
    day = f.expr(f"date_from_unix_date(cast(timestamp_ns div {24 * _HOUR} as int))")
    hour = f.expr(f"format_string('%02d', pmod(timestamp_ns div {_HOUR}, 24))")
    columns = [name for name in TYPES if name != "body"]
    size = f.octet_length(raw).alias(BYTES)
    return frame.select(*columns, *stored, size, day.alias("date"), hour.alias("hour"))


def write_parquet(frame: DataFrame, uri: str, *, partitions: tuple[str, ...] = ()) -> Written:
    """Write a frame as Parquet, and count its rows and bytes while writing. The bytes come from a column
    ``_bytes``, which is not written.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    # Other readers misread Spark's default, INT96. This changes only the query's own session.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    seen = Observation()
    counted = frame.observe(seen, f.count(f.lit(1)).alias("rows"), f.sum(BYTES).alias("bytes"))
    writer = counted.drop(BYTES).write.mode("overwrite").option("compression", "zstd")
    writer.partitionBy(*partitions).parquet(uri)
    return Written(seen.get["rows"], seen.get["bytes"] or 0)


def write_delta(frame: DataFrame, table: str, batch: Batch) -> Written:
    """Write a batch as one commit, exactly once: the commit carries the query's id and the batch's number, so
    a batch that the table already has is skipped.
    """
    import pyarrow.compute as pc
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    if DeltaTable.is_deltatable(table):
        written = DeltaTable(table).transaction_version(batch.query)
        if written is not None and written >= batch.number:
            return Written(0, 0)
    rows = frame.toArrow()
    if rows.num_rows:
        mark = CommitProperties(app_transactions=[Transaction(batch.query, batch.number)])
        write_deltalake(
            table,
            rows.drop_columns([BYTES]),
            partition_by=list(_PARTITIONS),
            mode="append",
            schema_mode="merge",
            commit_properties=mark,
        )
    return Written(rows.num_rows, pc.sum(rows[BYTES]).as_py() or 0, int(rows.num_rows > 0))
