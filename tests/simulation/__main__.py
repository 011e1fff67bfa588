"""``python -m tests.simulation``: runs seeds. See README.md beside this file."""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections import Counter

from tests.simulation import world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed, and print its story")
    parser.add_argument("--seeds", help="run FIRST-LAST")
    parser.add_argument("--minutes", type=float, default=10.0, help="run new seeds for so long")
    parser.add_argument("--first", type=int, help="the first of the new seeds (default: by chance)")
    parser.add_argument("--schedule", help="run a schedule by name, with its story; all: run all")
    parser.add_argument("--quiet", action="store_true", help="with --seed: only the result, no story")
    options = parser.parse_args()
    world.install()
    from tests.simulation import run

    if options.schedule:
        return scripted(run, options.schedule, quiet=options.quiet)
    if options.seed is not None:
        return replay(run, options.seed, quiet=options.quiet)
    if options.seeds:
        first, _, last = options.seeds.partition("-")
        seeds = iter(range(int(first), int(last or first) + 1))
        deadline = float("inf")
    else:
        start = options.first if options.first is not None else random.SystemRandom().randrange(10**6) * 1000
        print(f"new seeds from {start} for {options.minutes:g} minutes", flush=True)
        seeds = iter(range(start, start + 10**6))
        deadline = time.monotonic() + options.minutes * 60
    return many(run, seeds, deadline)


def many(run, seeds, deadline) -> int:  # type: ignore[no-untyped-def]
    """Run seeds; print each violation with the command that replays it, and the totals."""
    faults: Counter[str] = Counter()
    failed: list[int] = []
    total = hashlib.blake2b(digest_size=8)
    count = confirmed = handled = 0
    virtual = cpu = 0.0
    for seed in seeds:
        if time.monotonic() > deadline:
            break
        outcome = run.in_child(run.plan_of(seed))
        total.update(outcome.trace.encode())
        count += 1
        confirmed += outcome.confirmed
        handled += outcome.handled
        virtual += outcome.virtual
        cpu += outcome.cpu
        faults += outcome.faults
        if outcome.violations:
            failed.append(seed)
            print(f"seed {seed} ({outcome.plan.focus}): {outcome.violations[0][:1500]}", flush=True)
            print(f"    replay: make simulate SEED={seed}", flush=True)
    print(
        f"{count} seeds, {len(failed)} failed; {faults.total()} faults, {confirmed} messages confirmed, "
        f"{handled} handled; {virtual:.0f} s of virtual time in {cpu:.1f} s of CPU; hash {total.hexdigest()}"
    )
    print("faults: " + ", ".join(f"{kind} {number}" for kind, number in sorted(faults.items())))
    return 1 if failed else 0


def replay(run, seed: int, *, quiet: bool) -> int:  # type: ignore[no-untyped-def]
    outcome = run.in_child(run.plan_of(seed))
    if outcome.violations and not quiet:
        outcome = run.shrink(outcome, lambda line: print(line, file=sys.stderr, flush=True))
        print("The plan, shrunk:", outcome.plan)
        outcome = run.in_child(outcome.plan, story=True)
    for violation in outcome.violations:
        print("VIOLATION", violation)
    print(f"seed {seed}: hash {outcome.trace}, {outcome.virtual:.1f} virtual s, {outcome.cpu:.2f} CPU s")
    return 1 if outcome.violations else 0


def scripted(run, name: str, *, quiet: bool) -> int:  # type: ignore[no-untyped-def]
    """Run schedules; print what does not hold."""
    from tests.simulation import schedules  # noqa: F401 - it fills the list
    from tests.simulation.script import perform
    from tests.simulation.script import schedules as known

    failed = 0
    for each in known if name == "all" else [name]:
        tell = None if quiet or name == "all" else print
        violations = run.child_of(lambda each=each, tell=tell: perform(each, tell))
        failed += bool(violations)
        print(f"{'FAILED' if violations else 'ok    '} {each}", flush=True)
        for violation in violations:
            print(f"    {violation}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
