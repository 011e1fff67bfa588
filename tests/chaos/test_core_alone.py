"""The client without ``nsq.partitioned``: a copy of the tree without it passes mypy and the core's tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ["connection", "discovery", "producer", "consumer", "threads"]
TESTS = [*[f"tests/unit/{part}" for part in PARTS], "tests/behaviour", "tests/integration/test_aio.py"]
GONE = ["nsq/partitioned", "tests/unit/partitioned"]
#: mypy would find the folder where this tree is installed.
MYPY = """
[mypy-nsq.partitioned.*]
ignore_missing_imports = true
follow_imports = skip
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("core") / "tree"
    subprocess.run([sys.executable, ROOT / ".ci/tree.py", tree], check=True, stdout=subprocess.DEVNULL)
    for each in GONE:
        shutil.rmtree(tree / each)
    with (tree / "setup.cfg").open("a") as settings:
        settings.write(MYPY)
    return tree


def run(tree: Path, *arguments: str) -> str:
    """Run a module of Python in the tree; return what it says if it fails."""
    told = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=tree, env=told, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout[-5000:] + done.stderr[-5000:]


@pytest.mark.chaos
def test_mypy_misses_nothing(copy: Path) -> None:
    sources = [f"nsq/{part}" for part in PARTS]
    assert run(copy, "mypy", "--strict", "nsq/aio.py", "nsq/message.py", *sources, *TESTS) == ""


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_cores_tests_pass(copy: Path) -> None:
    options = ["-p", "no:cacheprovider", "-m", "not chaos", "-n", "2"]
    assert run(copy, "pytest", "-q", *options, *TESTS) == ""
