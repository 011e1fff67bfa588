"""What process.run makes of signals and failures, seen from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, sys
from nsq.daemons.logs import DaemonLog
from nsq.daemons.process import run

class Daemon:
    async def start(self):
        {start}

    async def stop(self):
        print("stopping", flush=True)
        {stop}
        return {whole}

sys.exit(run(Daemon, DaemonLog("[d] ")))
"""


def started(
    start: str = "print('started', flush=True)", stop: str = "pass", *, whole: bool = True
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(start=start, stop=stop, whole=whole)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_second_signal_does_not_wait_for_the_stop() -> None:
    with started(stop="await asyncio.Event().wait()") as process:
        assert said(process) == "started\n"
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stopping\n"
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = log.splitlines()
    assert lines[0].endswith("INFO: received SIGTERM, stopping")
    assert lines[1].endswith("FATAL: second signal (SIGINT): exiting without waiting")


def test_a_stop_that_lost_something_exits_with_status_1() -> None:
    with started(whole=False) as process:
        assert said(process) == "started\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 1


def test_a_signal_during_the_start_is_not_lost() -> None:
    with started(start="print('started', flush=True); await asyncio.sleep(0.3)") as process:
        assert said(process) == "started\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "stopping\n")


@pytest.mark.parametrize(
    ("start", "last"),
    [
        ("raise OSError(28, 'No space left on device', '/data')", "No space left on device: '/data'"),
        ("raise KeyError('surprise')", "KeyError: 'surprise'"),
    ],
)
def test_a_failed_start_exits_with_status_1(start: str, last: str) -> None:
    with started(start=start) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert log.splitlines()[-1].endswith(last)
    assert ("Traceback" in log) == ("KeyError" in log)
