from __future__ import annotations

import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.errors import UsageError

pytest.importorskip("pyspark")

from nsq.spark.session import register


class Session:
    """The part of a Spark session that registering uses."""

    def __init__(self, python: str | None) -> None:
        self.formats: list[str] = []
        self.dataSource = SimpleNamespace(register=lambda cls: self.formats.append(cls.name()))
        if python is not None:
            self.sparkContext = SimpleNamespace(pythonExec=python)


def registered(python: str | None) -> list[str]:
    session: Any = Session(python)
    register(session)
    formats: list[str] = session.formats
    return formats


def program(folder: Path, text: str) -> str:
    path = folder / "python-other"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("python", [sys.executable, None, "/no/such/python"])
def test_both_formats_are_registered(python: str | None) -> None:
    assert registered(python) == ["nsq", "nsq_stats"]


def test_workers_of_another_python_that_has_what_it_takes(tmp_path: Path) -> None:
    assert registered(program(tmp_path, f"echo {sys.version_info[0]}.{sys.version_info[1]}")) == [
        "nsq",
        "nsq_stats",
    ]


def test_a_worker_python_that_lacks_the_package_is_refused(tmp_path: Path) -> None:
    python = program(tmp_path, "echo \"ModuleNotFoundError: No module named 'pyarrow'\" >&2; exit 1")
    with pytest.raises(UsageError) as raised:
        registered(python)
    assert str(raised.value) == (
        f"Spark's workers cannot run this. {python}: ModuleNotFoundError: No module named 'pyarrow'. "
        f"Install what is missing, or set PYSPARK_PYTHON={sys.executable} before the session is made"
    )
