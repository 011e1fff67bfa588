"""Compares NSQ with Redis as Celery's broker: ``python -m benchmarks.celery_brokers [TASKS] [ROUNDS]``.

Needs redis-server and the Python package redis. The brokers take turns; nsqd runs in its default mode, Redis
without persistence. The tasks write one byte. A ratio says how many times better NSQ is than Redis.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.usage import cpu_seconds
from nsq.testing import Nsqd

APPLICATION = """
import os, time
from celery import Celery

app = Celery("noop", broker=os.environ["BROKER"])
app.conf.task_ignore_result = True
output = os.open(os.environ["OUTPUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task
def run(number):
    os.write(output, b".")

@app.task
def note_delay(published):
    os.write(output, b"%9.6f " % (time.time() - published))
"""
NOTE_SIZE = 10
PUBLISHER = """
import sys, threading, time
from noop import run

each, threads = int(sys.argv[1]) // int(sys.argv[2]), int(sys.argv[2])

def publish():
    for number in range(each):
        run.delay(number)

run.delay(0)
workers = [threading.Thread(target=publish) for _ in range(threads)]
began, used = time.perf_counter(), time.process_time()
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
count = each * threads
print(count / (time.perf_counter() - began), (time.process_time() - used) / count)
"""
SLOW_PUBLISHER = """
import sys, time
from noop import note_delay

for _ in range(int(sys.argv[1])):
    note_delay.delay(time.time())
    time.sleep(0.02)
"""
#: The worker's pool and size, and the threads that publish.
PARTS = [("prefork", 2, 1), ("threads", 4, 4)]
#: Tasks that are done before the time counts, and seconds to wait for a worker.
WARM_UP, PATIENCE = 300, 120.0
#: Seconds for a worker to start and become idle, and to stay idle; then tasks whose delay is measured.
SETTLING, IDLE, NOTED = 5.0, 15.0, 100


@contextmanager
def nsqd() -> Iterator[str]:
    with Nsqd(process=True) as daemon:
        yield f"nsq://{daemon.tcp_address}"


@contextmanager
def redis() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    # A session of its own, as nsqd has: on a busy machine Linux shares the cores out by session.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        time.sleep(1.0)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


class Application:
    """The application in a directory of its own, and the file that its tasks write."""

    def __init__(self, broker: str, directory: str) -> None:
        Path(directory, "noop.py").write_text(APPLICATION)
        self.output = Path(directory, "output")
        self.output.touch()
        path = os.pathsep.join([directory, os.environ.get("PYTHONPATH", "")])
        self._environment = os.environ | {"BROKER": broker, "OUTPUT": str(self.output), "PYTHONPATH": path}

    def program(self, text: str, *arguments: int) -> list[float]:
        """Run a program of the application; return the numbers that it prints."""
        command = [sys.executable, "-c", text, *map(str, arguments)]
        done = subprocess.run(
            command, env=self._environment, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE
        )
        return [float(word) for word in done.stdout.split()]

    @contextmanager
    def worker(self, pool: str, size: int) -> Iterator[int]:
        """Run a worker; yield its process group."""
        command = [sys.executable, "-m", "celery", "-A", "noop", "worker", "-l", "ERROR", "-P", pool]
        worker = subprocess.Popen(
            [*command, "-c", str(size)],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield worker.pid
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def await_output(self, size: int) -> int:
        """Wait until the tasks have written so many bytes; return how many there are."""
        deadline = time.monotonic() + PATIENCE
        while (written := self.output.stat().st_size) < size:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the tasks have written {written} of {size} bytes in {PATIENCE:g} s")
            time.sleep(0.005)
        return written


def rates(application: Application, tasks: int, pool: str, size: int, threads: int) -> dict[str, float]:
    """Publish all tasks, then have a worker work them off."""
    published, used = application.program(PUBLISHER, tasks, threads)
    with application.worker(pool, size):
        before = application.await_output(WARM_UP)
        began = time.perf_counter()
        done = application.await_output(tasks) - before
        worked = done / (time.perf_counter() - began)
    return {
        f"published a second, {threads} threads": published,
        f"µs of CPU for a publish, {threads} threads": used * 1e6,
        f"worked off a second, {pool} × {size}": worked,
    }


def waiting(application: Application) -> dict[str, float]:
    """Let a worker idle, then give it one task after the other."""

    def used() -> float:
        return sum(cpu_seconds(pid) for pid in processes(group))

    with application.worker("prefork", 2) as group:
        application.program(SLOW_PUBLISHER, 1)
        application.await_output(NOTE_SIZE)
        time.sleep(SETTLING)
        before = used()
        time.sleep(IDLE)
        idle = (used() - before) / IDLE
        application.program(SLOW_PUBLISHER, NOTED)
        application.await_output(NOTE_SIZE * (NOTED + 1))
    delays = [float(word) for word in application.output.read_text().split()[1:]]
    return {
        "% of a core that an idle worker takes": idle * 100,
        "ms from delay() to the begin of the task": statistics.median(delays) * 1000,
    }


def processes(group: int) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and os.getpgid(int(entry.name)) == group
    ]


def main() -> None:
    # At SIGTERM it still stops what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = list(map(int, sys.argv[1:]))
    tasks, rounds = given + [6000, 3][len(given) :]
    parts: list[Callable[[Application], dict[str, float]]] = [
        *(lambda application, part=part: rates(application, tasks, *part) for part in PARTS),
        waiting,
    ]
    for _ in range(rounds):
        for part in parts:
            measured = []
            for broker in (nsqd, redis):
                with tempfile.TemporaryDirectory() as directory, broker() as url:
                    measured.append(part(Application(url, directory)))
            for name, ours in measured[0].items():
                theirs = measured[1][name]
                better = ours / theirs if "a second" in name else theirs / max(ours, 1e-9)
                print(f"{name:45} NSQ {ours:8.2f}  Redis {theirs:8.2f}  × {better:.2f}", flush=True)


if __name__ == "__main__":
    main()
