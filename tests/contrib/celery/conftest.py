"""Fixtures of the Celery tests: an application, and workers in processes of their own."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq.contrib.celery.broker import close_brokers

PATIENCE = 60.0
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def no_broker_left() -> Iterator[None]:
    yield
    close_brokers()


class Site:
    """A Celery application at a broker, the file of its tasks' runs, and its workers."""

    def __init__(self, broker: str, directory: Path, **environment: str) -> None:
        self.broker = broker
        self.runs_file = directory / "runs"
        self.runs_file.touch()
        self._directory = directory
        self._workers: list[subprocess.Popen[bytes]] = []
        own = {"BROKER": broker, "RUNS": str(self.runs_file), **environment}
        self.environment = os.environ | own
        sys.modules.pop("tests.contrib.celery.tasks", None)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in own.items():
                patch.setenv(name, value)
            self.tasks: Any = importlib.import_module("tests.contrib.celery.tasks")
        self.app = self.tasks.app

    def worker(
        self, *options: str, name: str = "w1", quiet: bool = True, python: str = sys.executable
    ) -> subprocess.Popen[bytes]:
        """Start a worker, and return when it is ready."""
        log = self._directory / f"{name}.log"
        lonely = ("--without-mingle", "--without-gossip") if quiet else ()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [python, "-m", "celery", "-A", "tests.contrib.celery.tasks", "worker", "-l", "INFO",
                 "-n", f"{name}@here", *lonely, *options],
                env=self.environment | {"PYTHONPATH": str(ROOT)}, cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._workers.append(process)
        wait_for(lambda: "ready." in self.log(name) or process.poll() is not None, lambda: self.log(name))
        assert process.poll() is None, self.log(name)
        return process

    def log(self, name: str = "w1") -> str:
        return (self._directory / f"{name}.log").read_text("utf-8", "replace")

    @property
    def runs(self) -> list[str]:
        return self.runs_file.read_text("utf-8").splitlines()

    def wait_for_runs(self, count: int, seconds: float = PATIENCE) -> list[str]:
        wait_for(lambda: len(self.runs) >= count, lambda: f"{self.runs}\n{self.log()}", seconds)
        return self.runs

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)

    def close(self) -> None:
        for process in self._workers:
            if process.poll() is None:
                process.terminate()
        for process in self._workers:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
        self.app.close()
        # The pool of connections that `delay` uses belongs to the application, results to its backend.
        self.app.pool.force_close_all()
        consumer = getattr(self.app.backend, "result_consumer", None)
        if consumer is not None and consumer._consumer is not None:
            consumer.stop()


def wait_for(condition: Callable[[], object], explain: Callable[[], str], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path, nsqd_factory: object) -> Iterator[Callable[..., Site]]:
    """Make a site at a broker: ``site("nsq://127.0.0.1:4150")``. Its workers end before their nsqd."""
    sites: list[Site] = []

    def make(broker: str, **environment: str) -> Site:
        sites.append(Site(broker, tmp_path, **environment))
        return sites[-1]

    yield make
    for each in sites:
        each.close()
