from __future__ import annotations

import os
import stat
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.errors import ConfigError, UsageError
from nsq.spark import session
from nsq.spark.session import local_session, refuse_obstacles, register, settings


@pytest.fixture(autouse=True)
def not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_a_laptop_gets_all_its_cores_and_no_noise() -> None:
    chosen = settings(None)
    assert chosen["spark.master"] == "local[*]"
    assert chosen["spark.ui.enabled"] == "false"
    assert chosen["spark.sql.session.timeZone"] == "UTC"
    assert int(chosen["spark.sql.shuffle.partitions"]) >= 1


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]"])
def test_a_cluster_decides_for_itself_how_to_shuffle(master: str) -> None:
    chosen = settings(master)
    assert chosen["spark.master"] == master
    assert "spark.sql.shuffle.partitions" not in chosen


def test_the_master_of_spark_submit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not {"spark.master", "spark.sql.shuffle.partitions"} & set(settings(None))
    assert settings("local[2]")["spark.master"] == "local[2]"


class Builder:
    """Records the settings of a session."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.sparkContext = SimpleNamespace(setLogLevel=lambda level: None)

    def appName(self, name: str) -> Builder:  # noqa: N802 - Spark's name
        return self

    def config(self, map: dict[str, str]) -> Builder:  # noqa: A002 - Spark's name
        self.settings |= map
        return self

    def getOrCreate(self) -> Builder:  # noqa: N802 - Spark's name
        return self


@pytest.mark.parametrize(
    ("master", "address"),
    [(None, "127.0.0.1"), ("local[2,3]", "127.0.0.1"), ("local-cluster[2,1,1024]", None)],
)
def test_workers_run_this_python(
    monkeypatch: pytest.MonkeyPatch, master: str | None, address: str | None
) -> None:
    made = SimpleNamespace(getActiveSession=lambda: None, builder=Builder())
    monkeypatch.setattr(session, "_session_class", lambda: made)
    monkeypatch.setattr(session, "refuse_obstacles", lambda master: None)
    monkeypatch.setattr(session, "_start_jvm", lambda conf: None)
    monkeypatch.setattr(os, "environ", {})
    local_session(master=master, conf={"spark.ui.enabled": "true"})
    assert os.environ.get("PYSPARK_PYTHON") == sys.executable
    assert os.environ.get("SPARK_LOCAL_IP") == address
    assert made.builder.settings == settings(master) | {"spark.ui.enabled": "true"}


def test_a_missing_pyspark_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigError, match=r"pip install 'nsq\[spark\]'"):
        local_session()


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


@pytest.mark.usefixtures("no_java")
def test_a_missing_java_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process may have a session.
    no_session = SimpleNamespace(getActiveSession=lambda: None)
    monkeypatch.setattr(session, "_session_class", lambda: no_session)
    with pytest.raises(ConfigError, match=r"^java: .*/java does not say its version: .*; install Java 17"):
        local_session()


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("master", ["spark://host:7077", "local[2]"])
def test_the_workers_of_a_cluster_are_not_looked_for_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", "/there/python")
    refusal = pytest.raises(ConfigError, match=r"^workers: PYSPARK_PYTHON=/there/python: ")
    with refusal if master.startswith("local") else nullcontext():
        refuse_obstacles(master)


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
