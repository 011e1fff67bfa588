"""The Celery application of the tests. Every run of a task adds a line to the file RUNS."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from celery import Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded

import nsq

app = Celery("tests", broker=os.environ["BROKER"], backend=os.environ.get("BACKEND", "rpc://"))
app.conf.update(
    worker_hijack_root_logger=True,
    broker_connection_retry_on_startup=True,
    task_default_queue="celery",
    # Chords look for their parts by a task of Celery's own, which must survive a killed worker too.
    task_acks_late="LATE" in os.environ,
    task_time_limit=float(os.environ.get("TIME_LIMIT", "0")) or None,
    task_reject_on_worker_lost="LATE" in os.environ,
)


# Made before the pool forks: each process goes on with connections of its own.
producer = nsq.Producer(os.environ.get("TARGET", "127.0.0.1:1"), publish_timeout=20.0)


def note(name: str, argument: object) -> None:
    with open(os.environ["RUNS"], "a", encoding="utf-8") as file:
        file.write(f"{name} {argument}\n")


@app.task
def run(number: int) -> int:
    note("done" if "LATE" in os.environ else "run", number)
    return number


@app.task
def begin_and_end(number: int, seconds: float) -> int:
    note("begin", number)
    time.sleep(seconds)
    note("end", number)
    return number


@app.task(acks_late=True)
def begin_and_end_late(number: int, seconds: float) -> int:
    note("begin", number)
    time.sleep(seconds)
    note("end", number)
    return number


@app.task(bind=True, max_retries=2)
def fail_once(self, number: int):  # type: ignore[no-untyped-def]
    note("try", number)
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    note("done", number)
    return number


@app.task(bind=True, max_retries=None, acks_on_failure_or_timeout=False)
def hang_at_first(self, number: int, seconds: float):  # type: ignore[no-untyped-def]
    """Sleep at the first run until a time limit ends it. A hard one puts it back, a soft one retries it."""
    with open(os.environ["RUNS"], encoding="utf-8") as file:
        hangs = f"hang {number}\n" not in file.read()
    if hangs:
        note("hang", number)
        try:
            time.sleep(seconds)
            note("slept", number)  # threads know no time limits
        except SoftTimeLimitExceeded:
            note("limited", number)
            raise self.retry(countdown=0) from None
    note("done", number)
    return number


@app.task
def connections_to(port: int) -> int:
    """Count the connections of this process to a port."""
    with open("/proc/net/tcp", encoding="utf-8") as table:
        rows = [line.split() for line in table][1:]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(f":{port:04X}")}
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}") in inodes
    return found


@app.task
def sum_up(numbers: list[int], number: int) -> int:
    note("sum", number)
    return sum(numbers)


@app.task(acks_late=True, reject_on_worker_lost=True)
def kill_its_process(number: int) -> None:
    note("die", number)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(acks_late=True, reject_on_worker_lost=True)
def ask_back(number: int, runs: int) -> int:
    """Ask to be put back until the task has run so many times."""
    note("back", number)
    with open(os.environ["RUNS"], encoding="utf-8") as file:
        if file.read().count(f"back {number}\n") < runs:
            raise Reject("not yet", requeue=True)
    return number


@app.task
def publish(topic: str, number: int) -> int:
    producer.publish(topic, b"%d" % number)
    return number


@app.task
def publish_until_the_limit(topic: str, number: int) -> None:
    """Publish without a pause, until a time limit interrupts it, and note what was confirmed."""
    with suppress(SoftTimeLimitExceeded):
        for count in range(100_000):
            producer.publish(topic, b"%d-%d" % (number, count))
            note("sent", f"{number}-{count}")


@app.task
def count_order(body: dict[str, int]) -> None:
    note("order", body["order"])
