"""Puts defects back, one at a time, into a copy of the tree, and measures how much CPU time the simulation
needs to find each. ``NAME.patch`` begins with what the defect was. A violation counts only if its seed is
clean without the defect.
"""

from __future__ import annotations

import argparse
import json
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
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
#: How much of a violation the table shows.
_SHOWN = 110
#: How much of it says what kind it is.
_TELLING = 44
#: The plan of the last run, seen from the tree.
_PLAN = Path("../plan")


@dataclass
class Hunt:
    """What came of running seeds: the first violation, or none in the time."""

    seed: int = 0
    violation: str = ""
    seeds: int = 0
    cpu: float = 0.0

    @property
    def kind(self) -> str:
        """The violation's beginning without numbers: enough to tell two promises, or two topics, apart."""
        return re.sub("[0-9]+", "#", self.violation)[:_TELLING]


def patches() -> list[Path]:
    return sorted(HERE.glob("*.patch"))


def apply(patch: Path, tree: Path, *options: str) -> None:
    """Apply a patch to a tree, exactly. Raises CalledProcessError if it does not fit."""
    environment = os.environ | {"GIT_DIR": str(tree / "none")}  # paths are the tree's, not a repository's
    subprocess.run(
        ["git", "apply", *options, str(patch)], cwd=tree, env=environment, check=True, capture_output=True
    )


def copy_tree(target: Path) -> None:
    """Copy what a run needs."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for part in ("nsq", "tests/simulation"):
        shutil.copytree(ROOT / part, target / part, ignore=unwanted)
    for package in ROOT.glob("tests/__init__.py"):
        shutil.copy(package, target / "tests")


def hunt(tree: Path, *what: object) -> Hunt:
    """Call ``hunt_here`` in a process of its own, with the package of ``tree``."""
    command = [sys.executable, "-m", "tests.simulation.defects", "--here", *map(str, what)]
    environment = os.environ | {"TMPDIR": str(tree.parent)}  # of the cache of the package's code
    result = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE)
    return Hunt(**json.loads(result.stdout.splitlines()[-1]))


def hunt_here(first: int, most: int, cpu: float, plan: str = "") -> Hunt:
    """Run seeds from ``first`` on, until one fails or the CPU time is used up, and leave the last plan in
    ``_PLAN``; or run ``plan``.
    """
    from tests.simulation import world

    world.install()
    from tests.simulation import run

    done = Hunt()
    while done.seeds < most and done.cpu < cpu and not done.violation:
        done.seed = first + done.seeds
        outcome = run.in_child(pickle.loads(Path(plan).read_bytes()) if plan else run.plan_of(done.seed))
        done.violation = outcome.violations[0] if outcome.violations else ""
        done.seeds += 1
        done.cpu = sum(os.times()[:4])
        if not plan:
            _PLAN.write_bytes(pickle.dumps(outcome.plan))
    return done


def put_back(patch: Path, tree: Path, first: int, cpu: float, known: set[str]) -> str:
    """Hunt one defect; return its row of the table. ``known`` are kinds of violations without any defect."""
    spent, seed, verdict, violation = 0.0, first, "-", ""
    while spent < cpu and not violation:
        apply(patch, tree)
        try:
            found = hunt(tree, seed, 10**6, cpu - spent)
        finally:
            apply(patch, tree, "--reverse")
        spent, seed = spent + found.cpu, found.seed + 1
        # Judge by the plan that failed, too: a patch moves the statements at which its threads stand still.
        # That one first: the other one takes its place.
        if found.violation and not any(
            hunt(tree, found.seed, 1, cpu, *it).violation for it in ((_PLAN,), ())
        ):
            verdict = "perhaps" if found.kind in known else "found"
            violation = f"seed {found.seed}: {' '.join(found.violation.split())[:_SHOWN]}"
    return f"{patch.stem:36} {verdict:8} {spent:6.0f} {seed - first:6}  {violation}".rstrip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.defects",
        description=textwrap.dedent(__doc__),
        epilog="'perhaps': the unpatched tree has violations of this kind, though not with this seed.",
    )
    parser.add_argument("names", nargs="*", help="the defects (default: all)")
    parser.add_argument("--cpu", type=float, default=600.0, help="CPU seconds for each (default: 600)")
    parser.add_argument("--first", type=int, help="the first seed of each (default: by chance)")
    parser.add_argument("--here", nargs="+", help=argparse.SUPPRESS)  # for ``hunt``
    options = parser.parse_args(arguments)
    if options.here:
        first, most, cpu, *plan = options.here
        print(json.dumps(asdict(hunt_here(int(first), int(most), float(cpu), *plan))))
        return
    chosen = [patch for patch in patches() if not options.names or patch.stem in options.names]
    if missing := set(options.names) - {patch.stem for patch in chosen}:
        parser.error(f"there is no defect {', '.join(sorted(missing))}; there are the files in {HERE}")
    first = random.SystemRandom().randrange(10**6) * 1000 if options.first is None else options.first
    with tempfile.TemporaryDirectory(prefix="nsq-defects-") as directory:
        tree = Path(directory) / "tree"
        copy_tree(tree)
        spent, seed, known = 0.0, first, set[str]()
        while spent < options.cpu:
            step = hunt(tree, seed, 10**6, options.cpu - spent)
            spent, seed = spent + step.cpu, step.seed + 1
            if step.violation:
                known.add(step.kind)
                print(f"without any defect, seed {step.seed}: {step.violation[:300]}", flush=True)
        print(f"without any defect: {seed - first} seeds from {first}, {spent:.0f} CPU s\n")
        print(f"{'defect':36} {'':8} {'CPU s':>6} {'seeds':>6}  violation", flush=True)
        rows = []
        for patch in chosen:
            rows.append(put_back(patch, tree, first, options.cpu, known))
            print(rows[-1], flush=True)
    found = sum(" found " in row for row in rows)
    print(f"\n{found} of {len(rows)} found")


if __name__ == "__main__":
    main()
