"""What every pipeline on a stream has in common: reading a channel, running until it is drained or told to
stop, counting, and telling how it goes.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError
from nsq.spark.pipelines.files import Batch, below, local_path
from nsq.spark.registration import register
from nsq.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: An address, or several: ``"10.0.0.2:4150"``, ``["a:4150", "b:4150"]``.
Addresses = str | Iterable[str]

# How often a query is looked at: Java's end of a query and Python's event cannot be waited for together.
_TICK = 1

# How long a query that is to stop may go on with its batch; cut off, it is done again the next time.
_PATIENCE = 30.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """How a running pipeline is doing. ``rate`` is rows a second since the last report. ``lag`` is how many
    messages, in nsqd and in the log, were in no batch yet when the last one began, ``lag_seconds`` how old
    the oldest in the log was; None as long as that is not known.
    """

    rows: int
    bytes: int
    batches: int
    seconds: float
    rate: float
    lag: int | None = None
    lag_seconds: float | None = None


OnProgress = Callable[[Progress], None]


@dataclasses.dataclass(frozen=True)
class Totals:
    rows: int = 0
    bytes: int = 0
    batches: int = 0
    files: int = 0
    seconds: float = 0.0


def stream_options(
    topic: str,
    channel: str,
    *,
    nsqd: Addresses,
    lookupd: Addresses,
    wal: str,
    options: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Where a pipeline reads from: ConfigError at once instead of an error of Spark's minutes later."""
    given = {"topic": topic, "channel": channel, "wal": wal}
    given |= {"nsqd": addresses(nsqd)} if addresses(nsqd) else {}
    given |= {"lookupd": addresses(lookupd)} if addresses(lookupd) else {}
    for name, value in (options or {}).items():
        given[name] = str(value).lower() if isinstance(value, bool) else str(value)
    SourceOptions.of(given)
    return given


def open_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    register(spark)
    return spark.readStream.format("nsq").options(**options).load()


def addresses(given: Addresses) -> str:
    return given if isinstance(given, str) else ",".join(given)


def default_wal(root: str, wal: str | None) -> str:
    """Below the output, where Spark does not look for data: names that begin with _ are hidden to it."""
    if wal is not None:
        return wal
    if local_path(root) is None:
        raise ConfigError(
            f"wal is missing: {root} is not on this machine, where the log would be kept by default; "
            "give a directory that all receivers can reach, or a URI of pyarrow.fs"
        )
    return below(root, "_wal")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Running:
    """How to run a query. ``follow``: until ``stop`` is set, or Ctrl-C; otherwise until all is through that
    was there at the beginning.
    """

    checkpoint: str
    follow: bool = False
    every: float = 10.0
    stop: threading.Event | None = None
    progress: OnProgress | None = None
    mode: str = "append"

    def __post_init__(self) -> None:
        if not self.every >= 0:
            raise UsageError(f"every is {self.every!r}, but must be a number of seconds, 0 or more")


def run(frame: DataFrame, handle: Callable[[DataFrame, Batch], Any], running: Running) -> Totals:
    """Give each batch to ``handle``, which returns what has ``rows``, ``bytes`` and ``files``."""
    batches = Batches(handle, time.monotonic)
    writer = frame.writeStream.outputMode(running.mode).foreachBatch(batches)
    writer = writer.option("checkpointLocation", running.checkpoint)
    if running.follow:
        writer = writer.trigger(processingTime=f"{running.every} seconds")
    else:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    try:
        _watch(query, batches, running)
    except KeyboardInterrupt:
        if not running.follow:
            raise
    except Exception as error:
        if batches.fault is None:
            raise
        # Our own error says more than the Java one around its text.
        raise batches.fault from error
    finally:
        batches.close(_PATIENCE)
        query.stop()
    return batches.totals()


class Batches:
    """What Spark calls with each batch, on a thread of its own, and what has come of them so far."""

    def __init__(self, handle: Callable[[DataFrame, Batch], Any], now: Callable[[], float]) -> None:
        self._handle = handle
        self._now = now
        self._start = now()
        self._totals = Totals()  # replaced, never changed
        self._last = (self._start, 0)
        self._busy = threading.Lock()
        self._closed = False
        self.fault: Exception | None = None

    def __call__(self, part: DataFrame, number: int) -> None:
        with self._busy:
            if self._closed:
                raise UsageError("no more batches: the query is being stopped")
            try:
                self.add(self._handle(part, Batch(query_of(part), number)))
            except Exception as error:
                self.fault = error
                raise

    def add(self, done: Any) -> None:
        """What has ``rows``, ``bytes`` and ``files``."""
        so_far = self._totals
        self._totals = Totals(
            so_far.rows + done.rows, so_far.bytes + done.bytes, so_far.batches + 1, so_far.files + done.files
        )

    def totals(self) -> Totals:
        return dataclasses.replace(self._totals, seconds=self._now() - self._start)

    def progress(self, lag: int | None = None, lag_seconds: float | None = None) -> Progress:
        totals, now = self.totals(), self._now()
        then, rows = self._last
        self._last = (now, totals.rows)
        rate = (totals.rows - rows) / (now - then) if now > then else 0.0
        return Progress(totals.rows, totals.bytes, totals.batches, totals.seconds, rate, lag, lag_seconds)

    def close(self, patience: float) -> None:
        """Let the batch at hand come to its end, if it does so in time: stopping a query cuts it off."""
        in_time = self._busy.acquire(timeout=patience)
        self._closed = True
        if in_time:
            self._busy.release()


def _watch(query: StreamingQuery, batches: Batches, running: Running) -> None:
    from nsq.spark.listener import figures

    stop = running.stop or threading.Event()
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(_TICK)) or stop.is_set()
        if running.progress is not None:
            last = query.lastProgress
            known = figures(json.loads(last.json)) if last is not None else None
            values = known.values if known is not None else {}
            lag = values.get("lag")
            running.progress(batches.progress(None if lag is None else int(lag), values.get("oldestSeconds")))


def query_of(frame: DataFrame) -> str:
    """The id of the query this batch belongs to, which its checkpoint keeps."""
    found = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise UsageError("this is no batch of a streaming query")
    return found
