"""Planning and receiving processes import these for their options; Spark and Arrow cost them seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
HEAVY = ["pyspark", "pyarrow", "pandas"]


@pytest.mark.parametrize(
    "modules",
    [
        ["nsq.spark.sink", "nsq.spark.sink.task"],
        ["nsq.spark.batch", "nsq.spark.lookups"],
    ],
)
def test_spark_and_arrow_are_loaded_when_they_are_needed(modules: list[str]) -> None:
    program = f"import sys, {', '.join(modules)}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )

    assert (done.stdout.strip(), done.stderr) == ("[]", "")
