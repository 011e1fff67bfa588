"""Puts defects back, one at a time, into a copy of the tree, and measures how much CPU time the simulation
needs to find each. ``NAME.patch`` begins with what the defect was. A violation counts only if its seed is
clean without the defect.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.simulation import run, world
from tests.simulation.plan import Plan, draw

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def apply(patch: Path, tree: Path, *options: str) -> None:
    """Apply a patch to a tree, exactly. Raises CalledProcessError if it does not fit."""
    environment = os.environ | {"GIT_DIR": str(tree / "none")}  # paths are the tree's, not a repository's
    command = ["git", "apply", *options, str(patch)]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)


def hunt(tree: Path, *task: object) -> tuple[run.Outcome, float]:
    """Call ``hunt_here`` in a process of its own, with the package of ``tree``."""
    command = [sys.executable, "-m", "tests.simulation.defects", "--here"]
    environment = os.environ | {"TMPDIR": str(tree.parent)}  # of the cache of the package's code
    done = subprocess.run(
        command, cwd=tree, env=environment, check=True, input=pickle.dumps(task), stdout=subprocess.PIPE
    )
    return pickle.loads(done.stdout)  # type: ignore[no-any-return]


def hunt_here(first: int, cpu: float, plan: Plan | None = None) -> tuple[run.Outcome, float]:
    """Run seeds from ``first`` on, until one fails or the CPU time is used up, or run ``plan``. Return the
    last outcome, and the CPU seconds.
    """
    world.install()
    for seed in itertools.count(first):
        outcome = run.in_child(plan or draw(seed))
        spent = sum(os.times()[:4])
        if plan or outcome.violations or spent > cpu:
            break
    return outcome, spent


def put_back(patch: Path, tree: Path, first: int, cpu: float) -> str:
    """Hunt one defect; return its row of the table."""
    spent, seed, found = 0.0, first, ""
    while spent < cpu and not found:
        apply(patch, tree)
        outcome, took = hunt(tree, seed, cpu - spent)
        apply(patch, tree, "--reverse")
        last = outcome.plan.seed
        spent, seed = spent + took, last + 1
        # Judge by the plan that failed, too: a patch moves the statements at which its threads stand still.
        plans = (outcome.plan, draw(last)) if outcome.violations else ()
        if plans and not any(hunt(tree, last, cpu, plan)[0].violations for plan in plans):
            found = f"found by {last}: {' '.join(outcome.violations[0].split())[:110]}"
    return f"{patch.stem:36} {spent:6.0f} {seed - first:6}  {found}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.defects", description=__doc__)
    parser.add_argument("names", nargs="*", help="the defects (default: all)")
    parser.add_argument("--cpu", type=float, default=600.0, help="CPU seconds for each (default: 600)")
    parser.add_argument("--first", type=int, help="the first seed of each (default: by chance)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # for ``hunt``
    options = parser.parse_args()
    if options.here:
        sys.stdout.buffer.write(pickle.dumps(hunt_here(*pickle.load(sys.stdin.buffer))))
        return
    first = random.SystemRandom().randrange(10**6) * 1000 if options.first is None else options.first
    with tempfile.TemporaryDirectory(prefix="nsq-defects-") as directory:
        tree = Path(directory) / "tree"
        for part in ("nsq", "tests/simulation"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        print(f"{'defect':36} {'CPU s':>6} {'seeds':>6}", flush=True)
        for name in options.names or sorted(patch.stem for patch in HERE.glob("*.patch")):
            print(put_back(HERE / f"{name}.patch", tree, first, options.cpu), flush=True)


if __name__ == "__main__":
    main()
