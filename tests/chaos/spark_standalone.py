"""A standalone cluster of Spark on this machine: a master, and two workers with two cores each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.integration.patience import eventually

_PATIENCE = 300.0
_URL = re.compile(r"spark://[0-9.]+:\d+")
_MASTER = ("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_WORKER = ("worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0")


class Standalone:
    def __init__(self, home: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.url = ""
        self._home = home
        self._folder = folder
        self._environment = {**environment, "SPARK_DAEMON_MEMORY": "256m"}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.workers: list[int] = []

    @contextmanager
    def running(self) -> Iterator[Standalone]:
        try:
            self._start(_MASTER)
            said = eventually(self._said, _URL.search, _PATIENCE)
            self.url = _URL.findall(said)[0]
            for _ in range(2):
                self._start_worker()
            yield self
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait(_PATIENCE)

    def replace_worker(self, pid: int) -> None:
        self.workers.remove(pid)
        process = self._processes.pop(pid)
        process.kill()
        process.wait(_PATIENCE)
        self._start_worker()

    def _start_worker(self) -> None:
        work = self._folder / "work"
        self.workers.append(self._start((*_WORKER, "--work-dir", str(work), self.url)))

    def _start(self, command: tuple[str, ...]) -> int:
        name, *arguments = command
        with (self._folder / "cluster").open("ab") as said:
            process = subprocess.Popen(
                [self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=said,
                stderr=said,
            )
        self._processes[process.pid] = process
        return process.pid

    def _said(self) -> str:
        return (self._folder / "cluster").read_text(errors="replace")
