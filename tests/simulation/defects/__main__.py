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
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tests.simulation import run, world
from tests.simulation.plan import Plan, draw

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
#: How much of a violation the table shows, and how much of it says what kind it is.
_SHOWN, _TELLING = 110, 44


def patches() -> list[Path]:
    return sorted(HERE.glob("*.patch"))


def apply(patch: Path, tree: Path, *options: str) -> None:
    """Apply a patch to a tree, exactly. Raises CalledProcessError if it does not fit."""
    environment = os.environ | {"GIT_DIR": str(tree / "none")}  # paths are the tree's, not a repository's
    subprocess.run(
        ["git", "apply", *options, str(patch)], cwd=tree, env=environment, check=True, capture_output=True
    )


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


def kind(outcome: run.Outcome) -> str:
    """Return the violation's beginning without numbers: enough to tell two promises, or two topics, apart."""
    return re.sub("[0-9]+", "#", outcome.violations[0])[:_TELLING]


def put_back(patch: Path, tree: Path, first: int, cpu: float, known: set[str]) -> str:
    """Hunt one defect; return its row of the table. ``known`` are kinds of violations without any defect."""
    spent, seed, verdict, violation = 0.0, first, "-", ""
    while spent < cpu and not violation:
        apply(patch, tree)
        try:
            outcome, took = hunt(tree, seed, cpu - spent)
        finally:
            apply(patch, tree, "--reverse")
        last = outcome.plan.seed
        spent, seed = spent + took, last + 1
        # Judge by the plan that failed, too: a patch moves the statements at which its threads stand still.
        if outcome.violations and not any(
            hunt(tree, last, cpu, plan)[0].violations for plan in (outcome.plan, draw(last))
        ):
            verdict = "perhaps" if kind(outcome) in known else "found"
            violation = f"seed {last}: {' '.join(outcome.violations[0].split())[:_SHOWN]}"
    return f"{patch.stem:36} {verdict:8} {spent:6.0f} {seed - first:6}  {violation}".rstrip()


def known_kinds(tree: Path, first: int, cpu: float) -> set[str]:
    """Return the kinds of violations that there are without any defect, and print them."""
    spent, seed, known = 0.0, first, set[str]()
    while spent < cpu:
        outcome, took = hunt(tree, seed, cpu - spent)
        spent, seed = spent + took, outcome.plan.seed + 1
        if outcome.violations:
            known.add(kind(outcome))
            print(f"without any defect, seed {seed - 1}: {outcome.violations[0][:300]}", flush=True)
    print(f"without any defect: {seed - first} seeds from {first}, {spent:.0f} CPU s\n")
    return known


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.defects",
        description=textwrap.dedent(__doc__),
        epilog="'perhaps': the unpatched tree has violations of this kind, though not with this seed.",
    )
    parser.add_argument("names", nargs="*", help="the defects (default: all)")
    parser.add_argument("--cpu", type=float, default=600.0, help="CPU seconds for each (default: 600)")
    parser.add_argument("--first", type=int, help="the first seed of each (default: by chance)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # for ``hunt``
    options = parser.parse_args(arguments)
    if options.here:
        sys.stdout.buffer.write(pickle.dumps(hunt_here(*pickle.load(sys.stdin.buffer))))
        return
    chosen = [HERE / f"{name}.patch" for name in options.names] or patches()
    if missing := [patch.stem for patch in chosen if not patch.exists()]:
        parser.error(f"there is no defect {', '.join(missing)}; there are the files in {HERE}")
    first = random.SystemRandom().randrange(10**6) * 1000 if options.first is None else options.first
    with tempfile.TemporaryDirectory(prefix="nsq-defects-") as directory:
        tree = Path(directory) / "tree"
        for part in ("nsq", "tests/simulation"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        known = known_kinds(tree, first, options.cpu)
        print(f"{'defect':36} {'':8} {'CPU s':>6} {'seeds':>6}  violation", flush=True)
        rows = []
        for patch in chosen:
            rows.append(put_back(patch, tree, first, options.cpu, known))
            print(rows[-1], flush=True)
    print(f"\n{sum(' found ' in row for row in rows)} of {len(rows)} found")


if __name__ == "__main__":
    main()
