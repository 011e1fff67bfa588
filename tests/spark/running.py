"""Streams under test: their source, their sink, and waiting for their progress."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from nsq.http.nsqd import NsqdApi
from nsq.testing import Nsqd
from tests.integration.patience import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds that anything may take on a machine that has other things to do.
PATIENCE = 200
TOPIC, CHANNEL = "orders", "spark"


# In


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%08d" % number for number in range(start, start + count)]


def publish(nsqd: Nsqd, wanted: Iterable[bytes]) -> None:
    NsqdApi(nsqd.http_address, timeout=100.0).multi_publish(TOPIC, wanted)


def subscribe(nsqd: Nsqd) -> None:
    """The channel is there before the first message, so none of them can go elsewhere."""
    api = NsqdApi(nsqd.http_address, timeout=100.0)
    api.create_topic(TOPIC)
    api.create_channel(TOPIC, CHANNEL)


@contextmanager
def producing(nsqd: Nsqd, start: int = 0) -> Iterator[Callable[[], list[bytes]]]:
    """Publishes on and on inside the block; gives what it has published so far, and in the end everything."""
    published: list[bytes] = []
    enough = threading.Event()

    def produce() -> None:
        while not enough.wait(0.05):
            some = bodies(50, start + len(published))
            publish(nsqd, some)
            published.extend(some)

    thread = threading.Thread(target=produce, name="producing")
    thread.start()
    try:
        yield lambda: list(published)
    finally:
        enough.set()
        thread.join(PATIENCE)


# Through


def stream(
    spark: SparkSession, source: Nsqd | None, folder: Path, schema: str = "", **options: object
) -> DataFrame:
    """``folder`` holds the log."""
    given: dict[str, object] = {"topic": TOPIC, "channel": CHANNEL, "wal": folder / "wal", "retention": 0}
    if source is not None:
        given |= {"nsqd": source.tcp_address, "nsqdHttp": source.http_address}
    given |= options
    reader = spark.readStream.format("nsq").options(**{name: str(value) for name, value in given.items()})
    return (reader.schema(schema) if schema else reader).load()


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def to_parquet(frame: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    """Below ``folder``, where its checkpoint is too."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start(str(folder / "out"))


def to_function(
    frame: DataFrame, folder: Path, handle: Callable[[DataFrame, int], None], **trigger: Any
) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(handle).option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start()


def ended(query: StreamingQuery) -> list[dict[str, Any]]:
    """The progress of all batches of a query that ends by itself."""
    with running(query):
        assert query.awaitTermination(PATIENCE), f"not at its end: {query.status}"
    return [json.loads(progress.json) for progress in query.recentProgress]


def drain(frame: DataFrame, folder: Path) -> list[dict[str, Any]]:
    return ended(to_parquet(frame, folder, availableNow=True))


def failure(query: StreamingQuery) -> str:
    """Return the error of a query that must fail."""
    from pyspark.errors import StreamingQueryException

    with running(query), suppress(StreamingQueryException):
        assert query.awaitTermination(PATIENCE), f"has not failed: {query.status}"
    error = query.exception()
    assert error is not None, "it ended without an error"
    return str(error)


# Out


def written(folder: Path, column: str = "body") -> list[Any]:
    """A column of what batches have committed; files that a cut-off batch has left behind do not count."""
    import pyarrow.parquet as pq

    values: list[Any] = []
    for log in sorted((folder / "out" / "_spark_metadata").glob("*")):
        if log.name.startswith(".") or log.suffix == ".compact":
            continue
        _, *entries = log.read_text().splitlines()
        for entry in entries:
            path = unquote(urlparse(json.loads(entry)["path"]).path)
            values += pq.read_table(path, columns=[column], partitioning=None).column(column).to_pylist()
    return values


def arrival(folder: Path, wanted: Iterable[bytes]) -> list[bytes]:
    """Wait until all wanted rows have arrived; return them."""
    expected = set(wanted)
    return eventually(lambda: written(folder), lambda got: expected <= set(got), PATIENCE)


def difference(got: Iterable[bytes], wanted: Iterable[bytes]) -> tuple[int, int, int]:
    """The numbers of missing rows, of duplicates, and of rows that were never published."""
    counted, expected = Counter(got), set(wanted)
    repeated = sum(count - 1 for count in counted.values())
    return len(expected - set(counted)), repeated, len(set(counted) - expected)


EXACT = (0, 0, 0)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "wal").glob("s/*/*.arrow"))
