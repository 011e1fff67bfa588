"""Runs the schedules and fixed seeds, in processes of their own: there the package is imported anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _simulate(*arguments: str, **environment: str) -> str:
    command, variables = [sys.executable, "-m", "tests.simulation", *arguments], os.environ | environment
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_schedules_hold() -> None:
    _simulate("--schedule", "all")


def test_the_fixed_seeds_find_nothing() -> None:
    _simulate("--seeds", "1210-1221")  # among them each focus, and all kinds of faults but one


def test_a_seed_gives_the_same_run_again() -> None:
    hashes = {
        _simulate("--seeds", "1210-1212", PYTHONHASHSEED=each).partition("hash ")[2] for each in ("1", "2")
    }
    assert len(hashes) == 1
    assert "" not in hashes
