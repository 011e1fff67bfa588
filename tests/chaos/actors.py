"""The client processes of the chaos tests: each is started, killed, stopped and started again, and records
into a file of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LAST_WORDS = 60.0


@dataclass
class Life:
    """One process of an actor. ``timeout`` is that of the stop that it was asked for."""

    actor: Actor
    number: int
    path: Path
    process: subprocess.Popen[str]
    timeout: float | None = None
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return f"{self.actor.name} {self.number}"


class Actor:
    """Runs a program with ``plan``, to which each process adds a file, a number and a seed of its own."""

    def __init__(self, name: str, module: str, plan: dict[str, Any], directory: Path) -> None:
        self.name = name
        self.lives: list[Life] = []
        self._module = module
        self._plan = plan
        self._directory = directory
        self._said = directory / f"{name}.stderr"

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def consumes(self) -> bool:
        return "channel" in self._plan

    def start(self, number: int) -> None:
        """Start a process with a number of its own."""
        path = self._directory / f"{self.name}-{number}.records"
        path.touch()
        seed = f"{self._plan['seed']} {self.name} {number}"
        plan = {**self._plan, "file": str(path), "incarnation": number, "seed": seed}
        with self._said.open("a") as said:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", f"tests.chaos.{self._module}", json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self.lives.append(Life(self, number, path, process))

    def kill(self) -> None:
        self.life.process.kill()
        self.life.process.communicate()

    def ask_to_stop(self, timeout: float) -> None:
        life = self.life
        life.timeout = timeout
        assert life.process.stdin is not None
        life.process.stdin.write(f"{timeout}\n")
        life.process.stdin.flush()

    def hear(self) -> list[Life]:
        """Wait for the processes that were asked to stop; return them, with their reports."""
        for life in self.lives:
            if life.timeout is not None and not life.report:
                said, _ = life.process.communicate(timeout=life.timeout + _LAST_WORDS)
                assert life.process.returncode == 0, f"{life.words} ended badly: {self.stderr}"
                life.report = json.loads(said)
        return [life for life in self.lives if life.report]

    @property
    def stderr(self) -> str:
        return self._said.read_text() if self._said.exists() else ""

    def end(self) -> None:
        """Kill the processes that still run."""
        for life in self.lives:
            if life.process.poll() is None:
                life.process.kill()
            life.process.communicate()
