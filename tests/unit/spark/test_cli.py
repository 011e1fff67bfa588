"""``nsq-spark`` reports errors in a line, stops at signals, and passes its flags to the pipelines."""

from __future__ import annotations

import os
import queue
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.config import Config
from nsq.errors import UsageError, WalError
from nsq.spark import commands, session, terminal
from nsq.spark.cli import in_a_line, main
from nsq.spark.commands import WalLs
from nsq.spark.pipelines import replay as replaying
from nsq.spark.pipelines.archive import ArchiveResult
from nsq.spark.pipelines.replay import ReplayResult
from nsq.threads import stop_signals


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ModuleNotFoundError("No module named 'pyarrow'"),
            "No module named 'pyarrow': pip install 'nsq[spark]'",
        ),
        (RuntimeError("job aborted\n\tat java.lang"), "RuntimeError: job aborted (--debug shows where)"),
        # Ours inside of one of Spark's is shown alone, and of Java's the innermost cause.
        (
            RuntimeError(
                "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
                '  File "/x/stream.py", line 64, in plain\n    raise error\n'
                "nsq.errors.WalOwned: /data/wal is owned by the query that reads orders/spark\n SQLSTATE: 1"
            ),
            "/data/wal is owned by the query that reads orders/spark",
        ),
        (
            RuntimeError(
                "An error occurred while calling o91.parquet.\n"
                ": org.apache.spark.SparkException: Job aborted.\n\tat org.apache.spark.sql.X.y(X.scala:1)\n"
                "Caused by: java.io.IOException: No space left on device\n"
                "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
            ),
            "IOException: No space left on device (--debug shows where)",
        ),
        (
            RuntimeError(
                "An error occurred while calling o9.start.\n"
                ": org.apache.hadoop.ParentNotDirectory: /x\n\tat a.b"
            ),
            "ParentNotDirectory: /x (--debug shows where)",
        ),
    ],
)
def test_an_error_is_told_in_a_line(error: Exception, line: str) -> None:
    assert in_a_line(error) == line


def test_a_command_that_fails_exits_with_1_and_one_line(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wal", "ls", f"{tmp_path}/absent"]) == 1
    assert capsys.readouterr().err == f"nsq-spark: there is no log at {tmp_path}/absent\n"
    with pytest.raises(WalError):
        main(["--debug", "wal", "ls", f"{tmp_path}/absent"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("archive orders --to /x --nsqd a:4150 -o maxInFlght=3", "did you mean maxInFlight?"),
        ("metrics orders --nsqd a:4150 -o maxInFlght=3", "did you mean maxInFlight?"),
        ("archive orders --to /x", "--nsqd or --lookupd is missing, such as --nsqd 127.0.0.1:4150"),
        ("replay /x --topic again", "--nsqd or --lookupd is missing"),
        ("receive orders --channel c --wal /x", "--nsqd or --lookupd is missing"),
        ("archive orders --to /x --nsqd a:4150 --body text", "body is 'text', but must be one of"),
        ("archive orders --to /dev/null/x --nsqd a:4150", "to is /dev/null/x, which cannot be written"),
        ("metrics orders --nsqd a:4150 --chart x.bmp", "--chart is 'x.bmp', but must end in .png"),
        ("metrics orders --nsqd a:4150 --window minute", "window is 'minute', but must be"),
        ("replay /x --topic again --nsqd a:4150 --since soon", "'soon' is not a point in time"),
    ],
)
def test_a_wrong_command_is_reported_before_spark_starts(
    words: str, error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nsq.spark.session.local_session", lambda **_: pytest.fail("Spark was started"))
    assert main(words.split()) == 1
    assert error in capsys.readouterr().err


def test_an_archive_without_anything_to_draw_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chart(*_: object, **__: object) -> str:
        raise UsageError("/x holds no Parquet file")

    result = ArchiveResult(path="/x")
    monkeypatch.setattr("nsq.spark.session.local_session", lambda **_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("nsq.spark.pipelines.archive.archive", lambda *_, **__: result)
    monkeypatch.setattr("nsq.spark.pipelines.metrics.archive_chart", chart)
    monkeypatch.setattr(commands, "check_chart", lambda path: None)
    words = ["archive", "orders", "--nsqd", "a:4150", "--to", "/x", "--chart", "x.png"]
    assert main(words) == 0
    assert "not drawn: /x holds no Parquet file" in capsys.readouterr().out
    result = ArchiveResult(rows=1, path="/x")
    assert main(words) == 1


@pytest.mark.parametrize(
    ("words", "before", "behind"),
    [
        ("", "--master spark://HOST:7077", ""),
        ("--to /x --master yarn", "--master yarn", " --to /x"),
        ("--master=yarn --follow", "--master yarn", " --follow"),
        ("--conf a=b --conf=c=d -q", "--master spark://HOST:7077 --conf a=b --conf c=d", " -q"),
    ],
)
def test_print_submit_shows_a_command_line_and_starts_no_spark(
    words: str, before: str, behind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["archive", "orders", "--to", "s3://my orders", "--print-submit", *words.split()]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"spark-submit {before} /")
    assert line.endswith(f"/nsq/spark/__main__.py archive orders --to 's3://my orders'{behind}\n")


def test_an_interrupted_command_exits_with_130_and_says_how_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(WalLs, "run", interrupted)
    assert main(["wal", "ls", "x"]) == 130
    assert "goes on from there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "number", "status"),
    [
        (["--follow"], signal.SIGINT, 0),
        (["--follow"], signal.SIGTERM, 0),
        ([], signal.SIGINT, 130),
        ([], signal.SIGTERM, 143),
    ],
)
def test_a_signal_stops_a_pipeline_in_order_and_its_result_is_shown(
    words: list[str],
    number: signal.Signals,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def archive(topic: str, *, stop: threading.Event, **rest: object) -> ArchiveResult:
        os.kill(os.getpid(), number)
        assert stop.wait(200)
        os.kill(os.getpid(), number)  # a process group and its supervisor may both send one
        return ArchiveResult(rows=3, path="/x")

    monkeypatch.setattr("nsq.spark.pipelines.archive.archive", archive)
    monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", 1000.0)
    handlers = handlers_of_signals()
    assert main(["archive", "orders", "--nsqd", "a:4150", "--to", "/x", *words]) == status
    assert handlers_of_signals() == handlers
    shown = capsys.readouterr()
    assert shown.out.startswith("3 messages, 0 B")
    assert "stopping, which takes some seconds" in shown.err
    assert ("goes on from there" in shown.err) is bool(status)


def handlers_of_signals() -> list[Any]:
    """The handlers of SIGINT and SIGTERM. For a second after a stop, another one may replace Python's."""
    found = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    return [getattr(each, "handler", each) for each in found]


def test_a_later_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(os, "_exit", ends.put)
    monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", -1.0)
    with terminal.stop_signals(lambda text: None) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop.wait(200)
        os.kill(os.getpid(), signal.SIGINT)
        assert ends.get(timeout=200) == 130


def test_a_pipeline_gets_the_flags_that_are_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []
    spark = SimpleNamespace(stop=lambda: ended.append("stopped"))
    got: dict[str, Any] = {}

    def replay(path: str, topic: str, *, since: str = "", config: Config, **rest: Any) -> ReplayResult:
        got.update(path=path, topic=topic, since=since, config=config)
        assert rest["spark"]() is spark
        return ReplayResult(rows=3, complete=True)

    monkeypatch.setattr(session, "local_session", lambda **_: spark)
    monkeypatch.setattr(replaying, "replay", replay)
    words = ["replay", "/data", "--topic", "again", "-o", "authSecret=s3cret", "--rate=5", "--debug", "-q"]
    words += ["--nsqd", "a:4150"]
    assert main(words) == 0
    assert got.pop("config").auth_secret == "s3cret"
    assert got == {"path": "/data", "topic": "again", "since": ""}
    assert ended == ["stopped"]
    assert capsys.readouterr().out == "3 messages, 0 B, 0.0 s\n"
