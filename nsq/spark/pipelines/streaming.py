"""What every pipeline on a stream has in common: reading a channel, running until it is drained or told to
stop, counting, and telling how it goes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError
from nsq.spark.pipelines.files import Batch, Written, below, local_path
from nsq.spark.session import register, session_or_own
from nsq.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: An address, or several: ``"10.0.0.2:4150"``, ``["a:4150", "b:4150"]``.
Addresses = str | Iterable[str]

#: Stores or counts a batch.
Handle = Callable[["DataFrame", Batch], Written]

# How often a query is looked at: Java's end of a query and Python's event cannot be waited for together.
_TICK = 1

# How long a query that is to stop may go on with its batch; cut off, it is done again the next time.
_PATIENCE = 30.0


@dataclasses.dataclass(frozen=True)
class Totals:
    rows: int = 0
    bytes: int = 0
    batches: int = 0
    files: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Progress(Totals):
    """How a running pipeline is doing. ``rate`` is rows a second since the last report. ``lag`` is how many
    messages, in nsqd and in the log, were in no batch yet when the last one began, ``lag_seconds`` how old
    the oldest in the log was; None as long as that is not known.
    """

    rate: float = 0.0
    lag: int | None = None
    lag_seconds: float | None = None


OnProgress = Callable[[Progress], None]


def addresses(given: Addresses) -> str:
    return given if isinstance(given, str) else ",".join(given)


def stream_options(
    root: str,
    topic: str,
    channel: str,
    nsqd: Addresses,
    lookupd: Addresses,
    wal: str | None,
    options: Mapping[str, Any],
) -> dict[str, str]:
    """Those of format("nsq"), checked: ConfigError at once instead of an error of Spark's minutes later. Of
    ``options`` in two spellings the later one counts.

    By default the log lies below the output, under a name that begins with _: Spark looks for no data there.
    """
    if not wal and local_path(root) is None:
        raise ConfigError(
            f"wal is missing: {root} is not on this machine, where the log would be kept by default; "
            "give a directory that all receivers can reach, or a URI of pyarrow.fs"
        )
    given = {"topic": topic, "channel": channel, "wal": wal or below(root, "_wal")}
    given |= {"nsqd": addresses(nsqd), "lookupd": addresses(lookupd)}
    for name, value in options.items():
        given[name.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
    SourceOptions.of(given)
    return given


@contextlib.contextmanager
def open_stream(spark: SparkSession | None, options: Mapping[str, str]) -> Iterator[DataFrame]:
    with session_or_own(spark) as session:
        register(session)
        yield session.readStream.format("nsq").options(**options).load()


@dataclasses.dataclass(frozen=True)
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


def run(frame: DataFrame, handle: Handle, running: Running) -> Totals:
    """Give each batch to ``handle``, and add up what it returns."""
    from nsq.spark.listener import figures

    stop = running.stop or threading.Event()
    batches = Batches(handle)
    writer = frame.writeStream.outputMode(running.mode).foreachBatch(batches)
    writer = writer.option("checkpointLocation", running.checkpoint)
    seconds = f"{running.every} seconds"
    trigger: Any = {"processingTime": seconds} if running.follow else {"availableNow": True}
    query = writer.trigger(**trigger).start()
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(_TICK)) or stop.is_set()
            if running.progress is not None:
                last = query.lastProgress
                known = figures(json.loads(last.json)) if last is not None else {}
                running.progress(batches.progress(known))
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

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._start = time.monotonic()
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
                # The id that the query's checkpoint keeps.
                query = part.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
                if not query:
                    raise UsageError("Spark does not tell which query this batch belongs to")
                done = self._handle(part, Batch(query, number))
            except Exception as error:
                self.fault = error
                raise
            before = self._totals
            self._totals = Totals(
                before.rows + done.rows,
                before.bytes + done.bytes,
                before.batches + 1,
                before.files + done.files,
            )

    def totals(self) -> Totals:
        return dataclasses.replace(self._totals, seconds=time.monotonic() - self._start)

    def progress(self, figures: Mapping[str, float]) -> Progress:
        """``figures`` are those of the source."""
        totals, now = self.totals(), time.monotonic()
        then, rows = self._last
        self._last = (now, totals.rows)
        rate = (totals.rows - rows) / (now - then) if now > then else 0.0
        lag = int(figures["lag"]) if "lag" in figures else None
        return Progress(**vars(totals), rate=rate, lag=lag, lag_seconds=figures.get("oldestSeconds"))

    def close(self, patience: float) -> None:
        """Let the batch at hand come to its end, if it does so in time: stopping a query cuts it off."""
        in_time = self._busy.acquire(timeout=patience)
        self._closed = True
        if in_time:
            self._busy.release()
