"""How a failure is told."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.config import Config
from nsq.errors import UsageError, WalError
from nsq.spark import session
from nsq.spark.cli import WalLs, in_a_line, main
from nsq.spark.pipelines import replay as replaying
from nsq.spark.pipelines.archive import ArchiveResult
from nsq.spark.pipelines.replay import ReplayResult


def test_a_fault_of_ours_is_told_as_it_is() -> None:
    assert in_a_line(WalError("there is no log at /x")) == "there is no log at /x"


def test_what_is_missing_comes_with_its_extra() -> None:
    fault = ModuleNotFoundError("No module named 'pyarrow'")
    assert in_a_line(fault) == "No module named 'pyarrow': pip install 'nsq[spark]'"


def test_of_long_stories_the_first_line() -> None:
    assert (
        in_a_line(RuntimeError("job aborted\n\tat java.lang"))
        == "RuntimeError: job aborted (--debug shows where)"
    )


def test_of_sparks_stories_the_reason_if_it_is_ours() -> None:
    story = (
        "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
        '  File "/x/stream.py", line 64, in plain\n    raise fault\n'
        "nsq.errors.WalOwned: /data/wal is owned by the query that reads orders/spark\n SQLSTATE: 38000"
    )
    assert in_a_line(RuntimeError(story)) == "/data/wal is owned by the query that reads orders/spark"


def test_a_failed_command(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", "ls", f"{tmp_path}/absent"]) == 1
    assert capsys.readouterr().err == f"nsq-spark: there is no log at {tmp_path}/absent\n"
    with pytest.raises(WalError):
        main(["--debug", "wal", "ls", f"{tmp_path}/absent"])


@pytest.mark.parametrize("command", [["archive", "--to", "/x"], ["metrics"]])
def test_a_mistake_is_told_before_spark_starts(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nsq.spark.session.local_session", lambda **_: pytest.fail("Spark was started"))
    assert main([*command, "orders", "--nsqd", "a:4150", "-o", "maxInFlght=3"]) == 1
    assert "did you mean maxInFlight?" in capsys.readouterr().err


def test_an_archive_without_anything_to_draw_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chart(*_: object, **__: object) -> str:
        raise UsageError("/x holds no Parquet file")

    result = ArchiveResult(path="/x")
    monkeypatch.setattr("nsq.spark.session.local_session", lambda **_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("nsq.spark.pipelines.archive.archive", lambda *_, **__: result)
    monkeypatch.setattr("nsq.spark.pipelines.metrics.archive_chart", chart)
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
def test_the_line_for_a_cluster_starts_no_spark_and_says_nothing_twice(
    words: str, before: str, behind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["archive", "orders", "--to", "s3://my orders", "--print-submit", *words.split()]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"spark-submit {before} /")
    assert line.endswith(f"/nsq/spark/__main__.py archive orders --to 's3://my orders'{behind}\n")


def test_an_interrupted_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(WalLs, "run", interrupted)
    assert main(["wal", "ls", "x"]) == 130
    assert "goes on from there" in capsys.readouterr().err


def test_two_signals_at_once_interrupt_a_pipeline_but_not_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        ended.append("stopped")

    def replay(*_: object, **rest: object) -> ReplayResult:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not interrupt it")

    monkeypatch.setattr(session, "local_session", lambda **_: SimpleNamespace(stop=stop))
    monkeypatch.setattr(replaying, "replay", replay)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main(["replay", "/data", "--topic", "again", "-q"]) == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended == ["stopped"]
    assert "goes on from there" in capsys.readouterr().err


def test_a_pipeline_gets_the_flags_that_are_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []
    spark = SimpleNamespace(stop=lambda: ended.append("stopped"))
    got: dict[str, Any] = {}

    def replay(path: str, topic: str, *, since: str = "", config: Config, **rest: object) -> ReplayResult:
        got.update(path=path, topic=topic, since=since, config=config)
        return ReplayResult(rows=3, complete=True)

    monkeypatch.setattr(session, "local_session", lambda **_: spark)
    monkeypatch.setattr(replaying, "replay", replay)
    words = ["replay", "/data", "--topic", "again", "-o", "authSecret=s3cret", "--rate=5", "--debug", "-q"]
    assert main(words) == 0
    assert got.pop("config").auth_secret == "s3cret"
    assert got == {"path": "/data", "topic": "again", "since": ""}
    assert ended == ["stopped"]
    assert capsys.readouterr().out == "3 messages, 0 B, 0.0 s\n"
