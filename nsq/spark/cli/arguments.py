"""What ``nsq-spark`` understands. Loads neither pyspark nor pyarrow: ``--help`` must come at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Protocol

from nsq import __version__
from nsq.errors import NsqError
from nsq.literals import parse_duration

Run = Callable[[argparse.Namespace], int]


class Commands(Protocol):
    """The functions that the words stand for."""

    def archive(self, options: argparse.Namespace) -> int: ...
    def compact(self, options: argparse.Namespace) -> int: ...
    def metrics(self, options: argparse.Namespace) -> int: ...
    def replay(self, options: argparse.Namespace) -> int: ...
    def fanout(self, options: argparse.Namespace) -> int: ...
    def receive(self, options: argparse.Namespace) -> int: ...
    def doctor(self, options: argparse.Namespace) -> int: ...
    def wal_ls(self, options: argparse.Namespace) -> int: ...
    def wal_verify(self, options: argparse.Namespace) -> int: ...
    def wal_gc(self, options: argparse.Namespace) -> int: ...


def parser(commands: Commands) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="nsq-spark",
        description="NSQ and Spark: archive a topic, count it, replay it, hand it on.",
    )
    top.add_argument("--version", action="version", version=f"nsq-spark v{__version__}")
    top.add_argument("--debug", action="store_true", help="stack traces, and Spark's own log from WARN up")
    verbs = top.add_subparsers(metavar="command", required=True)
    _archive(verbs, commands.archive)
    _compact(verbs, commands.compact)
    _metrics(verbs, commands.metrics)
    _replay(verbs, commands.replay)
    _fanout(verbs, commands.fanout)
    _receive(verbs, commands.receive)
    _wal(verbs, commands)
    _doctor(verbs, commands.doctor)
    return top


# Types of values


def duration(text: str) -> float:
    try:
        return parse_duration(text)
    except NsqError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


# What several commands share


def _add(verbs: Any, name: str, run: Run, text: str, *, epilog: str = "") -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text, epilog=epilog)
    made.set_defaults(run=run)
    return made


def _addresses(of: argparse.ArgumentParser) -> None:
    group = of.add_argument_group("where NSQ is")
    group.add_argument(
        "--nsqd",
        "--nsqd-tcp-address",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="an nsqd; repeatable",
    )
    group.add_argument(
        "--lookupd", "--lookupd-http-address", action="append", default=[], metavar="HOST:PORT",
        help="an nsqlookupd that knows the nsqds; repeatable",
    )  # fmt: skip


def _spark(of: argparse.ArgumentParser) -> None:
    group = of.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="where Spark runs (default: local[*], this machine)")
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="a Spark setting; repeatable",
    )
    group.add_argument(
        "--print-submit", action="store_true", help="only print the spark-submit line for a cluster"
    )
    group.add_argument("--prometheus", metavar="FILE", help="keep figures there, for a textfile collector")
    _quiet(of)


def _quiet(of: argparse.ArgumentParser) -> None:
    of.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")


def _stream(of: argparse.ArgumentParser, channel: str) -> None:
    of.add_argument("topic")
    of.add_argument("--channel", default=channel, help="the channel to read (default: %(default)s)")
    _addresses(of)
    group = of.add_argument_group("how it runs")
    group.add_argument(
        "--follow", action="store_true", help="go on until Ctrl-C, not only until it is drained"
    )
    group.add_argument(
        "--every",
        type=duration,
        default=10.0,
        metavar="DURATION",
        help="with --follow: a batch so often (default: 10s)",
    )
    group.add_argument(
        "--wal", metavar="PLACE", help="the write-ahead log: a directory, or a URI of pyarrow.fs"
    )
    group.add_argument("--checkpoint", metavar="DIR", help="where Spark remembers how far it is")
    group.add_argument(
        "-o", "--option", action="append", default=[], type=pair, metavar="NAME=VALUE",
        help="an option of format(\"nsq\"), such as maxInFlight=5000; repeatable",
    )  # fmt: skip
    _spark(of)


# The commands


def _archive(verbs: Any, run: Run) -> None:
    of = _add(verbs, "archive", run, "Move a channel's messages into Parquet files by date and hour.")
    _stream(of, "archive")
    of.add_argument("--to", required=True, metavar="DIR", help="where the files go")
    of.add_argument(
        "--body",
        choices=("binary", "string", "json"),
        default="binary",
        help="how bodies are stored (default: %(default)s)",
    )
    of.add_argument(
        "--schema", metavar="DDL", help="with --body json: the fields, such as 'id bigint, total double'"
    )
    of.add_argument(
        "--no-compact", action="store_true", help="leave the small files of past hours as they are"
    )


def _compact(verbs: Any, run: Run) -> None:
    of = _add(verbs, "compact", run, "Merge the small files of an archive's past hours.")
    of.add_argument("path", metavar="DIR", help="an archive")
    of.add_argument(
        "--settle",
        type=duration,
        default=3600.0,
        metavar="DURATION",
        help="leave hours alone that ended less than that ago (default: 1h)",
    )
    _quiet(of)


def _metrics(verbs: Any, run: Run) -> None:
    of = _add(verbs, "metrics", run, "Count messages, bytes, latency, attempts and the most frequent keys.")
    _stream(of, "metrics")
    of.add_argument("--window", default="1 minute", help="as Spark spells it (default: %(default)s)")
    of.add_argument(
        "--watermark", default="1 minute", help="how late a message may be (default: %(default)s)"
    )
    of.add_argument(
        "--key", metavar="EXPR", help="what to count besides: $.field of JSON bodies, or an SQL expression"
    )
    of.add_argument(
        "--top", type=int, default=10, metavar="N", help="so many keys per window (default: %(default)s)"
    )
    of.add_argument("--to", metavar="DIR", help="also write the windows there, as Parquet")
    of.add_argument("--chart", metavar="FILE", help="also draw them: .png, .svg or .pdf")


def _replay(verbs: Any, run: Run) -> None:
    of = _add(verbs, "replay", run, "Publish an archive, or a part of it, again.")
    of.add_argument("path", metavar="DIR", help="an archive")
    of.add_argument("--topic", required=True, help="the topic to publish to")
    _addresses(of)
    of.add_argument(
        "--since", metavar="TIME", help="from that time on: 2026-03-01 or 2026-03-01T07:30:00, UTC"
    )
    of.add_argument("--until", metavar="TIME", help="up to, and without, that time")
    of.add_argument("--rate", type=float, metavar="N", help="so many messages per second at most")
    of.add_argument(
        "--dry-run", action="store_true", help="count what would be published, and publish nothing"
    )
    of.add_argument(
        "--state",
        metavar="FILE",
        help="where it remembers how far it is, to go on there after an interruption",
    )
    _spark(of)


def _fanout(verbs: Any, run: Run) -> None:
    text = "Receive once and hand every message to several sinks."
    of = _add(verbs, "fanout", run, text, epilog="A sink is parquet:DIR, nsq:TOPIC@HOST:PORT or console.")
    _stream(of, "fanout")
    of.add_argument(
        "--sink",
        action="append",
        required=True,
        metavar="SINK",
        help="parquet:DIR, nsq:TOPIC@HOST:PORT or console; repeatable",
    )
    of.add_argument(
        "--state", required=True, metavar="DIR", help="where it remembers which sink has had what"
    )


def _receive(verbs: Any, run: Run) -> None:
    text = "Only receive, into a log that a stream elsewhere reads (its option receivers=0). Needs no Java."
    of = _add(verbs, "receive", run, text)
    of.add_argument("topic")
    of.add_argument("--channel", required=True)
    _addresses(of)
    of.add_argument(
        "--wal", required=True, metavar="PLACE", help="the log, which Spark must be able to reach"
    )
    of.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help='as of format("nsq"); repeatable',
    )
    _quiet(of)


def _wal(verbs: Any, commands: Commands) -> None:
    top: argparse.ArgumentParser = verbs.add_parser(
        "wal", help="Look at a write-ahead log, check it, tidy it."
    )
    below = top.add_subparsers(metavar="command", required=True)
    for name, run, text in (
        ("ls", commands.wal_ls, "What is in it, by receiver."),
        (
            "verify",
            commands.wal_verify,
            "Read everything and tell what is damaged; exit status 1 when something is.",
        ),
        ("gc", commands.wal_gc, "Seal what dead receivers left, and remove their empty folders."),
    ):
        of = _add(below, name, run, text)
        of.add_argument("place", metavar="PLACE", help="a directory, or a URI of pyarrow.fs")
        if name == "gc":
            of.add_argument(
                "--force",
                action="store_true",
                help="also delete what dead receivers left unread: these messages are lost",
            )


def _doctor(verbs: Any, run: Run) -> None:
    of = _add(
        verbs,
        "doctor",
        run,
        "Check Java, Python, the log's directory and NSQ; exit status 1 when something is wrong.",
    )
    _addresses(of)
    of.add_argument("--wal", metavar="PLACE", help="try to write there")
    of.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="how to connect: tls=true, authSecret=…",
    )
