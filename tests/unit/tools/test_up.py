"""What ``nsq up`` says while the daemons start. Here they are not started: tests/integration does that."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from nsq.tools import up


def test_up_says_at_once_what_it_starts_and_then_which_daemon_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    class Running:
        """Records what has been written before a daemon is started, and before it is waited for."""

        def __init__(self, watch: object) -> None:
            pass

        def record(self, step: str, daemon: up.Daemon) -> None:
            said.extend((capsys.readouterr().out, f"{step} {daemon.name}"))

        def start(self, daemon: up.Daemon) -> None:
            self.record("start", daemon)

        def await_answer(self, daemon: up.Daemon, host: str) -> bool:
            self.record("await", daemon)
            return True

        def wait(self) -> None:
            said.append(capsys.readouterr().out)

        def stop(self) -> int:
            return 0

    monkeypatch.setattr(up, "Running", Running)
    monkeypatch.setattr(up, "SignalWatch", contextlib.nullcontext)
    monkeypatch.setattr(up, "_refuse_taken_ports", lambda daemon, host: said.append(capsys.readouterr().out))
    assert up.main([f"--data-path={tmp_path}/data"]) == 0
    assert [each for each in said if each] == [
        "starting nsqlookupd, nsqd and nsqadmin\n",
        "start nsqlookupd",
        "await nsqlookupd",
        "nsqlookupd  tcp 127.0.0.1:4160  http 127.0.0.1:4161\n",
        "start nsqd",
        "start nsqadmin",
        "await nsqd",
        f"nsqd        tcp 127.0.0.1:4150  http 127.0.0.1:4151  data {tmp_path}/data\n",
        "await nsqadmin",
        "nsqadmin    http://127.0.0.1:4171/\nSIGTERM or Ctrl-C stops them\n",
    ]


def test_a_wait_says_every_eight_seconds_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    patience = up.Patience("waiting for nsqd to start", now=100.0)
    for tenth in range(250):
        patience.remind(100.0 + tenth / 10)
    assert capsys.readouterr().out.splitlines() == [
        f"waiting for nsqd to start, {seconds} s" for seconds in (8, 16, 24)
    ]
