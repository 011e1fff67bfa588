"""``nsq-spark``: its commands, the flags of each, and what each does. Only commands that need Spark, Java or
pyarrow load them: ``--help`` must come at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsq import __version__, flags
from nsq.errors import ConfigError, NsqError, UsageError
from nsq.flags import FlagExit, duration, flag, repeated
from nsq.spark import doctor
from nsq.spark.cli.terminal import Meter, filtered, size, span, table

if TYPE_CHECKING:
    from nsq.spark.pipelines.streaming import Totals
    from nsq.spark.source.options import SourceOptions
    from nsq.spark.wal.inspect import ReaderLine

# Flags


def pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError(f"{text!r} is not NAME=VALUE")
    return name, value


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Of every command. ``argument`` is the one that is no flag: a topic, an archive or a log."""

    debug: bool = flag(False, "stack traces, and Spark's own log from WARN up")
    argument: str = ""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NsqFlags(Flags):
    nsqd: tuple[str, ...] = repeated(str, "HOST:PORT of an nsqd; repeatable")
    lookupd: tuple[str, ...] = repeated(str, "HOST:PORT of an nsqlookupd that knows the nsqds; repeatable")
    option: tuple[tuple[str, str], ...] = repeated(
        pair, 'NAME=VALUE, also -o: an option of format("nsq") such as maxInFlight=5000; repeatable'
    )


@dataclass(frozen=True, kw_only=True)
class SparkFlags(NsqFlags):
    quiet: bool = flag(False, "no progress, only the result; also -q")
    master: str = flag("", "URL, where Spark runs; without it local[*], this machine")
    conf: tuple[tuple[str, str], ...] = repeated(pair, "NAME=VALUE, a Spark setting; repeatable")
    print_submit: bool = flag(False, "only print the spark-submit line for a cluster")
    prometheus: str = flag("", "keep figures in this file, for a textfile collector")


@dataclass(frozen=True, kw_only=True)
class StreamFlags(SparkFlags):
    follow: bool = flag(False, "go on until Ctrl-C, not only until it is drained")
    wal: str = flag("", "the write-ahead log: a directory, or a URI of pyarrow.fs")
    checkpoint: str = flag("", "the folder where Spark remembers how far it is")
    chart: str = flag("", "also draw what was archived or counted: .png, .svg or .pdf")


@dataclass(frozen=True, kw_only=True)
class ArchiveFlags(StreamFlags):
    channel: str = flag("archive", "the channel to read")
    every: float = duration(60.0, "with --follow: a batch so often")
    to: str = flag("", "the folder of files; delta:DIR: a Delta table")
    body: str = flag("binary", "how bodies are stored: binary, string or json")
    schema: str = flag("", "with --body=json: the fields, such as 'id bigint, total double'")


@dataclass(frozen=True, kw_only=True)
class MetricsFlags(StreamFlags):
    channel: str = flag("metrics", "the channel to read")
    every: float = duration(10.0, "with --follow: a batch so often")
    window: str = flag("1 minute", "as Spark spells it")
    watermark: str = flag("1 minute", "how late a message may be")
    key: str = flag("", "what to count besides: $.field of JSON bodies, or an SQL expression")
    top: int = flag(10, "so many keys per window")
    to: str = flag("", "also write the windows into this folder, as Parquet")


@dataclass(frozen=True, kw_only=True)
class ReplayFlags(SparkFlags):
    topic: str = flag("", "the topic to publish to")
    since: str = flag("", "from that time on: 2026-03-01 or 2026-03-01T07:30:00, UTC")
    until: str = flag("", "up to, and without, that time")
    rate: float | None = flag(None, "so many messages per second at most")
    dry_run: bool = flag(False, "count what would be published, and publish nothing")
    state: str = flag("", "the file where it remembers how far it is, to go on after an interruption")


@dataclass(frozen=True, kw_only=True)
class ReceiveFlags(NsqFlags):
    quiet: bool = flag(False, "no progress, only the result; also -q")
    channel: str = flag("", "the channel to read")
    wal: str = flag("", "the log, which Spark must be able to reach")


@dataclass(frozen=True, kw_only=True)
class ReadersFlags(Flags):
    remove: str = flag(
        "", "forget this reader, which holds up deletion; what it has not read is deleted once others have"
    )


@dataclass(frozen=True, kw_only=True)
class GcFlags(Flags):
    force: bool = flag(False, "also delete what dead receivers left unread: these messages are lost")


@dataclass(frozen=True, kw_only=True)
class DoctorFlags(NsqFlags):
    wal: str = flag("", "try to write there")


# Pipelines

#: Flags that are arguments of all pipelines on a stream.
_STREAM = ("channel", "nsqd", "lookupd", "wal", "checkpoint", "follow", "every")


def archive(options: ArchiveFlags) -> None:
    """Move a channel into Parquet files by date and hour."""
    from nsq.spark.pipelines.archive import archive as run

    _source_options(options)  # a mistake is told at once, and not when Spark has started
    with _running(options, *_STREAM, "to", "body", "schema") as (given, meter):
        done = run(options.argument, options=dict(options.option), **given)
        meter.close()
        print(f"{_moved(done)}, {done.files:,} files: {done.path}")
        _explain_nothing(done.rows, options)
        if options.chart:
            from nsq.spark.pipelines.chart import archive_chart

            try:
                print(f"drawn: {archive_chart(done.path, options.chart, title=options.argument)}")
            except UsageError as error:
                if done.rows:
                    raise
                print(f"not drawn: {error}")


def metrics(options: MetricsFlags) -> None:
    """Count messages, bytes, latency, attempts and the most frequent keys."""
    from nsq.spark.pipelines.metrics import metrics as run

    _source_options(options)
    with _running(options, *_STREAM, "to", "window", "watermark", "key", "top") as (given, meter):
        done = run(options.argument, options=dict(options.option), **given)
        meter.close()
        heads = ["window (UTC)", "messages", "bytes", "p50", "p95", "p99", "redelivered", "most frequent"]
        rows = []
        for each in done.windows:
            spans = map(span, (each.latency_p50, each.latency_p95, each.latency_p99))
            top = ", ".join(f"{key} {count:,}" for key, count in each.top) or None
            start = f"{each.start:%Y-%m-%d %H:%M:%S}"
            rows.append([start, each.messages, size(each.bytes), *spans, each.redelivered, top])
        print(table(heads, rows))
        print(f"{_moved(done)}, {len(done.windows):,} windows")
        _explain_nothing(done.rows, options)
        if options.chart and done.windows:
            from nsq.spark.pipelines.chart import metrics_chart

            print(f"drawn: {metrics_chart(done.windows, options.chart, title=options.argument)}")


def _explain_nothing(rows: int, options: ArchiveFlags | MetricsFlags) -> None:
    """A new channel surprises: it gets nothing of what was published before."""
    if not rows:
        print(
            f"nothing was in channel {options.channel!r} of topic {options.argument!r}. A channel gets what "
            "is published after it was made: if it is new, it is there from now on; --channel names another"
        )


def replay(options: ReplayFlags) -> int:
    """Publish an archive, or a part of it, again."""
    from nsq.spark.pipelines.replay import replay as run

    names = ("topic", "nsqd", "lookupd", "since", "until", "rate", "dry_run", "state")
    with _running(options, *names) as (given, meter):
        done = run(options.argument, **given)
        meter.close()
    said = f"{'would publish ' if options.dry_run else ''}{_moved(done)}"
    said += f" after {done.before:,} of an interrupted run" if done.before else ""
    if done.first and done.last:
        said += f", of {done.first:%Y-%m-%d %H:%M:%S} to {done.last:%Y-%m-%d %H:%M:%S}"
    print(said)
    if done.complete or options.dry_run:
        return 0
    print(f"not complete: run it again with the same arguments, it goes on from {done.state}")
    return 1


def _moved(done: Totals) -> str:
    return f"{done.rows:,} messages, {size(done.bytes)}, {span(done.seconds)}"


@contextlib.contextmanager
def _running(options: SparkFlags, *names: str) -> Iterator[tuple[dict[str, Any], Meter]]:
    """With a session: what a pipeline is given, by the flags of these names among others."""
    from nsq.spark.session import local_session

    with contextlib.closing(Meter(sys.stderr, quiet=options.quiet)) as meter:
        if options.master and not options.master.startswith("local"):
            print(f"on the cluster itself: {submit_line(options)}", file=sys.stderr)
        meter.say("starting Spark …")
        with contextlib.nullcontext() if options.debug else filtered(meter.note):
            level = "WARN" if options.debug else "ERROR"
            spark = local_session(master=options.master or None, conf=dict(options.conf), log_level=level)
        if options.prometheus:
            from nsq.spark.listener import Listener

            spark.streams.addListener(Listener(prometheus=options.prometheus))
        meter.say("reading; the first batch takes some seconds …")
        try:
            given = {name: value for name in names if (value := getattr(options, name)) != ""}
            yield given | {"spark": spark, "progress": meter}, meter
        finally:
            spark.stop()


def submit_line(options: SparkFlags) -> str:
    """The package has to be installed on all workers."""
    words = ["spark-submit", "--master", options.master or "spark://HOST:7077"]
    for name, value in options.conf:
        words += ["--conf", f"{name}={value}"]
    words.append(str(Path(__file__).parents[1] / "__main__.py"))
    given = iter(options.argv)
    for word in given:
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in ("master", "conf", "print-submit"):
            words.append(word)
        elif name != "print-submit" and not equals:
            next(given)
    return shlex.join(words)


def receive(options: ReceiveFlags) -> None:
    """Only receive, into a log that a stream elsewhere reads (its option receivers=0). Needs no Java."""
    from nsq.collector import calm_collector
    from nsq.spark.receiver.process import standalone

    calm_collector()
    with contextlib.closing(Meter(sys.stderr, quiet=options.quiet)) as meter:
        standalone(_source_options(options), progress=meter.say)


def _source_options(options: ArchiveFlags | MetricsFlags | ReceiveFlags) -> SourceOptions:
    from nsq.spark.source.options import SourceOptions

    given = {"topic": options.argument, "channel": options.channel, "wal": options.wal or "by default"}
    for name, addresses in (("nsqd", options.nsqd), ("lookupd", options.lookupd)):
        given |= {name: ",".join(addresses)} if addresses else {}
    return SourceOptions.of(dict(options.option) | given)


# The write-ahead log


def wal_ls(options: Flags) -> None:
    """Show what is in a write-ahead log, by receiver."""
    from nsq.spark.wal.inspect import ls

    found = ls(options.argument)
    subject = f" of {found.subject}" if found.subject else ""
    print(f"log {found.identity}{subject} at {found.location}")
    _tell_readers(found.readers)
    heads = ["receiver", "alive", "segments", "messages", "bytes", "open", "oldest"]
    rows = []
    for each in found.receivers:
        sizes = size(each.bytes), size(each.open_bytes)
        oldest = None if each.oldest_seconds is None else span(each.oldest_seconds)
        rows.append([each.receiver, each.alive, each.segments, each.rows, *sizes, oldest])
    print(table(heads, rows) if rows else "no receiver has left anything in it")


def _tell_readers(found: Sequence[ReaderLine]) -> None:
    heads = ["reader", "to read", "last commit", "read by"]
    rows = [[each.reader, each.rows, f"{span(each.idle_seconds)} ago", each.owner] for each in found]
    print(table(heads, rows) if rows else "no query has read it yet")


def readers(options: ReadersFlags) -> None:
    """Show who reads a write-ahead log, and how much it holds for each."""
    from nsq.spark.wal import inspect

    if options.remove:
        inspect.remove_reader(options.argument, options.remove)
        print(f"removed: reader {options.remove}")
    _tell_readers(inspect.readers(options.argument))


def wal_verify(options: Flags) -> int:
    """Read all of a log and tell what is damaged; exit status 1 if anything is."""
    from nsq.spark.wal.inspect import verify

    found = verify(options.argument)
    for problem in found.problems:
        print(problem)
    problems = len(found.problems)
    print(f"{found.segments:,} segments with {found.rows:,} messages are sound; {problems} problems")
    return 1 if problems else 0


def wal_gc(options: GcFlags) -> None:
    """Seal what dead receivers left in a log, and remove their empty folders."""
    from nsq.spark.wal.inspect import gc

    done = gc(options.argument, force=options.force)
    print(
        f"{len(done.recovered):,} segments recovered, {len(done.deleted):,} deleted, "
        f"{len(done.folders):,} empty folders removed"
    )


def examine(options: DoctorFlags) -> int:
    """Check Java, Python, the log and NSQ; exit status 1 if anything is wrong."""
    from nsq.spark.options import Options

    config = Options.of(dict(options.option)).config
    wal = options.wal or None
    wrong = 0
    for found in doctor.examine(nsqd=options.nsqd, lookupd=options.lookupd, wal=wal, config=config):
        wrong += found.state == doctor.WRONG
        print(f"{found.state:8}{found.what}: {found.text}", flush=True)
        if found.remedy:
            print(f"{'':8}→ {found.remedy}")
    print("all is well" if not wrong else f"{wrong} of these must be mended")
    return 1 if wrong else 0


# The program


class Command(NamedTuple):
    """``argument`` is what the one that is no flag is called; ``needs`` are flags that must be given. What it
    does is said by its function's docstring.
    """

    run: Callable[[Any], int | None]
    flags: type[Flags]
    argument: str
    needs: tuple[str, ...] = ()


COMMANDS = {
    "archive": Command(archive, ArchiveFlags, "TOPIC", ("to",)),
    "metrics": Command(metrics, MetricsFlags, "TOPIC"),
    "replay": Command(replay, ReplayFlags, "DIR", ("topic",)),
    "receive": Command(receive, ReceiveFlags, "TOPIC", ("channel", "wal")),
    "readers": Command(readers, ReadersFlags, "PLACE"),
    "wal ls": Command(wal_ls, Flags, "PLACE"),
    "wal verify": Command(wal_verify, Flags, "PLACE"),
    "wal gc": Command(wal_gc, GcFlags, "PLACE"),
    "doctor": Command(examine, DoctorFlags, ""),
}
_HELP = """\
Usage: nsq-spark COMMAND [arguments and flags]

NSQ and Spark: archive a topic, count it, replay it.

{}

`nsq-spark COMMAND --help` says more. PLACE is a directory, or a URI of pyarrow.fs.
"""
#: Other spellings of flags: short ones, and those of the other tools.
_SPELLINGS = {
    "-o": "--option",
    "-q": "--quiet",
    "--nsqd-tcp-address": "--nsqd",
    "--lookupd-http-address": "--lookupd",
}
#: What Python writes below a traceback, which Spark tells whole.
_OURS = re.compile(r"^nsq\.errors\.\w+: (.+)$", re.MULTILINE)


def parse(argv: Sequence[str]) -> tuple[Command, Any]:
    """A command and its flags. Raises FlagExit for --help, --version and mistakes."""
    words = list(argv)
    if words[:1] == ["--debug"]:
        words = words[1:] + words[:1]
    if words[:1] == ["--version"]:
        raise FlagExit(0, f"nsq-spark v{__version__}\n", "stdout")
    if not words or words in (["wal", "-h"], ["wal", "--help"]) or words[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<12}{each.run.__doc__}" for name, each in COMMANDS.items())
        raise FlagExit(0 if words else 2, _HELP.format(listed), "stdout" if words else "stderr")
    name = " ".join(words[:2]) if words[0] == "wal" else words[0]
    command = COMMANDS.get(name)
    if command is None:
        raise FlagExit(2, f"nsq-spark has no command {name!r}; there are {', '.join(COMMANDS)}\n")
    prog = f"nsq-spark {name}"
    options, rest = _parse_flags(command, prog, words[len(name.split()) :])
    if len(rest) > bool(command.argument):
        raise FlagExit(2, f"{prog}: unknown arguments: {' '.join(rest)}; --help says more\n")
    missing = [] if rest or not command.argument else [command.argument]
    missing += [f"--{needed}" for needed in command.needs if not getattr(options, needed)]
    if missing:
        raise FlagExit(2, f"{prog}: {missing[0]} is missing; --help says more\n")
    return command, dataclasses.replace(options, argument="".join(rest), argv=tuple(argv))


def _parse_flags(command: Command, prog: str, words: list[str]) -> tuple[Any, list[str]]:
    """Go's grammar ends at the first argument that is no flag: take it out, and begin again."""
    rest: list[str] = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        words[place] = _SPELLINGS.get(name, name) + equals + value
    while True:
        try:
            parsed = flags.parse(command.flags, words, prog=prog, config_flag=False)
        except FlagExit as end:
            usage = f"Usage: {prog} {command.argument} [flags]\n\n{command.run.__doc__}\n\nFlags:\n"
            raise FlagExit(end.status, end.text.replace(f"Usage of {prog}:\n", usage), end.stream) from None
        if not parsed.rest:
            return parsed.options, rest
        rest.append(words.pop(len(words) - len(parsed.rest)))


def main(argv: Sequence[str] | None = None) -> int:
    try:
        command, options = parse(list(sys.argv[1:] if argv is None else argv))
    except FlagExit as end:
        print(end.text, end="", file=sys.stdout if end.stream == "stdout" else sys.stderr)
        return end.status
    level = logging.INFO if options.debug else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if getattr(options, "print_submit", False):
            print(submit_line(options))
            return 0
        status = command.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, and the next run goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `nsq-spark wal ls … | head`: the reader is gone, and Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.debug:
            raise
        print(f"nsq-spark: {in_a_line(error)}", file=sys.stderr)
        return 1
    return status or 0


def in_a_line(fault: Exception) -> str:
    """An error of ours, also where it is the reason of Spark's; of others the kind and the first line."""
    first = str(fault).strip().split("\n", 1)[0]
    if isinstance(fault, NsqError):
        return str(fault)
    ours = _OURS.search(str(fault))
    if ours is not None:
        return ours[1].strip()
    if isinstance(fault, ImportError):
        return f"{first}: pip install 'nsq[spark]'"
    return f"{type(fault).__name__}: {first} (--debug shows where)"
