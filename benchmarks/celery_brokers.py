"""Compares NSQ with Redis as Celery's broker: ``python -m benchmarks.celery_brokers [TASKS] [ROUNDS]``.

Needs redis-server and the Python package redis. Publishes tasks that write one byte, then lets a worker work
them off. The brokers take turns; nsqd runs in its default mode, Redis without persistence.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsq.testing import Nsqd

APPLICATION = """
import os
from celery import Celery

app = Celery("noop", broker=os.environ["BROKER"])
app.conf.task_ignore_result = True
output = os.open(os.environ["OUTPUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task
def run(number):
    os.write(output, b".")
"""
PUBLISHER = """
import sys, threading, time
from noop import run

each, threads = int(sys.argv[1]) // int(sys.argv[2]), int(sys.argv[2])

def publish():
    for number in range(each):
        run.delay(number)

run.delay(0)
workers = [threading.Thread(target=publish) for _ in range(threads)]
began = time.perf_counter()
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(each * threads / (time.perf_counter() - began))
"""
#: The worker's pool and size, and the threads that publish.
PARTS = [("prefork", 2, 1), ("threads", 4, 4)]
#: Tasks that are done before the time counts, and seconds to wait for a worker.
WARM_UP, PATIENCE = 300, 120.0
REDIS_PORT = 26399


@contextmanager
def nsqd() -> Iterator[str]:
    with Nsqd(process=True) as daemon:
        yield f"nsq://{daemon.tcp_address}"


@contextmanager
def redis() -> Iterator[str]:
    command = ["redis-server", "--port", str(REDIS_PORT), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(1.0)
        yield f"redis://127.0.0.1:{REDIS_PORT}/0"
    finally:
        process.terminate()
        process.wait()


def measure(broker: str, place: Path, tasks: int, pool: str, size: int, threads: int) -> tuple[float, float]:
    """Return how many tasks a second were published, and worked off."""
    output = place / f"output-{time.time_ns()}"
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"BROKER": broker, "OUTPUT": str(output), "PYTHONPATH": path}
    command = [sys.executable, "-c", PUBLISHER, str(tasks), str(threads)]
    published = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "noop", "worker", "-l", "ERROR", "-P", pool, "-c", str(size)],
        env=environment,
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for_size(output, WARM_UP)
        began, before = time.perf_counter(), output.stat().st_size
        wait_for_size(output, tasks)
        return float(published), (output.stat().st_size - before) / (time.perf_counter() - began)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def wait_for_size(output: Path, size: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while output.stat().st_size < size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{output.stat().st_size} of {size} tasks are done after {PATIENCE:g} s")
        time.sleep(0.005)


def main() -> None:
    tasks, rounds = (int(each) for each in [*sys.argv[1:], "6000", "3"][:2])
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "noop.py").write_text(APPLICATION)
        for _ in range(rounds):
            for pool, size, threads in PARTS:
                rates = {}
                for name, start in (("nsq", nsqd), ("redis", redis)):
                    with start() as broker:
                        rates[name] = measure(broker, place, tasks, pool, size, threads)
                for what, place_of in (
                    (f"publish, {threads} threads", 0),
                    (f"work, {pool} × {size}", 1),
                ):
                    ours, theirs = rates["nsq"][place_of], rates["redis"][place_of]
                    print(
                        f"{what:24} NSQ {ours:6.0f}  Redis {theirs:6.0f}  × {ours / theirs:.2f}", flush=True
                    )


if __name__ == "__main__":
    main()
