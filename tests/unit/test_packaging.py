"""setup.cfg agrees with the package: one version, the extras, types, and console scripts that exist."""

from __future__ import annotations

import ast
import configparser
import importlib
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import nsq

ROOT = Path(__file__).resolve().parents[2]

SCRIPTS = {
    "nsqd": "nsq.daemons.nsqd.__main__:main",
    "nsqlookupd": "nsq.daemons.nsqlookupd.__main__:main",
    "nsqadmin": "nsq.daemons.nsqadmin.__main__:main",
    "nsq-spark": "nsq.spark.cli:main",
    "nsq": "nsq_command:main",
    "nsq_tail": "nsq.tools.nsq_tail:main",
    "nsq_stat": "nsq.tools.nsq_stat:main",
    "to_nsq": "nsq.tools.to_nsq:main",
    "nsq_to_file": "nsq.tools.nsq_to_file:main",
    "nsq_to_http": "nsq.tools.nsq_to_http:main",
    "nsq_to_nsq": "nsq.tools.nsq_to_nsq:main",
    "nsq_pubsub": "nsq.tools.nsq_pubsub:main",
}
#: By their names Spark finds the formats.
MODULES = ["nsq_command", "pyspark_nsq", "pyspark_nsq_stats"]


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


@pytest.fixture
def setup() -> configparser.ConfigParser:
    setup = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup


def lines(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip()]


def names(requirements: str) -> set[str]:
    """``aiohttp >= 3.11`` is aiohttp."""
    return {line.split(";")[0].split(">")[0].strip() for line in lines(requirements)}


def test_the_version_is_written_in_one_place(setup: configparser.ConfigParser) -> None:
    assert setup["metadata"]["version"] == "attr: nsq.__version__"


def test_the_version_can_be_read_without_importing() -> None:
    # A build has none of our dependencies: setuptools must find a plain string in the syntax tree.
    tree = ast.parse((ROOT / "nsq" / "__init__.py").read_text(encoding="utf-8"))
    written = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["__version__"]
    ]
    assert written == [nsq.__version__]


def test_links_of_the_readme_are_absolute_in_a_release() -> None:
    address = "https://example.org/nsq/blob/v1"
    with_absolute_links = runpy.run_path(str(ROOT / "setup.py"))["with_absolute_links"]
    readme = with_absolute_links((ROOT / "README.md").read_text("utf-8"), address)
    assert f"({address}/benchmarks/results.svg?raw=true)" in readme
    assert f"({address}/docs/moving-from-pynsq.md#one-environment-for-each)" in readme
    assert re.findall(r"\]\((?!https?://)[^)]*\)", readme) == []


def test_every_file_beside_the_package_is_shipped() -> None:
    # setuptools takes these without being told.
    taken = {"README.md", "LICENSE", "setup.cfg", "setup.py", "MANIFEST.in"}
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    included = {name for line in manifest if line.startswith("include ") for name in line.split()[1:]}
    pages = {path.name for path in ROOT.glob("*.md")}
    assert pages - taken <= included
    assert [name for name in included if not (ROOT / name).is_file()] == []


def test_the_core_needs_two_packages(setup: configparser.ConfigParser) -> None:
    assert names(setup["options"]["install_requires"]) == {"python-snappy", "certifi"}


def test_every_requirement_has_a_lower_bound(setup: configparser.ConfigParser) -> None:
    wanted = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    unbounded = [line for value in wanted for line in lines(value) if ">=" not in line]
    assert [line for line in unbounded if not line.startswith("nsq[")] == []


def test_the_modules_that_spark_looks_for_are_shipped(setup: configparser.ConfigParser) -> None:
    assert lines(setup["options"]["py_modules"]) == MODULES
    assert sorted(path.stem for path in ROOT.glob("*.py")) == [*MODULES, "setup"]


def test_the_console_scripts_are_as_promised(setup: configparser.ConfigParser) -> None:
    written = lines(setup["options.entry_points"]["console_scripts"])
    assert dict(line.split(" = ") for line in written) == SCRIPTS


def test_the_pytest_plugin_is_registered_and_offers_the_daemons(setup: configparser.ConfigParser) -> None:
    name, _, module = setup["options.entry_points"]["pytest11"].strip().partition(" = ")
    # Under any other name pytest fails when a conftest.py asks for the plugin again in pytest_plugins.
    assert name == module
    assert {"nsqd", "nsqlookupd"} <= vars(importlib.import_module(module)).keys()


@pytest.mark.parametrize("target", SCRIPTS.values(), ids=SCRIPTS)
def test_a_console_script_is_callable(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
