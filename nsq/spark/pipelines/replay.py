"""``replay`` publishes an archive, or a part of it, to a topic, and resumes after an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsq.config import Config
from nsq.errors import ConfigError, UsageError
from nsq.producer.producer import Producer
from nsq.spark import options
from nsq.spark.pipelines.files import LocalFiles, below, local_path, open_files
from nsq.spark.pipelines.streaming import Addresses, OnProgress, Progress, Totals, addresses
from nsq.spark.rows import CORRUPT, RESCUED, restore_json
from nsq.spark.session import GivenSession, session_or_own
from nsq.wire.commands import batches
from nsq.wire.names import check_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ArchivePosition(NamedTuple):
    """A message's place in the order of an archive; a message delivered twice is there twice."""

    timestamp_ns: int
    nsqd: str
    id: str


@dataclasses.dataclass(frozen=True)
class Mark:
    """How far a replay is: everything before ``at`` is published, and ``repeated`` messages at that position;
    ``rows`` and ``bytes`` count all published messages."""

    at: ArchivePosition | None = None
    repeated: int = 0
    rows: int = 0
    bytes: int = 0

    def after(self, position: ArchivePosition, size: int) -> Mark:
        repeated = self.repeated + 1 if position == self.at else 1
        return Mark(position, repeated, self.rows + 1, self.bytes + size)


def load_mark(path: Path, job: dict[str, object]) -> Mark:
    """Read the state of a replay. Raises UsageError when the file belongs to another ``job``."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        owner, at = read["job"], read["at"]
        place = Mark(ArchivePosition(*at) if at else None, read["repeated"], read["rows"], read["bytes"])
    except FileNotFoundError:
        return Mark()
    except (ValueError, KeyError, TypeError) as error:
        said = f"{path} is not the state of a replay ({error}): name another file, or delete it"
        raise UsageError(said) from None
    if owner != job:
        raise UsageError(f"{path} belongs to another replay, {owner}: name another, or delete it")
    return place


def save_mark(path: Path, job: dict[str, object], place: Mark) -> None:
    text = json.dumps({"job": job, **dataclasses.asdict(place)})
    LocalFiles(str(path.parent)).write(path.name, text)


class ArchivedMessage(NamedTuple):
    position: ArchivePosition
    body: bytes


def remaining(entries: Iterable[ArchivedMessage], place: Mark) -> Iterator[ArchivedMessage]:
    """The entries that are not published yet; ``entries`` must be in order."""
    done = place.repeated
    for entry in entries:
        if entry.position == place.at and done:
            done -= 1
        elif place.at is None or entry.position >= place.at:
            yield entry


# The pipeline


#: A point in time: with a time zone, or as text such as 2026-03-01 or 2026-03-01T07:30, which is UTC.
Moment = datetime.datetime | str

_NEEDED = ("date", "hour", *ArchivePosition._fields)
_REPORT_EVERY = 1.0
#: The most bytes of one publish; nsqd's default limit is 5 MiB.
_MOST_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ReplayResult(Totals):
    """The result of ``replay``. ``rows`` and ``bytes`` count this call (with ``dry_run``: what it would do),
    ``before`` the rows of interrupted calls. ``complete``: nothing is left. ``state`` is the state file.
    """

    before: int = 0
    complete: bool = False
    first: datetime.datetime | None = None
    last: datetime.datetime | None = None
    state: str = ""


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
    spark: GivenSession = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> ReplayResult:
    """Publish the messages of an archive to a topic, in the order of their timestamps.

        nsq.spark.replay("/data/orders", "orders_again", nsqd="127.0.0.1:4150",
                         since="2026-03-01", until="2026-03-02", rate=1000)

    ``where`` is an SQL condition, such as ``attempts > 1``; ``body`` is an SQL expression for the body, and
    rows for which it is null are skipped. By default the body is as archived; JSON has the same values, but
    order and spelling may differ. ``rate`` is messages per second. ``dry_run`` only counts.

    After an interruption (``stop``, Ctrl-C, an error, a crash), a call with the same arguments resumes.
    ``state``, by default a file below ``<path>/_replay``, is updated after every publish of up to ``chunk``
    messages, and removed at the end. Delivery is at least once: an interruption repeats at most one publish,
    and so does each lost reply from nsqd.

    One producer publishes everything, to keep order and rate. To publish from many tasks at once, in any
    order, write ``spark.read.parquet(path)`` to ``format("nsq")``.
    """
    check_topic(topic)
    if chunk < 1 or (rate is not None and not rate > 0):
        raise UsageError(f"chunk is {chunk}, rate {rate}: both must be above 0")
    times = [None if at is None else options.moment(at) for at in (since, until)]
    chosen: dict[str, Any] = {"since": times[0], "until": times[1], "where": where, "body": body}
    job = {"archive": below(path), "topic": topic, **chosen}
    file = Path(default_state(path, topic, job) if state is None else state)
    place = load_mark(file, job)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        producer = None if dry_run else stack.enter_context(_producer(nsqd, lookupd, config))
        _check_archive(path)
        session = stack.enter_context(session_or_own(spark))
        frame = selected(session, path, **chosen)
        if producer is None:
            result = _counted(frame, place)
        else:
            publish, save = partial(producer.multi_publish, topic), partial(save_mark, file, job)
            stop = stop or threading.Event()
            more: dict[str, Any] = {"rate": rate, "chunk": chunk, "progress": progress}
            result = send(entries(frame, place), place, publish=publish, save=save, stop=stop, **more)
            if result.complete:
                file.unlink(missing_ok=True)  # the next replay starts from the beginning
    return dataclasses.replace(result, state=str(file), seconds=time.monotonic() - start)


def _check_archive(path: str | os.PathLike[str]) -> None:
    here = local_path(path)
    if here is not None and not os.path.isdir(here):
        raise UsageError(f"there is no archive at {here}: correct the path")


def default_state(path: str | os.PathLike[str], topic: str, job: dict[str, object]) -> str:
    if local_path(path) is None:
        raise ConfigError(f"state is missing: {os.fspath(path)} is elsewhere; give a local file")
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:10]
    # Without #ephemeral, which does not belong in a file name.
    return below(path, "_replay", f"{topic.partition('#')[0]}-{digest}.json")


def _producer(nsqd: Addresses, lookupd: Addresses, config: Config | None) -> Producer:
    nsqds, lookupds = options.names(addresses(nsqd)), options.names(addresses(lookupd))
    if not nsqds and not lookupds:
        raise ConfigError("nsqd or lookupd is missing: nsqd='127.0.0.1:4150', or lookupd='127.0.0.1:4161'")
    # After a lost reply, repeat the publish instead of ending a replay of hours.
    wanted = dataclasses.replace(config or Config(), retry_uncertain=True)
    return Producer(*nsqds, nsqlookupd=lookupds, config=wanted)


def selected(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    since: int | None = None,
    until: int | None = None,
    where: str | None = None,
    body: str = "body",
) -> DataFrame:
    """The rows of an archive in ``[since, until)``, in nanoseconds: date and hour, position, body. Skips rows
    with an empty body, which nsqd refuses.
    """
    from pyspark.sql import functions as f

    frame = read_archive(spark, path)
    absent = [name for name in _NEEDED if name not in frame.columns]
    if absent:
        raise UsageError(f"{os.fspath(path)} was not written by archive: it has no column {absent[0]}")
    if where is not None:
        frame = frame.where(where)
    if since is not None:
        frame = _since(frame, since)
    if until is not None:
        frame = frame.where((f.col("date") <= str(_moment(until).date())) & (f.col("timestamp_ns") < until))
    if body == "body" and {RESCUED, CORRUPT} <= set(frame.columns):
        made = restore_json(f.col("body"), f.col(RESCUED), f.col(CORRUPT))
    else:
        made = f.expr(body)
    kind = frame.select(made.alias("body")).schema["body"].dataType.simpleString()
    if kind not in ("binary", "string"):
        raise UsageError(f"body is {kind}, not bytes or text: give an expression such as to_json(body)")
    return frame.select(*_NEEDED, made.cast("binary").alias("body")).where(f.octet_length("body") > 0)


def read_archive(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """Read an archive; raises UsageError when it holds no files."""
    from pyspark.errors import AnalysisException

    try:
        # By default Spark takes the schema of one file, and leaves out the fields that only others have.
        frame = spark.read.option("mergeSchema", True).parquet(open_files(path, spark).uri(""))
        frame.schema  # noqa: B018  Spark Connect looks at the files only now
        return frame
    except AnalysisException as error:
        if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        raise UsageError(f"{os.fspath(path)} holds no Parquet file") from None


def _since(frame: DataFrame, nanos: int) -> DataFrame:
    """Keep rows from a time on. The condition on the date lets Spark skip the folders of other days."""
    from pyspark.sql import functions as f

    return frame.where((f.col("date") >= str(_moment(nanos).date())) & (f.col("timestamp_ns") >= nanos))


def entries(frame: DataFrame, place: Mark) -> Iterator[ArchivedMessage]:
    """Yield the entries in order, hour by hour: Spark sorts one hour at a time, on disk if necessary."""
    from pyspark.sql import functions as f

    # Include the position itself, which several messages can have; ``remaining`` skips those already sent.
    rest = frame if place.at is None else _since(frame, place.at.timestamp_ns)
    for date, hour in sorted((row[0], row[1]) for row in rest.select("date", "hour").distinct().collect()):
        part = rest.where((f.col("date") == f.lit(date)) & (f.col("hour") == f.lit(hour)))
        ordered = part.select(*ArchivePosition._fields, "body").orderBy(*ArchivePosition._fields)
        for row in ordered.toLocalIterator(prefetchPartitions=True):
            yield ArchivedMessage(ArchivePosition(row[0], row[1], row[2]), bytes(row[3]))


def _counted(frame: DataFrame, begin: Mark) -> ReplayResult:
    """The result of a dry run."""
    from pyspark.sql import functions as f

    if begin.at is not None:
        key = f.struct(*ArchivePosition._fields)
        at = f.struct(*(f.lit(each).alias(name) for name, each in begin.at._asdict().items()))
        rest = _since(frame, begin.at.timestamp_ns).where(key >= at)
        frame = rest.orderBy(*ArchivePosition._fields).offset(begin.repeated)
    nanos, size = f.col("timestamp_ns"), f.octet_length("body")
    rows, total, first, last = frame.agg(
        f.count(f.lit(1)), f.sum(size), f.min(nanos), f.max(nanos)
    ).collect()[0]
    return ReplayResult(
        rows=rows,
        bytes=total or 0,
        before=begin.rows,
        complete=rows == 0,
        first=_moment(first) if rows else None,
        last=_moment(last) if rows else None,
    )


def _moment(nanos: int) -> datetime.datetime:
    return options.EPOCH + datetime.timedelta(microseconds=nanos // 1000)


def send(
    entries: Iterable[ArchivedMessage],
    begin: Mark,
    *,
    publish: Callable[[list[bytes]], object],
    save: Callable[[Mark], None],
    stop: threading.Event,
    rate: float | None = None,
    chunk: int = 500,
    progress: OnProgress | None = None,
) -> ReplayResult:
    """Publish the ``entries`` in chunks, ``rate`` messages per second on average, and save after each chunk.

    If this ends between a publish and its save, the next call publishes that chunk again.
    """
    called = time.monotonic()
    reported, start, first = (called, 0), 0.0, None
    place, stopped = begin, False

    def report(every: float) -> None:
        nonlocal reported
        now, rows = time.monotonic(), place.rows - begin.rows
        since, before = reported
        if progress is not None and now - since >= every:
            reported = (now, rows)
            speed = (rows - before) / (now - since) if now > since else 0.0
            progress(Progress(rows, place.bytes - begin.bytes, seconds=now - called, rate=speed))

    # Ten publishes a second, so that a low rate is even.
    most = chunk if rate is None else max(1, min(chunk, int(rate / 10)))
    for part in batches(remaining(entries, begin), lambda entry: len(entry.body), most, _MOST_BYTES):
        if first is None:
            start, first = time.monotonic(), _moment(part[0].position.timestamp_ns)
        due = start if rate is None else start + (place.rows - begin.rows) / rate
        stopped = stop.wait(max(0.0, due - time.monotonic()))
        if stopped:
            break
        publish([entry.body for entry in part])
        for entry in part:
            place = place.after(entry.position, len(entry.body))
        save(place)
        report(_REPORT_EVERY)
    report(0.0)
    return ReplayResult(
        rows=place.rows - begin.rows,
        bytes=place.bytes - begin.bytes,
        before=begin.rows,
        complete=not stopped,
        first=first,
        last=_moment(place.at.timestamp_ns) if place.at and place != begin else None,
    )
