"""``replay``: an archive, or a span of it, goes into a topic again."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsq.config import Config
from nsq.errors import ConfigError, UsageError
from nsq.producer.producer import Producer
from nsq.spark.options import names
from nsq.spark.pipelines.bookmark import ArchivePosition, Bookmark, Mark
from nsq.spark.pipelines.files import below, local_path
from nsq.spark.pipelines.sending import Entry, Throttle, chunks, remaining, send
from nsq.spark.pipelines.streaming import Addresses, OnProgress, Progress, addresses
from nsq.spark.session import session_or_own
from nsq.wire.names import check_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A point in time: with a time zone, or as text such as 2026-03-01 or 2026-03-01T07:30, which is UTC.
Moment = datetime.datetime | str

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NEEDED = ("date", "hour", "timestamp_ns", "nsqd", "id")
_REPORT_EVERY = 1.0


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """``rows`` and ``bytes`` are of this call (with ``dry_run``: would be), ``before`` the rows of calls that
    were interrupted. ``complete``: there is nothing left. ``state`` is the file that it goes on from.
    """

    rows: int
    bytes: int
    before: int
    complete: bool
    first: datetime.datetime | None
    last: datetime.datetime | None
    state: str
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What of an archive: ``[since, until)`` in nanoseconds, an SQL condition, and what the body is."""

    since: int | None = None
    until: int | None = None
    where: str | None = None
    body: str = "body"


def replay(
    path: str | os.PathLike[str],
    topic: str,
    *,
    nsqd: Addresses = (),
    lookupd: Addresses = (),
    since: Moment | None = None,
    until: Moment | None = None,
    where: str | None = None,
    body: str = "body",
    rate: float | None = None,
    chunk: int = 500,
    dry_run: bool = False,
    state: str | os.PathLike[str] | None = None,
    config: Config | None = None,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> ReplayResult:
    """Publish what ``archive`` has stored to a topic, in the order of its timestamps.

        nsq.spark.replay("/data/orders", "orders_again", nsqd="127.0.0.1:4150",
                         since="2026-03-01", until="2026-03-02", rate=1000)

    ``where`` is an SQL condition, such as ``attempts > 1``; ``body`` an SQL expression that makes the body,
    for an archive of JSON ``coalesce(to_json(body), _corrupt)``: a row of which it makes null is left out.
    ``rate`` is messages per second. ``dry_run`` only counts.

    Interrupted (``stop``, Ctrl-C, an error, a crash), it goes on where it was when it is called again with
    the same arguments: that is noted in ``state``, by default a file below ``<path>/_replay``, after every
    publish of up to ``chunk`` messages, and removed at the end. At least once: an interruption repeats one
    publish at most, and so does every answer of nsqd's that got lost. What is archived later with a
    timestamp that has been passed is left out.

    One producer publishes all of it, here and not in Spark's tasks: order, rate and such a position can
    only be had from one place, and one place does hundreds of thousands a second. To have a topic filled by
    many at once, in any order, write ``spark.read.parquet(path)`` to ``format("nsq")``.
    """
    check_topic(topic)
    if chunk < 1 or (rate is not None and not rate > 0):
        raise UsageError(f"chunk is {chunk}, rate {rate}: both must be above 0")
    chosen = Selection(since=nanoseconds(since), until=nanoseconds(until), where=where, body=body)
    bookmark = _bookmark(path, topic, chosen, state)
    place = bookmark.load()
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        producer = None if dry_run else stack.enter_context(_producer(nsqd, lookupd, config))
        session = stack.enter_context(session_or_own(spark))
        frame = selected(session, path, chosen)
        if producer is None:
            return _counted(frame, place, bookmark, start)
        publishing = _Publishing(
            Throttle(rate, time.monotonic), chunk, stop or threading.Event(), progress, start
        )
        return publishing.run(frame, producer, topic, bookmark, place)


def nanoseconds(moment: Moment | None) -> int | None:
    """Since 1970."""
    if moment is None:
        return None
    if isinstance(moment, str):
        try:
            read = datetime.datetime.fromisoformat(moment)
        except ValueError:
            raise UsageError(f"{moment!r} is no point in time such as 2026-03-01T07:30") from None
        moment = read if read.tzinfo else read.replace(tzinfo=datetime.UTC)
    if moment.tzinfo is None:
        raise UsageError(f"{moment!r} has no time zone: add tzinfo=datetime.UTC, or another")
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1) * 1000


def _bookmark(
    path: str | os.PathLike[str], topic: str, chosen: Selection, state: str | os.PathLike[str] | None
) -> Bookmark:
    job = {"archive": below(path), "topic": topic, **dataclasses.asdict(chosen)}
    if state is None:
        if local_path(path) is None:
            raise ConfigError(
                f"state is missing: {os.fspath(path)} is not on this machine; give a local file"
            )
        digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:10]
        # A topic of its own: #ephemeral is no part of a good file name.
        state = below(path, "_replay", f"{topic.partition('#')[0]}-{digest}.json")
    return Bookmark(state, job)


def _producer(nsqd: Addresses, lookupd: Addresses, config: Config | None) -> Producer:
    # Of two evils: a lost answer may repeat a publish, rather than end a replay of hours.
    wanted = dataclasses.replace(config or Config(), retry_uncertain=True)
    return Producer(*names(addresses(nsqd)), nsqlookupd=names(addresses(lookupd)), config=wanted)


def selected(spark: SparkSession, path: str | os.PathLike[str], chosen: Selection) -> DataFrame:
    """Its rows: date and hour, position, body; empty bodies are none to nsqd and are left out."""
    from pyspark.sql import functions as f

    location = local_path(path)
    frame = spark.read.parquet(f"file://{location}" if location is not None else os.fspath(path))
    absent = [name for name in _NEEDED if name not in frame.columns]
    if absent:
        raise UsageError(f"{os.fspath(path)} was not written by archive: it has no column {absent[0]}")
    if chosen.where is not None:
        frame = frame.where(chosen.where)
    if chosen.since is not None:
        frame = _since(frame, chosen.since)
    if chosen.until is not None:
        frame = frame.where((f.col("date") <= _date(chosen.until)) & (f.col("timestamp_ns") < chosen.until))
    made = f.expr(chosen.body)
    kind = frame.select(made.alias("body")).schema["body"].dataType.simpleString()
    if kind not in ("binary", "string"):
        raise UsageError(
            f"body is {kind}, not bytes or text: give an expression, such as body='to_json(body)'"
        )
    moment = [f.col(name) for name in ("date", "hour", "timestamp_ns", "nsqd", "id")]
    return frame.select(*moment, made.cast("binary").alias("body")).where(f.octet_length("body") > 0)


def _since(frame: DataFrame, nanos: int) -> DataFrame:
    """The date beside it spares Spark the folders of other days."""
    from pyspark.sql import functions as f

    return frame.where((f.col("date") >= _date(nanos)) & (f.col("timestamp_ns") >= nanos))


def _date(nanos: int) -> str:
    return (_EPOCH + datetime.timedelta(microseconds=nanos // 1000)).date().isoformat()


def entries(frame: DataFrame, place: Mark) -> Iterator[Entry]:
    """In order, hour by hour: Spark sorts one hour at a time, on disk if need be."""
    from pyspark.sql import functions as f

    # The position itself may still be due, if it is that of several; the sender counts them.
    rest = frame if place.at is None else _since(frame, place.at.timestamp_ns)
    for date, hour in sorted((row[0], row[1]) for row in rest.select("date", "hour").distinct().collect()):
        part = rest.where((f.col("date") == f.lit(date)) & (f.col("hour") == f.lit(hour)))
        ordered = part.select("timestamp_ns", "nsqd", "id", "body").orderBy("timestamp_ns", "nsqd", "id")
        for row in ordered.toLocalIterator(prefetchPartitions=True):
            yield Entry(ArchivePosition(row[0], row[1], row[2]), bytes(row[3]))


def _counted(frame: DataFrame, place: Mark, bookmark: Bookmark, start: float) -> ReplayResult:
    from pyspark.sql import functions as f

    nanos, size, here = f.col("timestamp_ns"), f.octet_length("body"), f.lit(False)
    if place.at is not None:
        key = f.struct("timestamp_ns", "nsqd", "id")
        at = f.struct(*(f.lit(each).alias(name) for name, each in place.at._asdict().items()))
        frame, here = _since(frame, place.at.timestamp_ns).where(key >= at), key == at
    row = frame.agg(
        f.count(f.lit(1)), f.sum(size), f.min(nanos), f.max(nanos), f.max(f.when(here, size))
    ).collect()[0]
    rows = row[0] - place.repeated
    return ReplayResult(
        rows=rows,
        bytes=(row[1] or 0) - place.repeated * (row[4] or 0),
        before=place.rows,
        complete=rows == 0,
        first=_moment(row[2]) if rows else None,
        last=_moment(row[3]) if rows else None,
        state=os.fspath(bookmark.path),
        seconds=time.monotonic() - start,
    )


def _moment(nanos: int | None) -> datetime.datetime | None:
    return None if nanos is None else _EPOCH + datetime.timedelta(microseconds=nanos // 1000)


class _Publishing:
    """One call's worth of it."""

    def __init__(
        self, pace: Throttle, chunk: int, stop: threading.Event, progress: OnProgress | None, start: float
    ) -> None:
        self._pace = pace
        self._chunk = chunk
        self._stop = stop
        self._progress = progress
        self._start = start
        self._told = (start, 0)
        self._stopped = False
        self._first: int | None = None

    def run(
        self, frame: DataFrame, producer: Producer, topic: str, bookmark: Bookmark, begin: Mark
    ) -> ReplayResult:
        place = begin
        left = self._noted(remaining(entries(frame, begin), begin))
        due = chunks(left, self._pace.chunk_of(self._chunk))
        sending = send(
            due,
            begin,
            self._pace,
            publish=lambda bodies: producer.multi_publish(topic, bodies),
            save=bookmark.save,
            wait=self._wait,
        )
        for place in sending:
            self._tell(place, begin)
        self._tell(place, begin, last=True)
        if not self._stopped:
            bookmark.forget()
        return ReplayResult(
            rows=place.rows - begin.rows,
            bytes=place.bytes - begin.bytes,
            before=begin.rows,
            complete=not self._stopped,
            first=_moment(self._first),
            last=_moment(place.at.timestamp_ns) if place.at and place != begin else None,
            state=os.fspath(bookmark.path),
            seconds=time.monotonic() - self._start,
        )

    def _noted(self, left: Iterator[Entry]) -> Iterator[Entry]:
        for entry in left:
            if self._first is None:
                self._first = entry.position.timestamp_ns
            yield entry

    def _wait(self, seconds: float) -> bool:
        self._stopped = self._stop.wait(seconds)
        return self._stopped

    def _tell(self, place: Mark, begin: Mark, *, last: bool = False) -> None:
        now, rows = time.monotonic(), place.rows - begin.rows
        then, before = self._told
        if self._progress is None or not (last or now - then >= _REPORT_EVERY):
            return
        self._told = (now, rows)
        rate = (rows - before) / (now - then) if now > then else 0.0
        size = place.bytes - begin.bytes
        self._progress(Progress(rows, size, 0, now - self._start, rate))
