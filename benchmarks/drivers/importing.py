"""Imports modules, each time in a fresh interpreter: ``importing MODULE …``; prints the best time, in
milliseconds.
"""

from __future__ import annotations

import subprocess
import sys

_TIMES = 7
_PROGRAM = """
import sys, time
began = time.perf_counter()
for module in sys.argv[1:]:
    __import__(module)
print((time.perf_counter() - began) * 1000)
"""


def main(*modules: str) -> float:
    """Return the shortest time in milliseconds: longer ones include the work of other programs."""
    argv = [sys.executable, "-c", _PROGRAM, *modules]
    return min(float(subprocess.run(argv, capture_output=True, check=True).stdout) for _ in range(_TIMES))


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
