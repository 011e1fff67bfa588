"""The common part of pipelines on a stream: read a channel, run until it is drained or stopped, count, and
report progress.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError
from nsq.spark.pipelines.files import Batch, Written, below, local_path
from nsq.spark.session import GivenSession, register, session_or_own
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.disk import Disk, replace_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: One address or several: ``"10.0.0.2:4150"``, ``["a:4150", "b:4150"]``.
Addresses = str | Iterable[str]

#: Stores or counts a batch. With Spark Connect it runs in another process, so what it takes along and returns
#: must be picklable.
Handle = Callable[["DataFrame", Batch], Any]
#: Takes what a ``Handle`` returned, in this process, and says what it was.
Absorb = Callable[[Any], Written]

# Seconds between checks of a query: one cannot wait for the JVM's query and a Python event together.
_TICK = 1

# Seconds that a stopping query gets to end its batch. If it is cut off, the next run repeats the batch.
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
    """The progress of a running pipeline. ``rate`` is rows per second since the last report. ``lag`` counts
    the messages, in nsqd and in the log, that were in no batch when the last batch began; ``lag_seconds`` is
    the age of the oldest one in the log. Both are None while unknown.
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
    """The options of format("nsq"). Checks them, so that ConfigError comes at once, not from Spark later. If
    ``options`` holds a name in two spellings, the later one counts.

    By default the log is below the output, in ``_wal``: Spark ignores folders that begin with _.
    """
    if not wal and local_path(root) is None:
        raise ConfigError(
            f"wal is missing: {root} is not on this machine, where the log would be kept by default; "
            "give a directory that all receivers can reach, or an object store: s3://bucket/folder"
        )
    given = {"topic": topic, "channel": channel, "wal": wal or below(root, "_wal")}
    given |= {"nsqd": addresses(nsqd), "lookupd": addresses(lookupd)}
    for name, value in options.items():
        given[name.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
    if not given["nsqd"] and not given["lookupd"]:
        raise ConfigError("nsqd or lookupd is missing: nsqd='127.0.0.1:4150', or lookupd='127.0.0.1:4161'")
    SourceOptions.of(given)
    return given


@contextlib.contextmanager
def open_stream(spark: GivenSession, options: Mapping[str, str]) -> Iterator[DataFrame]:
    with session_or_own(spark) as session:
        register(session)
        yield session.readStream.format("nsq").options(**options).load()


@dataclasses.dataclass(frozen=True)
class Running:
    """How to run a query. With ``follow`` it runs until ``stop`` is set, or Ctrl-C; otherwise until it has
    processed everything that was there at the start.
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


def run(
    frame: DataFrame, handle: Handle, running: Running, absorb: Absorb = lambda written: written
) -> Totals:
    """Run a query: call ``handle`` with each batch, ``absorb`` with what that returned, and add up the
    results.
    """
    from nsq.spark.listener import figures

    stop = running.stop or threading.Event()
    batches: Batches | ConnectBatches
    if hasattr(frame.sparkSession, "sparkContext"):
        batches = Batches(handle, absorb)
    else:
        batches = ConnectBatches(handle, absorb, running.checkpoint)
    if stop.is_set():
        return batches.totals()
    writer = frame.writeStream.outputMode(running.mode).foreachBatch(batches.function)
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
        if batches.error is None:
            raise
        # Raise our own error, not Java's error that wraps its text.
        raise batches.error from error
    finally:
        try:
            batches.close(_PATIENCE)
        finally:
            query.stop()
    return batches.totals()


class Batches:
    """The function that Spark calls with each batch, on its own thread, and the totals so far."""

    def __init__(self, handle: Handle, absorb: Absorb = lambda written: written) -> None:
        self.function: Callable[[DataFrame, int], None] = self
        self._handle = handle
        self._absorb = absorb
        self._start = time.monotonic()
        self._totals = Totals()  # replaced, never mutated
        self._last = (self._start, 0)
        self._busy = threading.Lock()
        self._closed = False
        self.error: Exception | None = None

    def __call__(self, part: DataFrame, number: int) -> None:
        with self._busy:
            if self._closed:
                raise UsageError("no more batches: the query is being stopped")
            try:
                # The id that the query's checkpoint stores.
                query = part.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
                if not query:
                    raise UsageError("Spark does not tell which query this batch belongs to")
                self._add(self._absorb(self._handle(part, Batch(query, number))))
            except Exception as error:
                self.error = error
                raise

    def _add(self, done: Written) -> None:
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
        """The progress so far. ``figures`` are the source's."""
        totals, now = self.totals(), time.monotonic()
        then, rows = self._last
        self._last = (now, totals.rows)
        rate = (totals.rows - rows) / (now - then) if now > then else 0.0
        lag = int(figures["lag"]) if "lag" in figures else None
        return Progress(**vars(totals), rate=rate, lag=lag, lag_seconds=figures.get("oldestSeconds"))

    def close(self, patience: float) -> None:
        """Wait for the current batch, but not longer than ``patience``: stopping a query cuts it off."""
        in_time = self._busy.acquire(timeout=patience)
        self._closed = True
        if in_time:
            self._busy.release()


class ConnectBatches(Batches):
    """The same with Spark Connect, whose server calls ``function`` in a process of its own. It leaves what a
    batch returned in a file beside the checkpoint, and this process collects them. So both need the same file
    system.
    """

    def __init__(self, handle: Handle, absorb: Absorb, checkpoint: str) -> None:
        super().__init__(handle, absorb)
        local = local_path(checkpoint)
        if local is None:
            raise ConfigError(
                f"checkpoint is {checkpoint}: with Spark Connect it must be a directory that this process "
                "and Spark's server both reach"
            )
        os.makedirs(local, exist_ok=True)
        self._results = tempfile.mkdtemp(prefix="_results-", dir=local)
        self.function = ConnectFunction(handle, local, self._results)

    def progress(self, figures: Mapping[str, float]) -> Progress:
        self._collect()
        return super().progress(figures)

    def _collect(self) -> None:
        for name in sorted(os.listdir(self._results)):
            if name.endswith(".pickle"):
                path = os.path.join(self._results, name)
                with open(path, "rb") as file:
                    result = pickle.load(file)
                os.unlink(path)
                self._add(self._absorb(result))

    def close(self, patience: float) -> None:
        """Collect what is there. A batch that is under way is cut off: the next run repeats it."""
        try:
            self._collect()
        finally:
            shutil.rmtree(self._results, ignore_errors=True)


class ConnectFunction:
    """What Spark Connect's server calls with each batch. Picklable, if ``handle`` is."""

    def __init__(self, handle: Handle, checkpoint: str, results: str) -> None:
        self._handle = handle
        self._checkpoint = checkpoint
        self._results = results

    def __call__(self, part: DataFrame, number: int) -> None:
        with open(os.path.join(self._checkpoint, "metadata"), encoding="utf-8") as file:
            query = json.load(file)["id"]
        done = self._handle(part, Batch(query, number))
        path = Path(self._results, f"{number:012d}.pickle")
        replace_file(Disk(fsync=False), path, pickle.dumps(done), 0o600)
