"""``nsq-spark`` reports errors in a line, stops at signals, and passes its flags to the pipelines."""

from __future__ import annotations

import os
import queue
import signal
import threading
from pathlib import Path
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
from tests.transcripts import Session


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


def test_debug_raises_an_error_instead_of_telling_it(tmp_path: Path) -> None:
    with pytest.raises(WalError):
        main(["--debug", "wal", "ls", f"{tmp_path}/absent"])


def test_mistakes_are_named_before_spark_starts(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of mistakes.txt."""
    monkeypatch.setattr("nsq.spark.session.local_session", lambda **_: pytest.fail("Spark was started"))
    mistakes = Path(__file__).with_name("mistakes.txt")
    Session(capfdbinary, {"nsq-spark": main}, {}, tmp_path).follow(mistakes)


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
