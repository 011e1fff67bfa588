"""The commands of ``nsq-spark``: a class for each, whose fields are its flags. Only those that need Spark or
pyarrow load them, so that ``--help`` is fast.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from nsq.config import Config
from nsq.errors import ConfigError, UsageError, WalError, how_to_install
from nsq.flags import duration, flag, repeated
from nsq.spark.options import Options
from nsq.spark.terminal import Meter, filtered, line, own_stderr, size, span, stop_signals
from nsq.tables import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq.spark.pipelines.streaming import Totals
    from nsq.spark.source.options import SourceOptions
    from nsq.spark.wal.inspect import ReaderLine

T = TypeVar("T")

# The base classes of commands


def pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError(f"{text!r} is not NAME=VALUE")
    return name, value


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its fields are its flags, its docstring is its help text. ``takes`` names the positional
    argument, whose value is ``argument``; ``needs`` lists the required flags.
    """

    takes: ClassVar[str] = "PLACE"
    needs: ClassVar[tuple[str, ...]] = ()

    debug: bool = flag(False, "show stack traces, and Spark's log at WARN and above")
    argument: str = ""
    argv: tuple[str, ...] = ()

    def run(self) -> int | None:
        """Run the command; return the exit status, where None means 0."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NsqCommand(Command):
    nsqd: tuple[str, ...] = repeated(str, "HOST:PORT (TCP) of an nsqd; repeatable")
    lookupd: tuple[str, ...] = repeated(str, "HOST:PORT (HTTP) of an nsqlookupd; repeatable")
    option: tuple[tuple[str, str], ...] = repeated(
        pair, 'NAME=VALUE, also -o: an option of format("nsq") such as maxInFlight=5000; repeatable'
    )

    @property
    def options(self) -> dict[str, str]:
        return dict(self.option)

    @property
    def config(self) -> Config:
        """The connection settings among the options."""
        return Options.of(self.options).config


@dataclass(frozen=True, kw_only=True)
class SparkCommand(NsqCommand):
    quiet: bool = flag(False, "do not show progress; also -q")
    master: str = flag("", "URL of Spark's master; default: local[*], this machine")
    conf: tuple[tuple[str, str], ...] = repeated(pair, "NAME=VALUE, a Spark setting; repeatable")
    print_submit: bool = flag(False, "print the spark-submit command for a cluster, and exit")
    prometheus: str = flag("", "write metrics into this file, for Prometheus' textfile collector")

    @contextlib.contextmanager
    def done(self, pipeline: Callable[..., T]) -> Iterator[T]:
        """Run a pipeline in a session and yield its result. Flags named like its arguments are passed on."""
        started: list[SparkSession] = []
        with (
            own_stderr() as stderr,
            contextlib.closing(Meter(stderr, quiet=self.quiet)) as meter,
            stop_signals(meter.note) as signals,
        ):
            try:
                names = inspect.signature(pipeline).parameters
                given = {name: value for name in names if (value := getattr(self, name, "")) != ""}
                # The pipeline starts Spark after it has checked its arguments.
                given |= {"spark": lambda: self._start(meter, started)}
                given |= {"progress": lambda progress: meter.show(line(progress)), "stop": signals.stop}
                result = pipeline(self.argument, **given)
                meter.close()
                yield result
            finally:
                for spark in started:
                    spark.stop()
        if signals.number and not self.endless:
            raise KeyboardInterrupt(signals.number)

    def _start(self, meter: Meter, started: list[SparkSession]) -> SparkSession:
        from nsq.spark.session import local_session

        if self.master and not self.master.startswith("local"):
            print(f"to run the driver on the cluster too: {self.submit_line()}", file=sys.stderr)
        meter.show("starting Spark …")
        handler = signal.getsignal(signal.SIGINT)
        with contextlib.nullcontext() if self.debug else filtered(meter.note):
            level = "WARN" if self.debug else "ERROR"
            spark = local_session(master=self.master or None, conf=dict(self.conf), log_level=level)
        started.append(spark)
        if threading.current_thread() is threading.main_thread():
            # Spark has installed a handler that raises KeyboardInterrupt wherever the main thread is.
            signal.signal(signal.SIGINT, handler)
        if self.prometheus:
            from nsq.spark.listener import Listener

            spark.streams.addListener(Listener(prometheus=self.prometheus))
        meter.show("reading; the first batch takes some seconds …")
        return spark

    @property
    def endless(self) -> bool:
        """Whether a signal is the usual end of the command, or the command reports an early end itself."""
        return True

    def submit_line(self) -> str:
        """The spark-submit command line for a cluster, whose workers all need this package installed."""
        words = ["spark-submit", "--master", self.master or "spark://HOST:7077"]
        for name, value in self.conf:
            words += ["--conf", f"{name}={value}"]
        words.append(str(Path(__file__).with_name("__main__.py")))
        given = iter(self.argv)
        for word in given:
            name, equals, _ = word.lstrip("-").partition("=")
            if not word.startswith("-") or name not in ("master", "conf", "print-submit"):
                words.append(word)
            elif name != "print-submit" and not equals:
                next(given)
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class StreamCommand(SparkCommand):
    takes = "TOPIC"

    channel: str = flag("", "channel to read")
    follow: bool = flag(False, "run until Ctrl-C instead of exiting when the channel is drained")
    wal: str = flag("", "location of the write-ahead log: a directory, or s3://bucket/folder")
    checkpoint: str = flag("", "folder of Spark's checkpoint")
    chart: str = flag("", "image file for a chart of the result: .png, .svg or .pdf")

    @contextlib.contextmanager
    def done(self, pipeline: Callable[..., T]) -> Iterator[T]:
        source_options(self, self.wal or "by default")  # report mistakes before Spark starts
        if self.chart:
            check_chart(self.chart)
        with super().done(pipeline) as done:
            yield done

    @property
    def endless(self) -> bool:
        return self.follow

    def print_result(self, done: Totals, what: str) -> None:
        print(f"{_moved(done)}, {what}")
        if not done.rows and not self.follow:
            # Explain: a new channel gets no message that was published before it was created.
            print(
                f"channel {self.channel!r} of topic {self.argument!r} was empty. A channel gets only "
                "messages that are published after it was created, and this run has created it if it was "
                "missing; --channel names another"
            )


#: Seconds between two looks at receivers on a cluster.
_WATCH_EVERY = 5.0


def source_options(command: StreamCommand | Receive | Receivers, wal: str) -> SourceOptions:
    from nsq.spark.source.options import SourceOptions

    require_address(command)
    given = {"topic": command.argument, "channel": command.channel, "wal": wal}
    given |= {"nsqd": ",".join(command.nsqd), "lookupd": ",".join(command.lookupd)}
    return SourceOptions.of(command.options | given)


def check_chart(path: str) -> None:
    if not path.lower().endswith((".png", ".svg", ".pdf")):
        raise ConfigError(f"--chart is {path!r}, but must end in .png, .svg or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"--chart needs matplotlib: {how_to_install('chart')}")


def require_address(command: NsqCommand) -> None:
    if not command.nsqd and not command.lookupd:
        raise ConfigError("--nsqd or --lookupd is missing, such as --nsqd 127.0.0.1:4150")


def _moved(done: Totals) -> str:
    return f"{done.rows:,} messages, {size(done.bytes)}, {span(done.seconds)}"


# The commands


@dataclass(frozen=True, kw_only=True)
class Archive(StreamCommand):
    """Move a channel into Parquet files by date and hour."""

    needs = ("to",)

    channel: str = flag("archive", "channel to read")
    every: float = duration(60.0, "time between two batches, with --follow")
    to: str = flag("", "folder for the files, or delta:DIR for a Delta table")
    body: str = flag("binary", "how bodies are stored: binary, string or json")
    schema: str = flag("", "fields of JSON bodies, with --body=json, such as 'id bigint, total double'")

    def run(self) -> None:
        from nsq.spark.pipelines.archive import archive

        with self.done(archive) as done:
            self.print_result(done, f"{done.files:,} files: {done.path}")
            if self.chart:
                from nsq.spark.pipelines.metrics import archive_chart

                try:
                    print(f"drawn: {archive_chart(done.path, self.chart, title=self.argument)}")
                except UsageError as error:
                    if done.rows:
                        raise
                    print(f"not drawn: {error}")


@dataclass(frozen=True, kw_only=True)
class Metrics(StreamCommand):
    """Count messages, bytes, latency, attempts and the most frequent keys."""

    channel: str = flag("metrics", "channel to read")
    every: float = duration(10.0, "time between two batches, with --follow")
    window: str = flag("1 minute", "length of a time window, in Spark's spelling")
    watermark: str = flag("1 minute", "how late a message may be, with --to, in Spark's spelling")
    key: str = flag("", "list the most frequent values of $.field in JSON bodies, or of an SQL expression")
    top: int = flag(10, "number of the most frequent values per window, with --key")
    to: str = flag("", "also write the windows into this folder, as Parquet")

    def run(self) -> None:
        from nsq.spark.pipelines.metrics import metrics, metrics_chart

        with self.done(metrics) as done:
            heads = ["window (UTC)", "messages", "bytes", "p50", "p95", "p99", "redelivered", "most frequent"]
            rows = []
            for each in done.windows:
                spans = map(span, (each.latency_p50, each.latency_p95, each.latency_p99))
                top = ", ".join(f"{key} {count:,}" for key, count in each.top) or None
                start = f"{each.start:%Y-%m-%d %H:%M:%S}"
                messages, again = f"{each.messages:,}", f"{each.redelivered:,}"
                rows.append([start, messages, size(each.bytes), *spans, again, top])
            print(table(heads, rows))
            self.print_result(done, f"{len(done.windows):,} windows")
            if self.chart and done.windows:
                print(f"drawn: {metrics_chart(done.windows, self.chart, title=self.argument)}")


@dataclass(frozen=True, kw_only=True)
class Replay(SparkCommand):
    """Publish an archive, or a part of it, again."""

    takes = "DIR"
    needs = ("topic",)

    topic: str = flag("", "topic to publish to")
    since: str = flag("", "publish only messages from this time on: 2026-03-01 or 2026-03-01T07:30:00, UTC")
    until: str = flag("", "publish only messages before this time")
    rate: float | None = flag(None, "maximum messages per second")
    dry_run: bool = flag(False, "count what would be published, and publish nothing")
    state: str = flag(
        "", "file that records the progress, so that another run can resume (default: below DIR)"
    )

    def run(self) -> int:
        from nsq.spark.pipelines.replay import replay

        if not self.dry_run:
            require_address(self)
        with self.done(replay) as done:
            said = f"{'would publish ' if self.dry_run else ''}{_moved(done)}"
            said += f" after {done.before:,} of an interrupted run" if done.before else ""
            if done.first and done.last:
                said += f", of {done.first:%Y-%m-%d %H:%M:%S} to {done.last:%Y-%m-%d %H:%M:%S}"
            print(said)
        if done.complete or self.dry_run:
            return 0
        print(f"not complete: run it again with the same arguments, it goes on from {done.state}")
        return 1


@dataclass(frozen=True, kw_only=True)
class Receive(NsqCommand):
    """Only receive, into a log that a stream elsewhere reads (its option receivers=0). Needs no Java."""

    takes = "TOPIC"
    needs = ("channel", "wal")

    quiet: bool = flag(False, "do not show progress; also -q")
    channel: str = flag("", "channel to read")
    wal: str = flag(
        "",
        "location of the write-ahead log, which Spark must be able to reach: a directory, or s3://bucket/folder",
    )
    share: str = flag("1/1", "which part of the nsqds to receive from: 3/40 for the third of 40 receivers")

    def run(self) -> None:
        from nsq.spark.receiver.process import prepare_process, standalone
        from nsq.spark.receiver.standing import Share

        options = source_options(self, self.wal)
        share = Share.of(self.share)
        prepare_process()
        with contextlib.closing(Meter(sys.stderr, quiet=self.quiet)) as meter:
            standalone(options, progress=meter.show, share=share)


@dataclass(frozen=True, kw_only=True)
class Receivers(SparkCommand):
    """Receive on the executors of a cluster, into a log that a stream elsewhere reads (receivers=0)."""

    takes = "TOPIC"
    needs = ("channel", "wal")

    channel: str = flag("", "channel to read")
    wal: str = flag("", "location of the write-ahead log, which all executors must be able to reach")
    n: int = flag(2, "number of receivers, each of which holds one of the cluster's slots; also -n")

    def run(self) -> None:
        from nsq.spark.receiver.job import receivers
        from nsq.spark.receiver.process import progress_line

        source_options(self, self.wal)  # report mistakes before Spark starts
        given = {"topic": self.argument, "channel": self.channel, "wal": self.wal}
        given |= {"nsqd": ",".join(self.nsqd), "lookupd": ",".join(self.lookupd)}
        with (
            own_stderr() as stderr,
            contextlib.closing(Meter(stderr, quiet=self.quiet)) as meter,
            stop_signals(meter.note) as signals,
        ):
            started: list[SparkSession] = []
            try:
                with receivers(self._start(meter, started), self.options | given, self.n) as job:
                    before, then = 0, time.monotonic()
                    while not signals.stop.wait(_WATCH_EVERY):
                        job.check()
                        try:
                            status, alive, now = job.status(), len(job.alive()), time.monotonic()
                        except WalError as error:  # the receivers wait for the log, too
                            meter.show(f"the receivers' reports cannot be read: {error}")
                            continue
                        rate = max(0.0, (status.received - before) / (now - then))
                        before, then = status.received, now
                        meter.show(f"{alive} receivers, {progress_line(status, rate)}")
                meter.note("stopped")
            finally:
                for spark in started:
                    spark.stop()


def _print_readers(found: Sequence[ReaderLine]) -> None:
    heads = ["reader", "to read", "last commit", "read by"]
    rows = [[each.reader, f"{each.rows:,}", f"{span(each.idle_seconds)} ago", each.owner] for each in found]
    print(table(heads, rows) if rows else "no query has read it yet")


@dataclass(frozen=True, kw_only=True)
class WalLs(Command):
    """Show what is in a write-ahead log: its readers, and its receivers."""

    remove: str = flag(
        "",
        "forget this reader: segments that only it has not read are then deleted",
    )

    def run(self) -> None:
        from nsq.spark.wal.inspect import ls, remove_reader

        if self.remove:
            remove_reader(self.argument, self.remove)
            print(f"removed: reader {self.remove}")
        found = ls(self.argument)
        subject = f" of {found.subject}" if found.subject else ""
        print(f"log {found.identity}{subject} at {found.location}")
        _print_readers(found.readers)
        heads = ["receiver", "alive", "segments", "messages", "bytes", "oldest"]
        rows = []
        for each in found.receivers:
            oldest = None if each.oldest_seconds is None else span(each.oldest_seconds)
            counts = f"{each.segments:,}", f"{each.rows:,}"
            rows.append([each.receiver, each.alive, *counts, size(each.bytes), oldest])
        print(table(heads, rows) if rows else "no receiver has left anything in it")


@dataclass(frozen=True, kw_only=True)
class WalVerify(Command):
    """Read a whole log and list what is damaged; exit status 1 if anything is."""

    def run(self) -> int:
        from nsq.spark.wal.inspect import verify

        found = verify(self.argument)
        for problem in found.problems:
            print(problem)
        sound = f"{found.segments:,} segments with {found.rows:,} messages are sound"
        print(f"{sound}; {len(found.problems)} problems")
        return 1 if found.problems else 0


@dataclass(frozen=True, kw_only=True)
class WalGc(Command):
    """Forget dead receivers without segments, and delete what is left of their objects."""

    force: bool = flag(False, "also delete unread segments of dead receivers: their messages are lost")

    def run(self) -> None:
        from nsq.spark.wal.inspect import gc

        done = gc(self.argument, force=self.force)
        print(
            f"{len(done.closed):,} dead receivers found, {len(done.forgotten):,} forgotten; "
            f"{len(done.deleted):,} segments deleted, {done.orphans:,} orphans deleted"
        )


@dataclass(frozen=True, kw_only=True)
class Doctor(NsqCommand):
    """Check Java, Python, the log and NSQ; exit status 1 if anything is wrong."""

    takes = ""

    wal: str = flag("", "write-ahead log to check, by writing files there")
    sink: str = flag(
        "", "folder of files written by a stream: check that it and --checkpoint belong together"
    )
    checkpoint: str = flag("", "checkpoint of the stream that writes --sink")

    def run(self) -> int:
        from nsq.findings import FAILURE, SKIPPED, show
        from nsq.spark.doctor import examine

        if bool(self.sink) != bool(self.checkpoint):
            raise ConfigError("--sink and --checkpoint are checked together: give both")
        findings = examine(
            nsqd=self.nsqd,
            lookupd=self.lookupd,
            wal=self.wal or None,
            config=self.config,
            sink=self.sink,
            checkpoint=self.checkpoint,
        )
        levels = [each.level for each in show(findings)]
        wrong = levels.count(FAILURE)
        well = "all checks that ran passed" if SKIPPED in levels else "all checks passed"
        print(f"problems to fix: {wrong}" if wrong else well)
        return 1 if wrong else 0


COMMANDS: dict[str, type[Command]] = {
    "archive": Archive,
    "metrics": Metrics,
    "replay": Replay,
    "receive": Receive,
    "receivers": Receivers,
    "wal ls": WalLs,
    "wal verify": WalVerify,
    "wal gc": WalGc,
    "doctor": Doctor,
}
