"""Programs in Python that end by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]


def run_python(
    *arguments: str,
    python: str = sys.executable,
    cwd: Path = ROOT,
    timeout: float = 200.0,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run it with this package, and return its status and what it said."""
    return subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
