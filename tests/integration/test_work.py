"""``nsq work``: processes that consume, die, are replaced, and stop gracefully."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsq.testing import Nsqd
from tests.integration.consuming import channel_of, clients_of, create, numbered, publish, until
from tests.integration.running_tools import ROOT

PROGRAM = """
import os, time
import nsq

def handle(message):
    time.sleep({pause})
    with open("handled", "a") as file:
        file.write(f"{{os.getpid()}} {name} {{message.body.decode()}}\\n")

consumer = nsq.Consumer("orders", "billing", nsqd="{address}", reconnect_max=0.5, rate=1000)
consumer.add_handler(handle)

def make():
    return [consumer]
"""


class Work:
    """``nsq work`` in a directory of its own, with the program app.py."""

    def __init__(self, directory: Path, nsqd: Nsqd) -> None:
        self.directory = directory
        self.nsqd = nsqd
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes]

    def write(self, name: str = "first", pause: float = 0.0, text: str = PROGRAM) -> None:
        path = self.directory / "app.py"
        path.write_text(text.format(name=name, pause=pause, address=self.nsqd.tcp_address))

    @contextmanager
    def running(self, *arguments: str, status: int = 0) -> Iterator[None]:
        with self.log.open("wb") as log:
            command = [sys.executable, "-B", "-m", "nsq", "work", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, cwd=self.directory, stderr=log, env=environment)
        try:
            yield
        except BaseException:
            self.process.kill()
            raise
        finally:
            ended = self.process.wait()
            until("its workers are gone", lambda: not clients_of(self.nsqd))
        assert ended == status, self.log.read_text()

    def connected(self, count: int = 2) -> None:
        until("connected", lambda: len(clients_of(self.nsqd)) == count)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def started(self) -> list[int]:
        """The workers that were started so far."""
        return [int(pid) for pid in re.findall(r"worker (\d+) started", self.log.read_text())]

    def handled(self) -> list[list[str]]:
        path = self.directory / "handled"
        return [line.split(" ", 2) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def work(tmp_path: Path, nsqd: Nsqd) -> Work:
    create(nsqd)
    return Work(tmp_path, nsqd)


def test_a_killed_worker_is_replaced_and_an_end_finishes_what_is_in_work(work: Work) -> None:
    work.write(pause=0.3)
    with work.running("app:consumer", "--processes=2", "--threads=4"):
        work.connected()
        before = {client["remote_address"] for client in clients_of(work.nsqd)}
        first = work.started()
        os.kill(first[0], signal.SIGKILL)

        def replaced() -> bool:
            ready = {one["remote_address"] for one in clients_of(work.nsqd) if one["ready_count"]}
            return len(ready) == 2 and len(ready - before) == 1

        until("replaced", replaced)
        publish(work.nsqd, numbered(8))
        until("in work", lambda: channel_of(work.nsqd)["in_flight_count"] == 8)
        work.terminate()
    assert sorted(body for _, _, body in work.handled()) == [body.decode() for body in numbered(8)]
    assert {int(pid) for pid, _, _ in work.handled()} == set(work.started()[1:])
    channel = channel_of(work.nsqd)
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (0, 0, 0)
    log = work.log.read_text()
    assert "ended by SIGKILL" in log
    assert "orders/billing: rate=1000 in each of 2 processes: 2000 in all" in log
    assert log.count("INFO: consuming orders/billing") == 3


@pytest.mark.parametrize("flags", [[], ["--reload"]], ids=["SIGHUP", "--reload"])
def test_the_program_is_loaded_again_a_process_at_a_time_unless_it_is_broken(
    work: Work, flags: list[str]
) -> None:
    def load_again() -> None:
        if not flags:
            work.process.send_signal(signal.SIGHUP)

    work.write("first")
    with work.running("app:make", "--processes=2", *flags):
        work.connected()
        work.write(text="1 / 0")
        load_again()
        until("failed", lambda: "ZeroDivisionError" in work.log.read_text())
        publish(work.nsqd, [b"one"])
        until("handled", lambda: len(work.handled()) == 1)
        assert len(clients_of(work.nsqd)) == 2
        work.write("second")
        old = set(work.started()[:2])
        load_again()
        until("replaced", lambda: len(set(re.findall(r"\[(\d+)\].* ended, as", work.log.read_text()))) >= 2)
        work.connected()
        publish(work.nsqd, numbered(10))
        until("handled", lambda: len(work.handled()) == 11)
        work.terminate()
    assert [name for _, name, _ in work.handled()] == ["first"] + ["second"] * 10
    assert not old & {int(pid) for pid, name, _ in work.handled() if name == "second"}


SLOW = """
from nsq.transport import default_transport

class Slow:
    def connect(self, address, *, timeout):
        time.sleep(3.0)
        return default_transport.connect(address, timeout=timeout)
""" + PROGRAM.replace("reconnect_max=0.5", "transport=Slow()")


def test_an_old_process_works_until_the_new_one_is_connected(work: Work) -> None:
    work.write()
    with work.running("app:make", "--processes=1"):
        work.connected(1)
        work.write(text=SLOW)
        work.process.send_signal(signal.SIGHUP)
        connected = set[int]()
        until(
            "replaced",
            lambda: connected.add(len(clients_of(work.nsqd))) or "ended, as" in work.log.read_text(),
        )
        work.terminate()
    assert 0 not in connected


def health(address: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=10) as reply:
            page: dict[str, Any] = json.load(reply)
            return page
    except (urllib.error.URLError, ConnectionError):
        return {"ok": False}


def test_a_worker_is_replaced_after_max_messages_and_the_health_page_shows_it(work: Work) -> None:
    work.write()
    address = "127.0.0.1:" + str(free_port())

    with work.running("app", "--processes=1", "--max-messages=3", f"--health-address={address}"):
        until("well", lambda: health(address)["ok"])
        assert health(address)["processes"][0]["consumers"][0]["topic"] == "orders"
        publish(work.nsqd, numbered(5))
        until("replaced", lambda: len(work.started()) == 2)
        _, new = work.started()
        until("well again", lambda: (page := health(address))["ok"] and page["processes"][0]["pid"] == new)
        work.terminate()
    assert len(work.handled()) == 5
    assert "ended, as it has answered" in work.log.read_text()


FAILING_FORKS = """
import errno, os
from nsq.work import supervisor

supervisor._LONGEST_PAUSE = 0.1
fork, failures = os.fork, [1, 2]

def fail_at_first():
    if failures.pop(0) if failures else 0:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()

os.fork = fail_at_first
"""


def test_a_fork_that_fails_is_tried_again(work: Work) -> None:
    work.write(text=FAILING_FORKS + PROGRAM)
    with work.running("app:consumer", "--processes=1", f"--health-address=127.0.0.1:{free_port()}"):
        work.connected(1)
        work.terminate()
    assert work.log.read_text().count("no process can be started: [Errno 11]") == 2


FAILING_PAGE = """
from pathlib import Path
from nsq.work.listening import HttpServer

serve = HttpServer.serve_forever

def fail_at_first(server, interval):
    if not Path("failed").exists():
        Path("failed").touch()
        raise OSError("too many open files")
    serve(server, interval)

HttpServer.serve_forever = fail_at_first
"""


def test_a_health_page_that_fails_is_started_again(work: Work) -> None:
    """Its error must not get into the supervisor's code, which runs below it."""
    work.write(text=FAILING_PAGE + PROGRAM)
    address = f"127.0.0.1:{free_port()}"
    with work.running("app:consumer", "--processes=1", f"--health-address={address}"):
        until("well", lambda: health(address)["ok"])
        work.terminate()
    assert work.log.read_text().count("the health page failed") == 1
    assert "no process can be started" not in work.log.read_text()


def test_a_process_that_grows_is_replaced(work: Work) -> None:
    work.write(
        text=PROGRAM.replace(
            "def handle(message):", "def handle(message, held=[]):\n    held.append(b'x' * 2**28)"
        )
    )
    with work.running("app", "--processes=1", "--max-memory=200"):
        publish(work.nsqd, [b"one"])
        until("replaced", lambda: len(work.started()) == 2)
        work.connected(1)
        work.terminate()
    assert re.search("ended, as it uses [0-9]+ MiB", work.log.read_text())
    assert [body for _, _, body in work.handled()] == ["one"]


def test_a_worker_whose_supervisor_is_killed_ends(work: Work) -> None:
    work.write()
    with work.running("app", "--processes=1", status=-signal.SIGKILL):
        work.connected(1)
        work.process.kill()
    until("it said why", lambda: "ended, as its supervisor is gone" in work.log.read_text())


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_a_module_that_runs_its_consumer_while_it_is_imported_is_refused(work: Work) -> None:
    """The workers could not use the consumer, which was started before they were forked."""
    work.write(text=f"{PROGRAM}\nconsumer.start()\nconsumer.stop()\n")
    with work.running("app:consumer", status=1):
        until("refused", lambda: work.process.poll() is not None)
    assert 'put that below `if __name__ == "__main__":`' in work.log.read_text()


def test_a_signal_a_second_after_the_first_ends_the_workers_at_once(work: Work) -> None:
    work.write(pause=300.0)
    with work.running("app:consumer", "--processes=2", "--timeout=200s"):
        work.connected()
        publish(work.nsqd, numbered(2))
        until("in work", lambda: channel_of(work.nsqd)["in_flight_count"] == 2)
        work.terminate()
        time.sleep(1.2)  # signals within a second count as one
        work.terminate()
        work.process.wait(60)
    until("back", lambda: channel_of(work.nsqd)["depth"] == 2)


FORKS = """
import os
import nsq.work

@nsq.work.before_fork
def close():
    with open("forks", "a") as file:
        file.write(f"{{os.getpid()}} {{os.getppid()}}\\n")

@nsq.work.before_fork
def fail():
    raise RuntimeError("cannot be closed")
""" + PROGRAM.replace(
    "    time.sleep({pause})\n", "    if not os.fork():\n        os._exit(0)\n    os.wait()\n"
)


def test_before_fork_is_called_by_the_supervisor_before_each_of_its_forks_alone(work: Work) -> None:
    work.write(text=FORKS)
    with work.running("app:consumer", "--processes=2"):
        work.connected()
        publish(work.nsqd, numbered(3))  # each is handled by another fork, in a worker
        until("handled", lambda: len(work.handled()) == 3)
        os.kill(work.started()[0], signal.SIGKILL)
        until("replaced", lambda: len(work.started()) == 3)
        work.terminate()
    forks = [line.split() for line in (work.directory / "forks").read_text().splitlines()]
    assert forks == [[str(work.process.pid), str(os.getpid())]] * 3
    assert work.log.read_text().count("which is called before a fork, failed") == 3
