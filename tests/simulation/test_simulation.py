"""Runs the schedules and fixed seeds, in processes of their own: there the package is imported anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = "1-24"


def _simulate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_the_schedules_hold() -> None:
    done = _simulate("--schedule", "all")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fixed_seeds_find_nothing() -> None:
    done = _simulate("--seeds", SEEDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seeds", ["5-8"])
def test_a_seed_gives_the_same_run_again(seeds: str) -> None:
    first, second = (_simulate("--seeds", seeds, PYTHONHASHSEED=each).stdout for each in ("1", "2"))
    assert "hash" in first
    assert first.rpartition("hash")[2] == second.rpartition("hash")[2]
