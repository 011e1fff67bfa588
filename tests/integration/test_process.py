"""``serve.process.run`` seen from outside: signals, errors, and messages to systemd."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nsq.threads.stop_signals import SAME_REQUEST_SECONDS
from tests.fakes.programs import run_python

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, contextlib, sys
sys.modules.update(dict.fromkeys({hidden!r}.split()))  # their import then fails
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.process import run

class Daemon:
    async def start(self):
        {start}

    async def reload(self):
        print("reloading", flush=True)
        {reload}

    async def drain(self):
        print("draining", flush=True)
        {drain}

    def hurry(self):
        print("hurrying", flush=True)
        self.hurried.set()

    async def stop(self):
        self.hurried = asyncio.Event()
        print("stopping", flush=True)
        {stop}
        return True

with contextlib.closing(DaemonLog("[d] ", path={path!r})) as log:
    sys.exit(run(Daemon, log, drains_on_sigterm={drains_on_sigterm}))
"""
FOR_EVER = "await asyncio.Event().wait()"


def started(
    start: str = "print('started', flush=True)",
    stop: str = "pass",
    *,
    reload: str = "pass",
    drain: str = "pass",
    path: str = "",
    hidden: str = "",
    environment: Mapping[str, str] | None = None,
    stderr: int = subprocess.PIPE,
    drains_on_sigterm: bool = False,
) -> subprocess.Popen[str]:
    program = PROGRAM.format(
        start=start,
        stop=stop,
        reload=reload,
        drain=drain,
        path=path,
        hidden=hidden,
        drains_on_sigterm=drains_on_sigterm,
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        # Without a buffer, a log line that cannot be written could not fail at the interpreter's end.
        env={**os.environ, "PYTHONUNBUFFERED": "", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def terminate(process: subprocess.Popen[str]) -> None:
    """End it in good order."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(("hidden", "loop"), [("", "uvloop"), ("uvloop", "asyncio.unix_events")])
def test_a_daemon_runs_on_uvloop_if_it_is_installed(hidden: str, loop: str) -> None:
    start = "print(type(asyncio.get_running_loop()).__module__, flush=True)"
    with started(start=start, hidden=hidden) as process:
        assert said(process) == f"{loop}\n"
        terminate(process)


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


@pytest.mark.parametrize("drain", [FOR_EVER, "raise KeyError('lost')"])
def test_a_drain_that_does_not_end_or_fails_is_followed_by_a_stop_in_good_order(drain: str) -> None:
    with started(drain=drain) as process:
        assert said(process) == "started\n"
        process.send_signal(signal.SIGUSR1)
        assert said(process) == "draining\n"
        if drain == FOR_EVER:
            process.send_signal(signal.SIGTERM)
        assert said(process) == "stopping\n"
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert ("KeyError: 'lost'" in log) == ("KeyError" in drain)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGUSR1])
def test_the_first_sigterm_may_drain_and_a_later_pair_of_signals_stops(first: signal.Signals) -> None:
    with started(drain=FOR_EVER, stop="await asyncio.sleep(0.2)", drains_on_sigterm=True) as process:
        assert said(process) == "started\n"
        for number in dict.fromkeys([first, signal.SIGTERM]):
            process.send_signal(number)
        assert said(process) == "draining\n"
        process.send_signal(signal.SIGINT)  # repeats the SIGTERM
        time.sleep(SAME_REQUEST_SECONDS)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # hurries nothing: they are a pair
        out, log = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "stopping\n")
    assert "received SIGTERM, draining; a second SIGTERM stops at once" in log


def test_sigint_stops_also_where_sigterm_drains() -> None:
    with started(drain=FOR_EVER, drains_on_sigterm=True) as process:
        assert said(process) == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "stopping\n"


def test_sighup_reloads_and_reopens_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(path=str(log), reload="raise KeyError('lost')") as process:
        assert said(process) == "started\n"
        log.rename(tmp_path / "log.1")
        for _ in range(2):  # a reload that fails is no end to reloading
            process.send_signal(signal.SIGHUP)
            assert said(process) == "reloading\n"
        terminate(process)
    lines = log.read_text().splitlines()
    assert lines[0].endswith("INFO: received SIGHUP, reloading")
    assert "KeyError: 'lost'" in lines
    assert lines[-1].endswith("INFO: received SIGTERM, stopping")
    assert (tmp_path / "log.1").read_text() == ""


def test_an_error_in_the_event_loop_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    start = "asyncio.get_running_loop().call_soon(lambda: 1 // 0); print('started', flush=True)"
    with started(start, path=str(log)) as process:
        assert said(process) == "started\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "ERROR: Exception in callback" in log.read_text()
    assert "ZeroDivisionError" in log.read_text()


@pytest.mark.parametrize("place", ["a closed pipe", "a full disk", "a --log-file on a full disk"])
def test_a_log_that_cannot_be_written_does_not_change_the_exit_status(place: str) -> None:
    if place == "a closed pipe":
        reader, stderr = os.pipe()
        os.close(reader)
    else:
        stderr = os.open("/dev/full", os.O_WRONLY)
    with started(path="/dev/full" if "--log-file" in place else "", stderr=stderr) as process:
        os.close(stderr)
        assert said(process) == "started\n"
        terminate(process)


# systemd


@pytest.fixture(params=["file", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The socket that systemd listens on, and what it calls it."""
    name = str(tmp_path / "notify") if request.param == "file" else f"@nsq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0"))
        sock.settimeout(60)
        yield sock, name


def heard(sock: socket.socket, wanted: str) -> None:
    """Wait for this message; those for the watchdog may come in between."""
    while (message := sock.recv(4096).decode()) != wanted:
        assert message == "WATCHDOG=1"


def test_systemd_is_notified_of_start_reload_and_stop(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    with started(environment={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"}) as process:
        heard(sock, "READY=1")
        heard(sock, "WATCHDOG=1")
        process.send_signal(signal.SIGHUP)
        while not (message := sock.recv(4096).decode()).startswith("RELOADING=1\nMONOTONIC_USEC="):
            assert message == "WATCHDOG=1"
        heard(sock, "READY=1")
        process.send_signal(signal.SIGUSR1)
        heard(sock, "STATUS=draining")
        heard(sock, "STOPPING=1")
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_loop_that_hangs_does_not_feed_the_watchdog(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    hanging = "import time; time.sleep(1.0); print('over', flush=True)"
    with started(reload=hanging, environment={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"}) as process:
        heard(sock, "READY=1")
        process.send_signal(signal.SIGHUP)
        while sock.recv(4096) == b"WATCHDOG=1":
            pass  # up to RELOADING=1
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(4096)
        process.kill()


UNITS = sorted((ROOT / "examples/systemd").glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_our_units(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_there_is_a_unit_for_each_daemon_with_flags_that_it_knows() -> None:
    assert [unit.stem for unit in UNITS] == ["nsqd", "nsqlookupd"]
    for unit in UNITS:
        (command,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
        flags = [word.partition("=")[0] for word in command.split() if word.startswith("--")]
        help_text = run_python("-m", f"nsq.daemons.{unit.stem}", "--help").stdout
        assert flags
        assert all(f"  {flag[1:]} " in help_text for flag in flags)
