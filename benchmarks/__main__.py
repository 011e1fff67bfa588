"""``python -m benchmarks [suite …] [-k word] [--quick]``: one table, also as results.json beside this file.

Exit status 1 when a ratio falls short of its bar by more than noise explains, 2 when something did not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import daemon, report, rounds
from benchmarks.comparison import Comparison
from benchmarks.processes import Broken

SUITES: dict[str, Callable[[], Sequence[Comparison]]] = {"daemon": daemon.comparisons}

RESULTS = Path(__file__).with_name("results.json")

ROUNDS, QUICK_ROUNDS = 7, 3
QUICK_SCALE = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    count, scale = (QUICK_ROUNDS, QUICK_SCALE) if arguments.quick else (ROUNDS, 1.0)
    # Ended from outside, it still ends the servers it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    try:
        chosen = [
            comparison
            for suite in arguments.suites or SUITES
            for comparison in SUITES[suite]()
            if all(word in comparison.name for word in arguments.k)
        ]
        if not chosen:
            raise Broken(f"nothing is called {' and '.join(arguments.k)}")
        outcomes = [
            rounds.run(comparison, arguments.rounds or count, scale, progress) for comparison in chosen
        ]
    except Broken as fault:
        print(f"benchmarks: {fault}", file=sys.stderr)
        return 2
    print(report.table(outcomes))
    circumstances = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "scale": scale,
    }
    RESULTS.write_text(json.dumps(report.as_json(outcomes, circumstances), indent=2) + "\n")
    return 1 if any(verdict.failed for outcome in outcomes for verdict in outcome.judge()) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}; all by default")
    parser.add_argument(
        "-k", action="append", default=[], metavar="word", help="only what has this in its name"
    )
    parser.add_argument("--quick", action="store_true", help="smaller loads, fewer rounds")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="how often each is measured")
    arguments = parser.parse_args(argv)
    for suite in arguments.suites:
        if suite not in SUITES:
            parser.error(f"there is no suite {suite!r}; there is {', '.join(SUITES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
