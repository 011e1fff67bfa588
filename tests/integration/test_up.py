"""``nsq up`` runs all daemons on one machine."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsq.http.nsqd import NsqdApi
from nsq.tools.front_door import main
from tests.integration.consuming import until

#: The other ports, above nsqd's TCP port.
OFFSETS = (0, 1, 10, 11, 21)


def free_port() -> int:
    """A first port whose five ports are free; below those that systems give to outgoing connections."""
    while True:
        port = random.randrange(11_000, 31_000)
        try:
            for more in OFFSETS:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + more))
        except OSError:
            continue
        return port


class Up:
    def __init__(self, process: subprocess.Popen[str], port: int, directory: Path) -> None:
        self.process = process
        self.directory = directory
        self.api = NsqdApi(f"127.0.0.1:{port + 1}")
        self.labels: list[str] = []

    def read_labels(self) -> list[str]:
        assert self.process.stdout is not None
        self.labels = [self.process.stdout.readline() for _ in range(5)]
        return self.labels

    def daemons(self) -> list[int]:
        """The processes of the daemons: those of children that run ``nsq.daemons``."""
        found = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(line.split()[0]) for line in found.stdout.splitlines() if "nsq.daemons" in line]

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=120)
        return self.process.returncode, error


@contextmanager
def running(port: int, directory: Path) -> Iterator[Up]:
    command = [sys.executable, "-m", "nsq", "up", f"--port={port}", f"--data-path={directory}/data"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    up = Up(process, port, directory)
    with process:
        try:
            yield up
        finally:
            if process.poll() is None:
                for pid in up.daemons():
                    os.kill(pid, signal.SIGKILL)
                process.kill()


def test_up_labels_addresses_and_keeps_messages_for_the_next_run(tmp_path: Path) -> None:
    port = free_port()
    with running(port, tmp_path) as up:
        assert up.read_labels() == [
            "starting nsqlookupd, nsqd and nsqadmin\n",
            f"nsqlookupd  tcp 127.0.0.1:{port + 10}  http 127.0.0.1:{port + 11}\n",
            f"nsqd        tcp 127.0.0.1:{port}  http 127.0.0.1:{port + 1}  data {tmp_path}/data\n",
            f"nsqadmin    http://127.0.0.1:{port + 21}/\n",
            "SIGTERM or Ctrl-C stops them\n",
        ]
        address = f"--address=127.0.0.1:{port + 11}"  # nsqlookupd knows the nsqd
        until("registered", lambda: main(["create", "orders/billing", address]) == 0)
        assert main(["pub", "orders", "kept", address]) == 0
        assert NsqdApi(f"127.0.0.1:{port + 21}").ping() is None
        pids = up.daemons()
        assert len(pids) == 3
        assert up.end() == (0, "")
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with running(port, tmp_path) as up:
        up.read_labels()
        (topic,) = up.api.stats("orders")["topics"]
        assert topic["channels"][0]["depth"] == 1
        assert up.end(signal.SIGTERM) == (0, "")


def test_a_daemon_that_dies_ends_the_others(tmp_path: Path) -> None:
    with running(free_port(), tmp_path) as up:
        up.read_labels()
        first, *rest = up.daemons()
        os.kill(first, signal.SIGKILL)
        _, error = up.process.communicate(timeout=120)
        assert up.process.returncode == 1
        assert "nsqlookupd ended with status -9" in error
        assert not any(Path(f"/proc/{pid}").exists() for pid in rest)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_kill_leaves_no_daemon(tmp_path: Path) -> None:
    with running(free_port(), tmp_path) as up:
        up.read_labels()
        pids = up.daemons()
        up.process.kill()
        try:
            up.process.communicate(timeout=60)  # ends when the daemons end, which have its stderr
        except subprocess.TimeoutExpired:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            raise


@pytest.mark.parametrize("count", [2, 3])
def test_repeated_signals_leave_no_process(tmp_path: Path, count: int) -> None:
    with running(free_port(), tmp_path) as up:
        up.read_labels()
        pids = up.daemons()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[:count]:
            up.process.send_signal(number)
        up.process.communicate(timeout=120)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_signal_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    with running(free_port(), tmp_path) as up:
        until("a daemon starts", lambda: bool(up.daemons()))
        pids = up.daemons()
        assert up.end() == (0, "")
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_taken_port_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        assert main(["up", f"--port={port}", f"--data-path={tmp_path}"]) == 1
    error = capfd.readouterr().err
    assert f"127.0.0.1:{port + 1}, for nsqd, is in use: stop what runs there, or give another --port" in error


def test_up_names_the_missing_server_extra(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find: Callable[..., object] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "aiohttp" else find(name, *more)
    )
    assert main(["up", f"--data-path={tmp_path}/data"]) == 1
    assert "pip install 'nsq[server]'" in capfd.readouterr().err
    assert not (tmp_path / "data").exists()
