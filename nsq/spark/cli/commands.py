"""What each word of ``nsq-spark`` does. Spark, Java and pyarrow are asked for by those that need them."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nsq.errors import ConfigError
from nsq.spark import doctor as physician
from nsq.spark.cli.noise import filtered
from nsq.spark.cli.submit import submit_line
from nsq.spark.cli.tables import size, span, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq.spark.cli.progress import Meter

LOCAL = "local[*]"


# Pipelines


def archive(options: argparse.Namespace) -> int:
    from nsq.spark.pipelines.archive import archive as run

    with _running(options) as (spark, meter):
        done = run(
            options.topic,
            to=options.to,
            body=options.body,
            schema=options.schema,
            **_stream(options, spark, meter),
        )
        meter.close()
        _tell(f"{_moved(done)}, {done.files:,} files: {done.path}")
        if not options.no_compact:
            _compact(options.to, 3600.0, meter, complain=False)
    return 0


def compact(options: argparse.Namespace) -> int:
    with _meter(options) as meter:
        _compact(options.path, options.settle, meter, complain=True)
    return 0


def _compact(path: str, settle: float, meter: Meter, *, complain: bool) -> None:
    """After an archive run it is a courtesy: a place that cannot do it is left as it is."""
    from nsq.spark.pipelines.compaction import compact as run

    try:
        done = run(path, settle=settle, progress=meter)
    except ConfigError:
        if complain:
            raise
        return
    meter.close()
    if done.hours or complain:
        _tell(f"compacted {done.hours:,} hours: {done.files_before:,} files became {done.files_after:,}")


def metrics(options: argparse.Namespace) -> int:
    from nsq.spark.pipelines.metrics import metrics as run

    with _running(options) as (spark, meter):
        done = run(
            options.topic,
            window=options.window,
            watermark=options.watermark,
            key=options.key,
            top=options.top,
            to=options.to,
            **_stream(options, spark, meter),
        )
        meter.close()
        _tell(_windows(done.windows))
        _tell(f"{_moved(done)}, {len(done.windows):,} windows")
        if options.chart and done.windows:
            from nsq.spark.pipelines.chart import metrics_chart

            _tell(f"drawn: {metrics_chart(done.windows, options.chart, title=options.topic)}")
    return 0


def _windows(windows: Any) -> str:
    heads = ["window (UTC)", "messages", "bytes", "p50", "p95", "p99", "redelivered", "most frequent"]
    rows = [
        [
            f"{each.start:%Y-%m-%d %H:%M:%S}",
            each.messages,
            size(each.bytes),
            span(each.latency_p50),
            span(each.latency_p95),
            span(each.latency_p99),
            each.redelivered,
            ", ".join(f"{key} {count:,}" for key, count in each.top) or "-",
        ]
        for each in windows
    ]
    return table(heads, rows)


def replay(options: argparse.Namespace) -> int:
    from nsq.spark.pipelines.replay import replay as run

    with _running(options) as (spark, meter):
        done = run(
            options.path,
            options.topic,
            nsqd=options.nsqd,
            lookupd=options.lookupd,
            since=options.since,
            until=options.until,
            rate=options.rate,
            dry_run=options.dry_run,
            state=options.state,
            spark=spark,
            progress=meter,
        )
        meter.close()
        before = f" after {done.before:,} of an interrupted run" if done.before else ""
        of = (
            f", of {done.first:%Y-%m-%d %H:%M:%S} to {done.last:%Y-%m-%d %H:%M:%S}"
            if done.first and done.last
            else ""
        )
        _tell(f"{'would publish ' if options.dry_run else ''}{_moved(done)}{before}{of}")
    if done.complete or options.dry_run:
        return 0
    _tell(f"not complete: run it again with the same arguments, it goes on from {done.state}")
    return 1


def fanout(options: argparse.Namespace) -> int:
    from nsq.spark.cli.sinks import sinks
    from nsq.spark.pipelines.fanout import fanout as run

    with _running(options) as (spark, meter):
        to = sinks(options.sink, options.nsqd, options.lookupd)
        done = run(options.topic, sinks=to, state=options.state, **_stream(options, spark, meter))
        meter.close()
        _tell(f"{_moved(done)}, to {', '.join(done.sinks)}")
    return 0


class _Result(Protocol):
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...


def _moved(done: _Result) -> str:
    return f"{done.rows:,} messages, {size(done.bytes)}, {span(done.seconds)}"


# Receiving without Spark


def receive(options: argparse.Namespace) -> int:
    from nsq.collector import calm_collector
    from nsq.spark.receiver.standalone import standalone
    from nsq.spark.source.options import SourceOptions

    calm_collector()
    given = {"topic": options.topic, "channel": options.channel, "wal": options.wal, **_reached(options)}
    with _meter(options) as meter:
        standalone(SourceOptions.of(given), progress=meter.say, progress_interval=1.0)
    return 0


# The write-ahead log


def wal_ls(options: argparse.Namespace) -> int:
    from nsq.spark.wal.inspect import ls

    found = ls(options.place)
    subject = f" of {found.subject}" if found.subject else ""
    _tell(f"log {found.identity}{subject} at {found.location}, owned by {found.owner or 'nobody'}")
    heads = ["receiver", "alive", "segments", "messages", "bytes", "open", "oldest"]
    rows = [
        [
            each.receiver,
            each.alive,
            each.segments,
            each.rows,
            size(each.bytes),
            size(each.open_bytes),
            None if each.oldest_seconds is None else span(each.oldest_seconds),
        ]
        for each in found.receivers
    ]
    _tell(table(heads, rows) if rows else "empty: every message has been through Spark")
    return 0


def wal_verify(options: argparse.Namespace) -> int:
    from nsq.spark.wal.inspect import verify

    found = verify(options.place)
    for problem in found.problems:
        _tell(problem)
    _tell(
        f"{found.segments:,} segments with {found.rows:,} messages are sound; {len(found.problems)} problems"
    )
    return 1 if found.problems else 0


def wal_gc(options: argparse.Namespace) -> int:
    from nsq.spark.wal.inspect import gc

    done = gc(options.place, force=options.force)
    _tell(
        f"{len(done.recovered):,} segments recovered, {len(done.deleted):,} deleted, "
        f"{len(done.folders):,} empty folders removed"
    )
    return 0


# The doctor


def doctor(options: argparse.Namespace) -> int:
    from nsq.spark.options import Options

    config = Options.of(dict(options.option)).config
    wrong = 0
    for found in physician.examine(
        nsqd=options.nsqd, lookupd=options.lookupd, wal=options.wal, config=config
    ):
        wrong += found.state == physician.WRONG
        _tell(f"{found.state:8}{found.what}: {found.text}")
        if found.remedy:
            _tell(f"{'':8}→ {found.remedy}")
    _tell("all is well" if not wrong else f"{wrong} of these must be mended")
    return 1 if wrong else 0


# What they share


def _tell(text: str) -> None:
    print(text, flush=True)


def print_submit(options: argparse.Namespace) -> int:
    """Instead of any command that runs on Spark."""
    _tell(_submit_line(options, options.master or "spark://HOST:7077"))
    return 0


def _submit_line(options: argparse.Namespace, master: str) -> str:
    entry = str(Path(__file__).parents[1] / "__main__.py")
    return submit_line(options.words, entry, master, dict(options.conf))


@contextlib.contextmanager
def _running(options: argparse.Namespace) -> Iterator[tuple[SparkSession, Meter]]:
    with _meter(options) as meter:
        if options.master and not options.master.startswith("local"):
            print(f"on the cluster itself: {_submit_line(options, options.master)}", file=sys.stderr)
        meter.say("starting Spark …")
        with contextlib.nullcontext() if options.debug else filtered(meter.note):
            spark = _session(options)
        try:
            yield spark, meter
        finally:
            spark.stop()


def _session(options: argparse.Namespace) -> SparkSession:
    from nsq.spark.session import local_session

    level = "WARN" if options.debug else "ERROR"
    spark = local_session(master=options.master, conf=dict(options.conf), log_level=level)
    if options.prometheus:
        from nsq.spark.listener import Listener

        spark.streams.addListener(Listener(prometheus=options.prometheus))
    return spark


@contextlib.contextmanager
def _meter(options: argparse.Namespace) -> Iterator[Meter]:
    from nsq.spark.cli.progress import Meter

    meter = Meter(sys.stderr, quiet=options.quiet)
    try:
        yield meter
    finally:
        meter.close()


def _stream(options: argparse.Namespace, spark: SparkSession, meter: Meter) -> dict[str, Any]:
    """The arguments that all pipelines on a stream have."""
    return {
        "channel": options.channel,
        "nsqd": options.nsqd,
        "lookupd": options.lookupd,
        "wal": options.wal,
        "checkpoint": options.checkpoint,
        "follow": options.follow,
        "every": options.every,
        "options": dict(options.option),
        "spark": spark,
        "progress": meter,
    }


def _reached(options: argparse.Namespace) -> Mapping[str, str]:
    """Addresses and other options as the source reads them."""
    given = dict(options.option)
    if options.nsqd:
        given["nsqd"] = ",".join(options.nsqd)
    if options.lookupd:
        given["lookupd"] = ",".join(options.lookupd)
    return given
