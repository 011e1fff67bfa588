"""The command lines of ``nsq-spark`` are parsed without loading Spark."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from typing import Any

import pytest

from nsq.errors import WalError
from nsq.spark import cli, commands
from nsq.spark.commands import COMMANDS
from nsq.spark.receiver import job
from nsq.spark.receiver.protocol import Status


def parse(*words: str) -> Any:
    return cli.parse(words)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (
            "archive orders --to /data --nsqd a:4150",
            {"argument": "orders", "channel": "archive", "to": "/data", "nsqd": ("a:4150",), "follow": False},
        ),
        ("archive orders --to x", {"master": "", "option": (), "body": "binary", "every": 60.0}),
        ("archive --follow orders --to=x", {"argument": "orders", "follow": True, "to": "x"}),
        ("archive --to x --follow orders", {"argument": "orders", "follow": True, "to": "x"}),
        ("archive orders --to x --every 1m30s", {"every": 90.0}),
        (
            "metrics orders --nsqd-tcp-address=a:4150 --nsqd b:4150 --lookupd-http-address=c:4161",
            {"nsqd": ("a:4150", "b:4150"), "lookupd": ("c:4161",), "every": 10.0},
        ),
        (
            "metrics orders -o maxInFlight=5000 --conf spark.driver.memory=4g --conf x=a=b",
            {"option": (("maxInFlight", "5000"),), "conf": (("spark.driver.memory", "4g"), ("x", "a=b"))},
        ),
        ("--debug wal ls x", {"debug": True}),
        ("wal ls x --debug", {"debug": True}),
    ],
)
def test_a_command_line_is_parsed(words: str, found: dict[str, Any]) -> None:
    parsed = parse(*words.split())
    assert {name: getattr(parsed, name) for name in found} == found


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert cli.main(["wal", "--help"]) == 0
    assert capsys.readouterr().out == overview
    for name, command in COMMANDS.items():
        assert cli.main([*name.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"Usage: nsq-spark {name} {command.takes}".strip() in shown
        assert all(f"\n  -{needed} " in shown for needed in command.needs)
        assert command.__doc__
        assert command.__doc__ in overview


def test_receivers_on_a_cluster_go_on_while_their_log_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Job:
        asked = 0

        def check(self) -> None: ...

        def status(self) -> Status:
            self.asked += 1
            if self.asked == 1:
                raise WalError("s3://bucket/wal: 503")
            os.kill(os.getpid(), signal.SIGTERM)
            return Status(received=7)

        def alive(self) -> list[str]:
            return ["r-1"]

    running = Job()
    monkeypatch.setattr(commands, "_WATCH_EVERY", 0.001)
    monkeypatch.setattr(commands.SparkCommand, "_start", lambda *_: None)
    monkeypatch.setattr(job, "receivers", lambda *_: nullcontext(running))
    words = ("receivers", "orders", "--channel", "c", "--wal", "s3://bucket/wal", "--nsqd", "a:4150")
    assert parse(*words).run() is None
    assert running.asked >= 2
    assert "the receivers' reports cannot be read: s3://bucket/wal: 503" in capfd.readouterr().err
