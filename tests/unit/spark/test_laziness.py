"""Modules that planning and receiving processes import load neither Spark nor Arrow, which need seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ["pyspark", "pyarrow", "pandas"]


def test_spark_and_arrow_are_loaded_when_they_are_needed() -> None:
    modules = "nsq.spark.options, nsq.spark.source.options, nsq.spark.lookups"
    program = f"import sys, {modules}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )

    assert (done.stdout.strip(), done.stderr) == ("[]", "")
