"""Spark finds the formats in a Python that lacks a package, as PySpark's ``lookup_data_sources`` searches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

_LOOKUP = """
import importlib, json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {absent!r}:
            raise {error}

sys.meta_path.insert(0, Absent())
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSource

found = {{}}
for module in map(importlib.import_module, ("pyspark_nsq", "pyspark_nsq_stats")):
    assert hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource)
    # It goes to other processes.
    source = CPickleSerializer().loads(CPickleSerializer().dumps(module.DefaultSource))
    try:
        source({{}})
        found[source.name()] = ""
    except Exception as error:
        found[source.name()] = str(error)
print(json.dumps(found))
"""


def looked_up(absent: str, error: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _LOOKUP.format(absent=absent, error=error)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_spark_finds_both_formats() -> None:
    assert looked_up("nothing", "ImportError()") == {"nsq": "", "nsq_stats": ""}


@pytest.mark.parametrize(("absent", "needed_by"), [("nsq", ["nsq", "nsq_stats"])])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ImportError(f'No module named {name!r}')", "No module named"),
        ("SyntaxError('too new')", "SyntaxError: too new"),
    ],
)
def test_a_missing_package_is_named_by_the_format_and_breaks_no_other(
    absent: str, needed_by: list[str], error: str, reason: str
) -> None:
    found = looked_up(absent, error)
    assert set(found) == {"nsq", "nsq_stats"}
    for name in needed_by:
        text = found[name]
        assert text.startswith(f"format({name!r}) cannot be used with {sys.executable}: {reason}")
        assert text.endswith(
            "; pip install 'nsq[spark]' there, or set PYSPARK_PYTHON to the Python that has it"
        )
        assert "\n" not in text
