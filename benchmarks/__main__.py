"""``python -m benchmarks [suite …] [-k word] [--quick]``: prints a table. A run of whole suites under their
full load also writes results.json, and the suite's chart. With --old it compares our
columns only with those of the older package, in turns.

The exit status is 1 if a ratio misses its bar by more than the tolerance; else 2 if something could not run.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import brokers, client, daemon, partitioned, picture, report, rounds, spark, tools
from benchmarks.brokers import kills
from benchmarks.comparison import Comparison, Measure, Outcome, beside_old
from benchmarks.processes import Broken, package_of

SUITES: dict[str, Callable[[], Sequence[Comparison]]] = {
    "client": client.comparisons,
    "daemon": daemon.comparisons,
    "partitioned": partitioned.comparisons,
    "spark": spark.comparisons,
    "tools": tools.comparisons,
    "brokers": brokers.comparisons,
    "brokers-kill": kills.comparisons,
}

#: Run only if they are named: they take long, and need other brokers.
NAMED = ("brokers", "brokers-kill")

#: The suites that --old can run.
WITH_OLD = ("client", "daemon", "partitioned")

RESULTS = Path(__file__).with_name("results.json")
#: The suites that have a picture, and where.
PICTURES = {
    "client": Path(__file__).with_name("results.svg"),
    "brokers": Path(__file__).parents[1] / "docs" / "images" / "brokers.svg",
}

ROUNDS, QUICK_ROUNDS = 7, 3
QUICK_SCALE = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    count, scale = (QUICK_ROUNDS, QUICK_SCALE) if arguments.quick else (ROUNDS, 1.0)
    # At SIGTERM it still stops the servers that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    try:
        usual = [each for each in SUITES if each not in NAMED] if arguments.old is None else WITH_OLD
        chosen = _chosen(arguments.suites or usual, arguments.k)
        if arguments.old is not None:
            with_old = functools.partial(_with_old, arguments.old)
            chosen = {
                suite: [beside_old(each, with_old) for each in comparisons]
                for suite, comparisons in chosen.items()
            }
        suites = {
            suite: [rounds.run(each, arguments.rounds or count, scale, progress) for each in comparisons]
            for suite, comparisons in chosen.items()
        }
    except Broken as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    outcomes = [outcome for measured in suites.values() for outcome in measured]
    print(report.table(outcomes))
    if not (arguments.old or arguments.k or arguments.quick):
        _save(suites)
        for suite in suites.keys() & PICTURES.keys():
            PICTURES[suite].write_text(
                picture.draw([each for each in suites[suite] if each.comparison.pictured])
            )
    if any(verdict.failed for outcome in outcomes for verdict in outcome.judge()):
        return 1
    return 2 if any(outcome.comparison.absent for outcome in outcomes) else 0


def _with_old(checkout: Path, measure: Measure) -> Measure:
    def measured(scale: float) -> Sequence[float]:
        with package_of(checkout):
            return measure(scale)

    return measured


def _chosen(suites: Sequence[str], words: Sequence[str]) -> dict[str, list[Comparison]]:
    found = {
        suite: [each for each in SUITES[suite]() if all(word in each.name for word in words)]
        for suite in suites
    }
    chosen = {suite: comparisons for suite, comparisons in found.items() if comparisons}
    if not chosen:
        raise Broken(f"nothing is called {' and '.join(words)}")
    return chosen


def _save(suites: dict[str, list[Outcome]]) -> None:
    """Write the results of these suites; the others keep their former ones."""
    circumstances = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    before = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    kept = {suite: before[suite] for suite in SUITES if suite in before}
    RESULTS.write_text(json.dumps({**kept, **report.as_json(suites, circumstances)}, indent=2) + "\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}; all by default")
    parser.add_argument(
        "-k", action="append", default=[], metavar="word", help="only comparisons with this in the name"
    )
    parser.add_argument("--quick", action="store_true", help="smaller loads, fewer rounds")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="how often each is measured")
    parser.add_argument(
        "--old", type=Path, metavar="CHECKOUT", help="compare with the package in this older checkout"
    )
    arguments = parser.parse_args(argv)
    if arguments.old is not None:
        arguments.old = arguments.old.resolve()
        if not (arguments.old / "nsq").is_dir():
            parser.error(f"--old: {str(arguments.old)!r} has no directory nsq")
        if others := set(arguments.suites) - set(WITH_OLD):
            parser.error(f"--old cannot run {', '.join(sorted(others))}, only {', '.join(WITH_OLD)}")
    for suite in arguments.suites:
        if suite not in SUITES:
            parser.error(f"there is no suite {suite!r}; there is {', '.join(SUITES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
