"""``make run SPARK=1`` on a small scale: the demonstration runs the commands of nsq-spark too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 550


def test_the_demo_ends_on_spark(java: None, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--spark", "--orders", "500"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert re.search(r"^0 lost, ", done.stdout, re.MULTILINE), done.stdout
    assert re.search(
        r"^the archive in Parquet has [\d,]+ rows of 2,000 different events, 0 lost$", done.stdout, re.M
    )
    assert re.search(r"placed [\d,]+", done.stdout), done.stdout
    (picture,) = tmp_path.glob("orders-spark-*/orders.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    # What was read is gone from both logs.
    assert not list(tmp_path.glob("orders-spark-*/**/*.arrow"))
    assert "Traceback" not in done.stdout
    assert " WARN " not in done.stdout
