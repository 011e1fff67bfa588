"""``python -m tests.simulation``: runs seeds. See README.md beside this file."""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial

from tests.simulation import run, world
from tests.simulation.plan import draw


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed, and print its story")
    parser.add_argument("--seeds", help="run FIRST-LAST")
    parser.add_argument("--minutes", type=float, default=10.0, help="run new seeds for so long")
    parser.add_argument("--schedule", help="run a schedule by name, with its story; all: run all")
    options = parser.parse_args()
    world.install()
    if options.schedule:
        return perform(options.schedule)
    if options.seed is not None:
        return replay(options.seed)
    if options.seeds:
        start, _, end = options.seeds.partition("-")
        return many(range(int(start), int(end or start) + 1), math.inf)
    first = random.SystemRandom().randrange(10**6) * 1000
    print(f"new seeds from {first} for {options.minutes:g} minutes", flush=True)
    return many(range(first, first + 10**6), time.monotonic() + options.minutes * 60)


def many(seeds: Iterable[int], deadline: float) -> int:
    """Run seeds; print each violation with the command that replays it, and the totals."""
    faults, totals, trace = Counter[str](), Counter[str](), hashlib.blake2b(digest_size=8)
    for seed in seeds:
        if time.monotonic() > deadline:
            break
        outcome = run.in_child(draw(seed))
        trace.update(outcome.trace.encode())
        faults += outcome.faults
        totals["seeds"] += 1
        totals["failed"] += bool(outcome.violations)
        for name in ("confirmed", "handled", "virtual", "cpu"):
            totals[name] += getattr(outcome, name)
        if outcome.violations:
            print(f"seed {seed} ({outcome.plan.focus}): {outcome.violations[0][:1500]}")
            print(f"    replay: make simulate SEED={seed}", flush=True)
    print(
        f"{totals['seeds']} seeds, {totals['failed']} failed; {faults.total()} faults, "
        f"{totals['confirmed']} messages confirmed, {totals['handled']} handled; "
        f"{totals['virtual']:.0f} s of virtual time in {totals['cpu']:.1f} s of CPU; hash {trace.hexdigest()}"
    )
    print("faults: " + ", ".join(f"{kind} {number}" for kind, number in sorted(faults.items())))
    return min(totals["failed"], 1)


def replay(seed: int) -> int:
    """Run a seed, shrink its plan if it fails, and print its story."""
    outcome = run.in_child(draw(seed))
    if outcome.violations:
        outcome = run.shrink(outcome, lambda line: print(line, file=sys.stderr, flush=True))
        print("The plan, shrunk:", outcome.plan)
    outcome = run.in_child(outcome.plan, story=True)
    for violation in outcome.violations:
        print("VIOLATION", violation)
    print(f"seed {seed}: hash {outcome.trace}, {outcome.virtual:.1f} virtual s, {outcome.cpu:.2f} CPU s")
    return min(len(outcome.violations), 1)


def perform(name: str) -> int:
    """Run all schedules, or one, with its story; print what does not hold."""
    from tests.simulation import schedules  # which imports the package

    names = [each for each in vars(schedules.Schedules) if not each.startswith("_")]
    failed = 0
    for each in names if name == "all" else [name]:
        violations = run.child_of(partial(schedules.perform, each, None if name == "all" else print))
        print("\n    ".join([f"{'FAILED' if violations else 'ok    '} {each}", *violations]), flush=True)
        failed |= bool(violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
