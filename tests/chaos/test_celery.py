"""Celery on a durable nsqd, while workers are killed, time limits end tasks, and nsqd restarts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import chord
from kombu.exceptions import OperationalError

import nsq
from nsq.contrib.celery.broker import close_brokers
from nsq.testing import Nsqd
from tests.contrib.celery.conftest import Site

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

TASKS = int(os.environ.get("NSQ_CHAOS_TASKS", "10000"))
POOLS = {
    "w1": ("-P", "prefork", "-c", "4"),
    "w2": ("-P", "threads", "-c", "4"),
    "w3": ("-P", "gevent", "-c", "8"),
}
SECONDS = 600.0
#: Seconds that a task hangs if no time limit ends it before.
HANG = 4.0


def published(publish: Callable[[], object]) -> None:
    """Publish, again and again while nsqd is away."""
    while True:
        try:
            publish()
            return
        except (OperationalError, nsq.NsqError):
            time.sleep(0.2)


def publish_all(site: Site) -> None:
    """Publish plain tasks, tasks with a countdown, tasks that retry, tasks that hang until a time limit ends
    them, and a chord for every thousand.
    """
    tasks, chance = site.tasks, random.Random(8)
    for number in range(TASKS):
        if number % 20 == 0:
            published(lambda number=number: tasks.fail_once.delay(number))  # type: ignore[misc]
        elif number % 20 == 1:
            published(lambda number=number: tasks.run.apply_async((number,), countdown=2.0))  # type: ignore[misc]
        elif number % 50 == 2:
            limit = {chance.choice(["time_limit", "soft_time_limit"]): chance.uniform(0.5, 1.5)}
            published(
                lambda number=number, limit=limit: tasks.hang_at_first.apply_async((number, HANG), **limit)  # type: ignore[misc]
            )
        else:
            published(lambda number=number: tasks.run.delay(number))  # type: ignore[misc]
        if number % 1000 == 0:
            parts = [tasks.run.s(TASKS + number + part) for part in range(5)]
            published(lambda parts=parts, number=number: chord(parts)(tasks.sum_up.s(number)))  # type: ignore[misc]


def children_of(pid: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(each) for each in done.stdout.split()]


def test_every_task_is_done_while_workers_are_killed_and_nsqd_restarts(tmp_path: Path) -> None:
    chance = random.Random(7)
    (tmp_path / "results").mkdir()
    with Nsqd(process=True, durable=True) as nsqd:
        site = Site(
            f"nsq://{nsqd.tcp_address}?max_deaths=0",
            tmp_path,
            BACKEND=f"file://{tmp_path}/results",
            LATE="1",
        )
        try:
            workers = {name: site.worker(*options, name=name) for name, options in POOLS.items()}
            publisher = threading.Thread(target=publish_all, args=(site,), name="publisher")
            publisher.start()
            numbers = set(range(TASKS)) | {
                TASKS + chord_number + part for chord_number in range(0, TASKS, 1000) for part in range(5)
            }
            wanted = {f"done {number}" for number in numbers}
            wanted |= {f"sum {number}" for number in range(0, TASKS, 1000)}
            deadline = time.monotonic() + SECONDS
            faults: Counter[str] = Counter()
            while wanted - set(site.runs):
                left = sorted(wanted - set(site.runs))
                assert time.monotonic() < deadline, f"{len(left)} are not done: {left[:10]}; {dict(faults)}"
                time.sleep(chance.uniform(1.0, 3.0))
                if not publisher.is_alive() and faults.total() > 12:
                    continue  # enough: now the rest must come
                fault = chance.choice(["worker", "child", "child", "nsqd"])
                faults[fault] += 1
                if fault == "nsqd":
                    nsqd.stop(keep_data=True)
                    time.sleep(chance.uniform(0.0, 1.5))
                    nsqd.start()
                elif fault == "child" and (children := children_of(workers["w1"].pid)):
                    os.kill(chance.choice(children), signal.SIGKILL)
                elif fault == "worker":
                    name = chance.choice(list(workers))
                    for pid in [workers[name].pid, *children_of(workers[name].pid)]:
                        os.kill(pid, signal.SIGKILL)
                    workers[name].wait()
                    workers[name] = site.worker(*POOLS[name], name=name)
            publisher.join()
            counts = Counter(line for line in site.runs if line.split()[0] in ("done", "sum"))
            again = sum(count - 1 for count in counts.values())
            ended = Counter(line.split()[0] for line in site.runs)
            print(f"{TASKS} tasks, {dict(faults)}, {dict(ended)}: {again} ran again")
            # Some hung until a soft limit, some until a hard one, or until their process was killed.
            assert ended["limited"] > 0
            assert ended["hang"] > ended["limited"] + ended["slept"]
            # Each killed worker may repeat what it held, each restart what was published and not answered.
            assert again <= 200 * faults.total()
        finally:
            site.close()
            close_brokers()
