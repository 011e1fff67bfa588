"""Programs in Python that end by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_python(
    *arguments: str, python: str = sys.executable, cwd: Path = ROOT, timeout: float = 200.0
) -> subprocess.CompletedProcess[str]:
    """Run it with this package, and return its status and what it said."""
    return subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
