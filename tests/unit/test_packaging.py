"""setup.cfg and the Makefile; .ci/packages.py checks what the sdist and the wheel hold."""

from __future__ import annotations

import configparser
import importlib
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: By their names Spark finds the formats.
MODULES = ["nsq_command", "pyspark_nsq", "pyspark_nsq_stats"]


@pytest.fixture
def setup() -> configparser.ConfigParser:
    setup = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_clears_what_changes_python_and_nothing_else() -> None:
    given = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "PYTHON": "python3", "JAVA_HOME": "/java"}
    done = subprocess.run(
        ["make", "-f", "Makefile", "-f", "-", "show", "PYTHONPATH=/x"],
        cwd=ROOT,
        input="show:\n\t@env\n",
        env={"PATH": os.environ["PATH"], "HOME": "/home", **given},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {name for name in seen if name.startswith("PYTHON")} == {"PYTHON"}
    assert seen["JAVA_HOME"] == "/java"


def lines(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip()]


def names(requirements: str) -> set[str]:
    """``aiohttp >= 3.11`` is aiohttp."""
    return {line.split(";")[0].split(">")[0].strip() for line in lines(requirements)}


def test_a_release_has_its_address_in_the_metadata_and_in_the_readme() -> None:
    metadata = runpy.run_path(str(ROOT / "setup.py"))["metadata"]
    made = metadata((ROOT / "README.md").read_text("utf-8"), "https://example.org/nsq", "1.2.3")
    readme, files = made["long_description"], "https://example.org/nsq/blob/v1.2.3"
    assert f"({files}/benchmarks/results.svg?raw=true)" in readme
    assert f"({files}/docs/index.md#install)" in readme
    assert re.findall(r"\]\((?!https?://)[^)]*\)", readme) == []
    assert "git clone https://example.org/nsq nsq && cd nsq\n" in readme
    assert made["project_urls"]["Source"] == "https://example.org/nsq"


def test_the_core_needs_two_packages(setup: configparser.ConfigParser) -> None:
    assert names(setup["options"]["install_requires"]) == {"python-snappy", "certifi"}


def test_every_requirement_has_a_lower_bound(setup: configparser.ConfigParser) -> None:
    wanted = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    unbounded = [line for value in wanted for line in lines(value) if ">=" not in line]
    assert [line for line in unbounded if not line.startswith("nsq[")] == []


def test_the_modules_that_spark_looks_for_are_shipped(setup: configparser.ConfigParser) -> None:
    assert lines(setup["options"]["py_modules"]) == MODULES
    assert sorted(path.stem for path in ROOT.glob("*.py")) == [*MODULES, "setup"]


def test_the_pytest_plugin_is_registered_and_offers_the_daemons(setup: configparser.ConfigParser) -> None:
    name, _, module = setup["options.entry_points"]["pytest11"].strip().partition(" = ")
    # Under any other name pytest fails when a conftest.py asks for the plugin again in pytest_plugins.
    assert name == module
    assert {"nsqd", "nsqlookupd"} <= vars(importlib.import_module(module)).keys()


def test_every_console_script_is_callable(setup: configparser.ConfigParser) -> None:
    for line in lines(setup["options.entry_points"]["console_scripts"]):
        module, _, name = line.partition(" = ")[2].partition(":")
        assert callable(getattr(importlib.import_module(module), name)), line
