"""``nsq-spark``: its commands and their flags. Only commands that need Spark, Java or pyarrow load them, so
that ``--help`` is fast.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TextIO, TypeVar

from nsq import __version__, flags
from nsq.config import Config
from nsq.errors import ConfigError, NsqError, UsageError, how_to_install
from nsq.flags import FlagExit, duration, flag, repeated
from nsq.spark.options import Options
from nsq.tables import table
from nsq.threads.signals import SignalWatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq.spark.pipelines.streaming import Progress, Totals
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

    debug: bool = flag(False, "show stack traces, and Spark's log from WARN up")
    argument: str = ""
    argv: tuple[str, ...] = ()

    def run(self) -> int | None:
        """Run the command; return the exit status, where None means 0."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NsqCommand(Command):
    nsqd: tuple[str, ...] = repeated(str, "HOST:PORT of an nsqd; repeatable")
    lookupd: tuple[str, ...] = repeated(str, "HOST:PORT of an nsqlookupd that knows the nsqds; repeatable")
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
    quiet: bool = flag(False, "show no progress, only the result; also -q")
    master: str = flag("", "URL of Spark's master; default: local[*], this machine")
    conf: tuple[tuple[str, str], ...] = repeated(pair, "NAME=VALUE, a Spark setting; repeatable")
    print_submit: bool = flag(False, "print the spark-submit command for a cluster, and exit")
    prometheus: str = flag("", "file for metrics, which Prometheus' textfile collector reads")

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

    channel: str = flag("", "the channel to read")
    follow: bool = flag(False, "run until Ctrl-C instead of exiting when the channel is drained")
    wal: str = flag("", "the write-ahead log: a directory, or s3://bucket/folder")
    checkpoint: str = flag("", "Spark's checkpoint folder")
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

    def tell(self, done: Totals, what: str) -> None:
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

    channel: str = flag("archive", "the channel to read")
    every: float = duration(60.0, "with --follow: time between two batches")
    to: str = flag("", "folder for the files, or delta:DIR for a Delta table")
    body: str = flag("binary", "how bodies are stored: binary, string or json")
    schema: str = flag("", "with --body=json: the fields, such as 'id bigint, total double'")

    def run(self) -> None:
        from nsq.spark.pipelines.archive import archive

        with self.done(archive) as done:
            self.tell(done, f"{done.files:,} files: {done.path}")
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

    channel: str = flag("metrics", "the channel to read")
    every: float = duration(10.0, "with --follow: time between two batches")
    window: str = flag("1 minute", "length of a window, as Spark spells it")
    watermark: str = flag("1 minute", "with --to: how late a message may be")
    key: str = flag("", "list the most frequent values of $.field in JSON bodies, or of an SQL expression")
    top: int = flag(10, "number of these values per window")
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
            self.tell(done, f"{len(done.windows):,} windows")
            if self.chart and done.windows:
                print(f"drawn: {metrics_chart(done.windows, self.chart, title=self.argument)}")


@dataclass(frozen=True, kw_only=True)
class Replay(SparkCommand):
    """Publish an archive, or a part of it, again."""

    takes = "DIR"
    needs = ("topic",)

    topic: str = flag("", "the topic to publish to")
    since: str = flag("", "publish only messages from this time on: 2026-03-01 or 2026-03-01T07:30:00, UTC")
    until: str = flag("", "publish only messages before this time")
    rate: float | None = flag(None, "maximum messages per second")
    dry_run: bool = flag(False, "count what would be published, and publish nothing")
    state: str = flag("", "file that records the progress, to resume after an interruption")

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

    quiet: bool = flag(False, "show no progress, only the result; also -q")
    channel: str = flag("", "the channel to read")
    wal: str = flag("", "the log, which Spark must be able to reach")
    share: str = flag("1/1", "which part of the nsqds to take: 3/40 is the third of 40 receivers")

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

    channel: str = flag("", "the channel to read")
    wal: str = flag("", "the log, which all executors must be able to reach")
    n: int = flag(2, "receivers; each holds one of the cluster's slots; also -n")

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
                        status, now = job.status(), time.monotonic()
                        rate = max(0.0, (status.received - before) / (now - then))
                        before, then = status.received, now
                        alive = job.alive()
                        # Receivers do not tell a directory what they do.
                        told = any(folder.status for folder in alive)
                        kept = f"{sum(folder.segments for folder in alive):,} segments in the log"
                        meter.show(f"{len(alive)} receivers, {progress_line(status, rate) if told else kept}")
                meter.note("stopped")
            finally:
                for spark in started:
                    spark.stop()


def _tell_readers(found: Sequence[ReaderLine]) -> None:
    heads = ["reader", "to read", "last commit", "read by"]
    rows = [[each.reader, f"{each.rows:,}", f"{span(each.idle_seconds)} ago", each.owner] for each in found]
    print(table(heads, rows) if rows else "no query has read it yet")


@dataclass(frozen=True, kw_only=True)
class Simulate(Command):
    """Compute what a log in S3 needs: requests, cost, time to plan a batch, messages in flight."""

    takes = ""

    receivers: int = flag(80, "receivers on the cluster")
    rate: int = flag(25_000, "messages per second of each receiver")
    size: int = flag(200, "bytes of a message")
    interval: float = duration(1.0, "time between two segments of a receiver (commitInterval)")
    delay: float = duration(0.05, "time that one request takes")
    retention: float = duration(0.0, "how long the log keeps committed segments")

    def run(self) -> None:
        from nsq.spark.simulate import Scene, simulate

        scene = Scene(self.receivers, self.rate, self.size, self.interval, self.delay, self.retention)
        found = simulate(scene)
        print(f"{found.messages:,} messages/s, {size(found.bytes)}/s of bodies")
        counts = ", ".join(f"{count:,.1f} {kind}" for kind, count in found.requests.items())
        print(f"requests/s: {counts}; ${found.dollars_a_day:,.0f} a day at S3's list prices, without storage")
        planned = f"{span(found.planning)}, of which {span(found.computing)} is computing"
        print(f"planning a batch: {planned}; the largest manifest has {size(found.largest_head)}")
        print(f"memory of this simulation: {size(found.memory)}")
        print(f"maxInFlight per receiver: {found.in_flight:,}")


@dataclass(frozen=True, kw_only=True)
class WalLs(Command):
    """Show what is in a write-ahead log: its readers, and its receivers."""

    remove: str = flag(
        "",
        "forget this reader, which holds up deletion; what it has not read is deleted once others have",
    )

    def run(self) -> None:
        from nsq.spark.wal.inspect import ls, remove_reader

        if self.remove:
            remove_reader(self.argument, self.remove)
            print(f"removed: reader {self.remove}")
        found = ls(self.argument)
        subject = f" of {found.subject}" if found.subject else ""
        print(f"log {found.identity}{subject} at {found.location}")
        _tell_readers(found.readers)
        heads = ["receiver", "alive", "segments", "messages", "bytes", "open", "oldest"]
        rows = []
        for each in found.receivers:
            sizes = size(each.bytes), size(each.open_bytes)
            oldest = None if each.oldest_seconds is None else span(each.oldest_seconds)
            counts = f"{each.segments:,}", f"{each.rows:,}"
            rows.append([each.receiver, each.alive, *counts, *sizes, oldest])
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
    """Seal what dead receivers left in a log, and remove their empty folders."""

    force: bool = flag(False, "also delete what dead receivers left unread: these messages are lost")

    def run(self) -> None:
        from nsq.spark.wal.inspect import gc

        done = gc(self.argument, force=self.force)
        print(
            f"{len(done.recovered):,} segments recovered, {len(done.deleted):,} deleted, "
            f"{len(done.folders):,} empty folders removed, {done.orphans:,} orphans deleted"
        )


@dataclass(frozen=True, kw_only=True)
class Doctor(NsqCommand):
    """Check Java, Python, the log and NSQ; exit status 1 if anything is wrong."""

    takes = ""

    wal: str = flag("", "write-ahead log to check, by writing there")
    sink: str = flag("", "folder of files that a stream writes: check that --checkpoint belongs to it")
    checkpoint: str = flag("", "the checkpoint of that stream")

    def run(self) -> int:
        from nsq.spark.doctor import SKIPPED, WRONG, examine

        if bool(self.sink) != bool(self.checkpoint):
            raise ConfigError("--sink and --checkpoint are checked together: give both")
        wrong = skipped = 0
        for found in examine(
            nsqd=self.nsqd,
            lookupd=self.lookupd,
            wal=self.wal or None,
            config=self.config,
            sink=self.sink,
            checkpoint=self.checkpoint,
        ):
            wrong += found.state == WRONG
            skipped += found.state == SKIPPED
            print(f"{found.state:8}{found.what}: {found.text}", flush=True)
            if found.remedy:
                print(f"{'':8}→ {found.remedy}")
        well = "all that was checked is well" if skipped else "all is well"
        print(f"problems to fix: {wrong}" if wrong else well)
        return 1 if wrong else 0


COMMANDS: dict[str, type[Command]] = {
    "archive": Archive,
    "metrics": Metrics,
    "replay": Replay,
    "receive": Receive,
    "receivers": Receivers,
    "simulate": Simulate,
    "wal ls": WalLs,
    "wal verify": WalVerify,
    "wal gc": WalGc,
    "doctor": Doctor,
}


# The program


_HELP = """\
Usage: nsq-spark COMMAND [arguments and flags]

NSQ and Spark: archive a topic, count it, replay it.

{}

`nsq-spark COMMAND --help` says more. PLACE is a directory, or s3://bucket/folder.
"""
#: Aliases of flags: short ones, and the names that other NSQ tools use.
_SPELLINGS = {
    "-o": "--option",
    "-q": "--quiet",
    "-n": "--n",
    "--nsqd-tcp-address": "--nsqd",
    "--lookupd-http-address": "--lookupd",
}
#: The last line of a Python traceback with one of our errors, inside an error of Spark's.
_OURS = re.compile(r"^nsq\.errors\.\w+: (.+)$", re.MULTILINE)
#: The error of Java inside one of Py4J's, and its causes.
_JAVA = re.compile(r"^(?:Caused by)?: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)


def parse(argv: Sequence[str]) -> Command:
    """Parse a command and its flags. Raises FlagExit for --help, --version and mistakes."""
    words = list(argv)
    if words[:1] == ["--debug"]:
        words = words[1:] + words[:1]
    if words[:1] == ["--version"]:
        raise FlagExit(0, f"nsq-spark v{__version__}\n")
    if not words or words in (["wal", "-h"], ["wal", "--help"]) or words[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<12}{each.__doc__}" for name, each in COMMANDS.items())
        raise FlagExit(0 if words else 2, _HELP.format(listed))
    name = " ".join(words[:2]) if words[0] == "wal" else words[0]
    command = COMMANDS.get(name)
    if command is None:
        raise FlagExit(2, f"nsq-spark has no command {name!r}; there are {', '.join(COMMANDS)}\n")
    prog, given = f"nsq-spark {name}", []
    for word in words[len(name.split()) :]:
        spelt, equals, value = word.partition("=")
        given.append(_SPELLINGS.get(spelt, spelt) + equals + value)
    synopsis = f"{command.takes}\n{command.__doc__}"
    options, arguments = flags.parse_command(command, given, prog=prog, synopsis=synopsis)
    for needed in command.needs:
        if not getattr(options, needed):
            raise FlagExit(2, f"--{needed} is missing\n{prog} --help says more\n")
    return dataclasses.replace(options, argument="".join(arguments), argv=tuple(argv))


def main(argv: Sequence[str] | None = None) -> int:
    try:
        command = parse(sys.argv[1:] if argv is None else argv)
    except FlagExit as end:
        print(end.text, end="", file=sys.stdout if end.stream == "stdout" else sys.stderr)
        return end.status
    level = logging.INFO if command.debug else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if isinstance(command, SparkCommand) and command.print_submit:
            print(command.submit_line())
            return 0
        status = command.run()
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        print("interrupted; what was finished is kept, and the next run goes on from there", file=sys.stderr)
        return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
    except BrokenPipeError:
        # `nsq-spark wal ls … | head` has closed the pipe: keep Python from reporting that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if command.debug:
            raise
        print(f"nsq-spark: {in_a_line(error)}", file=sys.stderr)
        return 1
    return status or 0


def in_a_line(error: Exception) -> str:
    """An error in one line: our own message, even inside an error of Spark's; else type and first line."""
    first = str(error).strip().split("\n", 1)[0]
    if isinstance(error, NsqError):
        return str(error)
    ours = _OURS.search(str(error))
    if ours is not None:
        return ours[1].strip()
    if first.startswith("An error occurred while calling") and (causes := _JAVA.findall(str(error))):
        kind, reason = causes[-1]
        return f"{kind.rpartition('.')[2]}: {reason or 'no reason given'} (--debug shows where)"
    if isinstance(error, ImportError):
        return f"{first}: {how_to_install('spark')}"
    return f"{type(error).__name__}: {first} (--debug shows where)"


# SIGINT and SIGTERM while a pipeline runs


@dataclasses.dataclass
class StopSignals:
    """``stop`` is set at the first signal, and ``number`` is its number; 0 while there is none."""

    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    number: int = 0


@contextlib.contextmanager
def stop_signals(tell: Callable[[str], None]) -> Iterator[StopSignals]:
    """Take SIGINT and SIGTERM over, inside the block: the first one asks the pipeline to stop, a later one
    ends the process at once. Spark's JVM ends with the process.
    """
    found = StopSignals()

    def watch_signals() -> None:
        while (number := watch.wait()) is not None:
            if found.number:
                os._exit(128 + number)
            found.number = int(number)
            found.stop.set()
            tell("stopping, which takes some seconds; again to stop at once")

    with SignalWatch() as watch, watch:
        # A thread, because the main thread may hold the lock of the event when the signal comes.
        thread = threading.Thread(target=watch_signals, name="nsq-spark-signals", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            watch.wake()
            thread.join()


# How bytes and seconds are written


def size(count: float) -> str:
    """A number of bytes as text: ``1.5 MiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.0f} {units[0]}" if units[0] == "B" or count >= 100 else f"{count:.1f} {units[0]}"


def span(seconds: float) -> str:
    """Seconds as text: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# Progress: one line that is overwritten on a terminal; in a file, a line every few seconds

#: Seconds between lines in a file.
_SELDOM = 4.0


def line(progress: Progress) -> str:
    words = [f"{progress.rows:,} rows", size(progress.bytes), f"{progress.rate:,.0f} rows/s"]
    if progress.lag is not None:
        behind = f" ({span(progress.lag_seconds)} behind)" if progress.lag and progress.lag_seconds else ""
        words.append(f"{progress.lag:,} to come{behind}")
    return ", ".join([*words, f"{span(progress.seconds)} so far"])


@dataclasses.dataclass(eq=False)
class Meter:
    """Shows the progress of a pipeline; thread-safe."""

    stream: TextIO
    quiet: bool = False

    def __post_init__(self) -> None:
        self._last_line_at = time.monotonic() - _SELDOM
        self._shown = ""
        self._lock = threading.Lock()  # lines must not mix

    def show(self, text: str) -> None:
        """Show the current progress; the next call overwrites it."""
        with self._lock:
            if self.quiet:
                return
            if self.stream.isatty():
                self._write("", text[: shutil.get_terminal_size().columns - 1])
            elif time.monotonic() - self._last_line_at >= _SELDOM:
                self._last_line_at = time.monotonic()
                self._write(f"{text}\n", "")

    def note(self, text: str) -> None:
        """Write a lasting line above the progress line."""
        with self._lock:
            self._write(f"{text}\n", self._shown)

    def close(self) -> None:
        """Erase the progress line."""
        with self._lock:
            self._write("", "")

    def _write(self, stays: str, changes: str) -> None:
        erased = f"\r{' ' * len(self._shown)}\r" if self._shown else ""
        self.stream.write(erased + stays + changes)
        self.stream.flush()
        self._shown = changes


# Filtering Spark's output. The JVM and its Python processes inherit our stderr when the JVM starts. At that
# time it is a pipe, whose reader passes on all lines but the noise

#: Noise: the usual lines of a Spark start, INFO lines of our own processes, and Java's stack traces.
CHATTER = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j|Setting default log level"
    r"|To adjust logging level|Warning: Java versions > Java 11 can only"
    r"|.* WARN NativeCodeLoader: |.* WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
    r"|.* INFO nsq\.|\s+at [\w.$]+\(|\s+\.\.\. [0-9]+ more$|\s*$"
)


@contextlib.contextmanager
def own_stderr() -> Iterator[TextIO]:
    """A copy of stderr, into which ``filtered`` can pass lines while stderr itself is its pipe."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):
        yield sys.stderr  # not a file, as in tests
        return
    with open(descriptor, "w", errors="backslashreplace") as copy:
        yield copy


@contextlib.contextmanager
def filtered(tell: Callable[[str], None]) -> Iterator[None]:
    """Pass the stderr of programs that are started inside the block to ``tell``, line by line, as long as
    they run. This process's own stderr is affected only inside the block.
    """
    reading, writing = os.pipe()

    def pass_on() -> None:
        with open(reading, errors="replace") as lines:
            for line in lines:
                if not CHATTER.match(line):
                    tell(line.rstrip("\n"))

    own = os.dup(2)
    threading.Thread(target=pass_on, name="nsq-spark-stderr", daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
