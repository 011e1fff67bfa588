"""Modules that planning and receiving processes import load neither Spark nor Arrow, which need seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ["pyspark", "pyarrow", "pandas"]


@pytest.mark.parametrize(
    "program",
    [
        "import nsq.spark.rows, nsq.spark.wal.names, pyspark_nsq, pyspark_nsq_stats",
        "import nsq.spark.options, nsq.spark.source.options, nsq.spark.lookups",
        "from nsq.spark.cli import main; assert main(['--version']) == main(['archive', '--help']) == 0",
    ],
)
def test_spark_and_arrow_are_loaded_when_they_are_needed(program: str) -> None:
    program = f"{program}\nimport sys; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["[]"], "")
