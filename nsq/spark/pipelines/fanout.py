"""``fanout``: one receiving, many sinks."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, NsqError, UsageError
from nsq.spark.pipelines.files import Files, below, open_files
from nsq.spark.pipelines.publishing import Batch
from nsq.spark.pipelines.sinks import Sink, sink_of
from nsq.spark.pipelines.streaming import Addresses, OnProgress, Running, StreamInput, default_wal, run
from nsq.spark.session import session_or_own

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("nsq.spark")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MARKS = "_done"


@dataclasses.dataclass(frozen=True)
class FanoutResult:
    """``rows`` and ``bytes`` were received; every sink has been given them."""

    sinks: tuple[str, ...]
    rows: int
    bytes: int
    batches: int
    seconds: float


def fanout(
    topic: str,
    channel: str = "fanout",
    *,
    sinks: Mapping[str, Sink | Callable[[DataFrame, int], object]],
    state: str | os.PathLike[str],
    nsqd: Addresses = (),
    lookupd: Addresses = (),
    wal: str | None = None,
    checkpoint: str | None = None,
    follow: bool = False,
    every: float = 10.0,
    attempts: int = 3,
    pause: float = 1.0,
    options: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> FanoutResult:
    """Give every message to each of several sinks, having received it once.

        nsq.spark.fanout("orders", nsqd="127.0.0.1:4150", state="/data/orders-fanout", sinks={
            "files": nsq.spark.Parquet("/data/orders"),
            "failed": nsq.spark.Topic(topic="failed", nsqd="127.0.0.1:4150", where="attempts > 3"),
            "table": lambda frame, number: frame.write.format("delta").mode("append").save("/data/table"),
        })

    ``state`` is a folder: what has been received and is not through, the checkpoint, and which sink has done
    which batch. Sinks are given a batch one after the other; one that fails does not keep the others from
    it, and is tried ``attempts`` times in all, ``pause`` seconds apart, before the query ends with its error.
    Called again, only those are run that had not finished the batch. A function is given the batch as a
    frame and its number, which stays the same when it comes again. A frame may be read as often as one
    likes: it is read from the log each time, the same rows, and there is no need to persist it.

    ``follow`` and ``every`` are those of ``archive``.
    """
    root = below(state)
    wanted = _checked(sinks, attempts, pause)
    reading = StreamInput.of(
        topic, channel, nsqd=nsqd, lookupd=lookupd, wal=default_wal(root, wal), options=options
    )
    running = Running(
        checkpoint=checkpoint or below(root, "_checkpoint"),
        follow=follow,
        every=every,
        stop=stop,
        progress=progress,
    )
    patience = Patience(attempts, pause, stop or threading.Event())
    with session_or_own(spark) as session:
        return fanout_stream(reading.open(session), root, wanted, running, patience)


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a sink is tried, and how long to wait in between."""

    attempts: int
    pause: float
    stop: threading.Event


def fanout_stream(
    stream: DataFrame, root: str, sinks: Mapping[str, Sink], running: Running, patience: Patience
) -> FanoutResult:
    """The same for any stream with a column body."""
    marks = Marks(open_files(root, stream.sparkSession))

    def handle(part: DataFrame, batch: Batch) -> _CountedDestination:
        marks.forget_before(batch)
        spread(part, batch, sinks, marks, patience)
        return _count(part)

    totals = run(stream, handle, running)
    return FanoutResult(tuple(sinks), totals.rows, totals.bytes, totals.batches, totals.seconds)


class Marks:
    """Which sink has done which batch: a file for each, so that no two write the same one."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def has(self, batch: Batch, sink: str) -> bool:
        return self._files.read(self._path(batch, sink)) is not None

    def set(self, batch: Batch, sink: str) -> None:
        self._files.write(self._path(batch, sink), "done\n")

    def forget_before(self, batch: Batch) -> None:
        """Only the last batch can come again."""
        here = f"{_MARKS}/{batch.query}/{batch.number:09d}/"
        for entry in self._files.walk(f"{_MARKS}/{batch.query}"):
            if entry.path < here:
                self._files.delete(entry.path.rpartition("/")[0])

    def _path(self, batch: Batch, sink: str) -> str:
        return f"{_MARKS}/{batch.query}/{batch.number:09d}/{sink}"


def spread(
    part: DataFrame, batch: Batch, sinks: Mapping[str, Sink], marks: Marks, patience: Patience
) -> None:
    """Until every sink has done the batch; otherwise an error of one of those that have not."""
    left = {name: sink for name, sink in sinks.items() if not marks.has(batch, name)}
    for attempt in range(1, patience.attempts + 1):
        faults = _attempt(part, batch, left, marks)
        left = {name: left[name] for name in faults}
        if not faults:
            return
        for name, fault in faults.items():
            log.warning(
                "sink %s failed with batch %d, attempt %d of %d: %s",
                name, batch.number, attempt, patience.attempts, fault,
            )  # fmt: skip
        if attempt < patience.attempts and patience.stop.wait(patience.pause):
            break
    name, fault = next(iter(faults.items()))
    raise NsqError(
        f"batch {batch.number} is not through: {', '.join(faults)} failed, {name} with {fault}. "
        "Started again, it goes on with these"
    ) from fault


def _attempt(part: DataFrame, batch: Batch, sinks: Mapping[str, Sink], marks: Marks) -> dict[str, Exception]:
    faults: dict[str, Exception] = {}
    for name, sink in sinks.items():
        try:
            sink.write(part, batch)
        except Exception as error:
            faults[name] = error
        else:
            marks.set(batch, name)
    return faults


@dataclasses.dataclass(frozen=True)
class _CountedDestination:
    rows: int
    bytes: int
    files: int = 0


def _count(part: DataFrame) -> _CountedDestination:
    """Another reading of the log, a million rows a second: a sink may read less than all, or more."""
    from pyspark.sql import functions as f

    row = part.agg(f.count(f.lit(1)), f.sum(f.octet_length("body"))).collect()[0]
    return _CountedDestination(row[0], row[1] or 0)


def _checked(
    sinks: Mapping[str, Sink | Callable[[DataFrame, int], object]], attempts: int, pause: float
) -> dict[str, Sink]:
    if not sinks:
        raise UsageError("there is no sink to send to: sinks={'files': Parquet('/data/orders')}")
    if attempts < 1 or not pause >= 0:
        raise UsageError(f"attempts is {attempts} and pause {pause}; they must be at least 1 and 0")
    for name in sinks:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"sink {name!r}: its name becomes that of a file; use letters, digits, . _ -")
    return {name: sink_of(name, sink) for name, sink in sinks.items()}
