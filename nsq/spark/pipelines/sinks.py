"""Where ``fanout`` can send a batch: a folder of Parquet files, a topic, the terminal, a function.

Loads pyspark only when a batch is at hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from nsq.errors import UsageError
from nsq.spark.pipelines.archive import archive_batch
from nsq.spark.pipelines.columns import Body
from nsq.spark.pipelines.compaction import recover
from nsq.spark.pipelines.files import below, open_files
from nsq.spark.pipelines.publishing import Batch
from nsq.spark.pipelines.streaming import Addresses, addresses, text_of
from nsq.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Sink(Protocol):
    def write(self, frame: DataFrame, batch: Batch) -> None:
        """All of the batch, on return. After a crash in between it comes again."""


@dataclasses.dataclass(frozen=True)
class Parquet:
    """Files by date and hour, exactly once, as ``archive`` writes them. ``where`` is an SQL condition."""

    path: str
    where: str | None = None
    body: str = "binary"
    schema: StructType | str | None = None

    def __post_init__(self) -> None:
        Body(self.body, self.schema)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        root = below(self.path)
        recover(root)
        files = open_files(root, frame.sparkSession)
        archive_batch(_chosen(frame, self.where), batch, files, Body(self.body, self.schema))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topic:
    """Published to another topic, at least once. ``body`` is an SQL expression, ``where`` a condition."""

    topic: str
    nsqd: Addresses = ()
    lookupd: Addresses = ()
    where: str | None = None
    body: str = "body"
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        SinkOptions.of(self._given())

    def write(self, frame: DataFrame, batch: Batch) -> None:
        rows = _chosen(frame, self.where).selectExpr(f"({self.body}) as body")
        rows.write.format("nsq").options(**self._given()).mode("append").save()

    def _given(self) -> dict[str, str]:
        given = {"topic": self.topic, "nsqd": addresses(self.nsqd), "lookupd": addresses(self.lookupd)}
        given |= {name: text_of(value) for name, value in (self.options or {}).items()}
        return {name: value for name, value in given.items() if value}


@dataclasses.dataclass(frozen=True)
class Console:
    """The first ``rows`` of each batch, as text."""

    rows: int = 20
    where: str | None = None

    def write(self, frame: DataFrame, batch: Batch) -> None:
        text = _chosen(frame, self.where).withColumn("body", frame["body"].cast("string"))
        text.show(self.rows, truncate=False)


@dataclasses.dataclass(frozen=True)
class Function:
    """What Spark's own foreachBatch takes."""

    call: Callable[[DataFrame, int], object]

    def write(self, frame: DataFrame, batch: Batch) -> None:
        self.call(frame, batch.number)


def sink_of(name: str, given: Sink | Callable[[DataFrame, int], object]) -> Sink:
    if hasattr(given, "write"):
        return given
    if callable(given):
        return Function(given)
    raise UsageError(f"sink {name!r} is {given!r}, but must be a Parquet, Topic, Console, or a function")


def _chosen(frame: DataFrame, where: str | None) -> DataFrame:
    return frame if where is None else frame.where(where)
