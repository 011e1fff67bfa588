"""Runs the schedules and fixed seeds, in processes of their own: there the package is imported anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


#: Runs a seed in which threads stand still, and the plan that it leaves, which says where they did.
AGAIN = """
from tests.simulation import run, world
from tests.simulation.plan import draw
world.install()
first = run.in_child(draw(10))
assert first.plan.holds and run.in_child(first.plan).trace == first.trace
"""


def _simulate(*arguments: str, **environment: str) -> str:
    return _python("-m", "tests.simulation", *arguments, **environment)


def _python(*arguments: str, **environment: str) -> str:
    command, variables = [sys.executable, *arguments], os.environ | environment
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


def test_the_plan_that_a_run_leaves_is_the_same_run() -> None:
    _python("-c", AGAIN)
