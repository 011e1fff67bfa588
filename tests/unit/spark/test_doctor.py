"""Findings of the doctor; the programs that it runs are scripts of the test."""

from __future__ import annotations

import errno
import importlib.metadata
import os
from pathlib import Path

import pytest

from nsq.config import Config
from nsq.findings import FAILURE, OK, WARNING, Finding
from nsq.spark import doctor
from nsq.spark.cli import main
from nsq.spark.wal import manifest, open_wal
from tests.fakes.nsqlookupd import ScriptedLookupd
from tests.unit.spark.wal.conftest import log_of, made, put_all


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_the_version_of_java_is_parsed(said: str, version: int | None) -> None:
    assert doctor.java_version(said) == version


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("says", "status", "state", "words"),
    [
        ('openjdk version "17.0.15"', 0, OK, "is Java 17"),
        ('openjdk version "11.0.2"', 0, FAILURE, "is Java 11; Spark 4 needs 17"),
        ("cannot allocate memory", 1, FAILURE, "does not say its version: cannot allocate memory"),
    ],
)
def test_the_version_of_java_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, status: int, state: str, words: str
) -> None:
    script(tmp_path / "bin" / "java", f"echo '{says}' >&2; exit {status}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.check_java()
    assert (found.level, words in found.found, "JAVA_HOME" in found.remedy) == (state, True, state == FAILURE)


@pytest.mark.parametrize("variable", ["PATH", "JAVA_HOME"])
def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    assert doctor.check_java().level == FAILURE


def test_versions_of_packages_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyspark": "4.1.1", "pyarrow": "26.0.1"}

    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    states = {each.where: (each.level, each.found) for each in doctor.check_packages()}
    assert states["pyspark"] == (FAILURE, "4.1.1; needs at least 4.2, below 5.0")
    assert states["pyarrow"] == (OK, "26.0.1")
    assert states["pandas"][0] == FAILURE


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("echo 2.7", " is Python 2.7, this is "),
        ("echo Traceback; echo 'ModuleNotFoundError: pyarrow'; exit 1", ": ModuleNotFoundError: pyarrow"),
        (None, "No such file or directory"),
    ],
)
def test_workers_with_another_python_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, words: str
) -> None:
    if program is not None:
        script(tmp_path / "python3", program)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python3"))
    found = doctor.check_workers()
    assert (found.level, words in found.found) == (FAILURE, True)
    assert found.remedy.startswith("export PYSPARK_PYTHON=")
    assert list(doctor.check_default_python()) == []


def test_a_driver_python_that_starts_jupyter_is_not_checked_as_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    assert doctor.check_workers().level == OK


@pytest.mark.parametrize("there", [True, False])
def test_the_python_that_other_programs_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    if there:
        script(tmp_path / "python3", "echo 'ModuleNotFoundError: pyarrow'; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = doctor.check_default_python()
    words = f"{tmp_path}/python3: ModuleNotFoundError: pyarrow" if there else "python3: there is none on PATH"
    assert (found.level, found.found) == (
        WARNING,
        f"{words}; Spark starts it for programs other than nsq-spark",
    )
    assert found.remedy.startswith("export PYSPARK_PYTHON=")


def test_a_usable_wal_passes_and_is_left_alone(tmp_path: Path) -> None:
    found = doctor.check_wal(str(tmp_path / "not" / "made" / "yet"))
    assert found.level in (OK, WARNING)  # a warning where the disk is nearly full
    assert list(tmp_path.iterdir()) == []


def test_a_wal_that_cannot_be_made_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = doctor.check_wal(str(file / "wal"))
    assert (found.level, str(file) in found.found) == (FAILURE, True)


def test_a_file_system_without_hard_links_cannot_hold_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    found = doctor.check_wal(str(tmp_path))
    assert (found.level, "Operation not permitted" in found.found) == (FAILURE, True)


def test_a_little_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE_SPACE", 1 << 80)
    found = doctor.check_wal(str(tmp_path))
    assert (found.level, "MiB free" in found.found) == (WARNING, True)


def test_what_is_in_a_wal_is_verified(tmp_path: Path) -> None:
    assert list(doctor.check_contents(str(tmp_path / "none"))) == []
    wal = open_wal(str(tmp_path))
    wal.prepare()
    with log_of(wal) as log:
        put_all(log, made, 2, 3)
    [found] = doctor.check_contents(str(tmp_path))
    assert (found.level, found.found) == (OK, "5 rows in 2 sound segments")
    (tmp_path / manifest.segment_name("one", 2)).write_bytes(b"damaged")
    [found] = doctor.check_contents(str(tmp_path))
    assert (found.level, found.found.partition(", but ")[0]) == (FAILURE, "2 rows in 1 sound segments")
    assert "000000002.arrow" in found.found


def test_an_object_store_is_checked() -> None:
    wrong = doctor.check_wal("s3://key:secret@bucket/wal")
    assert (wrong.level, "secret" in wrong.found) == (FAILURE, False)


def test_a_wal_is_read_as_a_stream_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/wal" in doctor.check_wal("~/wal").found
    found = doctor.check_wal("file:relative")
    assert (found.level, "file:///absolute/path" in found.found) == (FAILURE, True)


@pytest.mark.parametrize(
    ("lists", "state"), [("json pyspark_nsq pyspark_nsq_stats", OK), ("json pyspark_nsq", WARNING)]
)
def test_whether_spark_finds_the_formats_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str, state: str
) -> None:
    # It lists nothing where it was started: the modules of that directory do not count.
    python = script(tmp_path / "python", f'test "$PWD" != "{Path.cwd()}" && echo {lists}')
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    found = doctor.check_formats()
    assert found.level == state
    assert ("editable_mode=compat" in found.remedy) == (state == WARNING)


def test_an_nsqlookupd_is_asked_as_a_client_asks_it() -> None:
    with ScriptedLookupd() as lookupd:
        config = Config(auth_secret="s3cret", lookupd_authorization="always")
        doctor.check_lookupd(lookupd.address, config)
        assert {secret for _, secret in lookupd.requests} == {"Bearer s3cret"}


def test_checks_that_were_skipped_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for check in ("check_java", "check_workers", "check_formats"):
        monkeypatch.setattr(doctor, check, lambda: Finding(OK, "one", "well"))
    for check in ("check_packages", "check_default_python"):
        monkeypatch.setattr(doctor, check, lambda: iter(()))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "skipped  wal: " in shown
    assert "skipped  nsq: " in shown
    assert shown.endswith("all checks that ran passed\n")


@pytest.mark.parametrize(
    ("kept", "done", "state"),
    [
        ((), (), OK),
        (("0", "1", "2"), ("0", "1"), OK),  # a crash between the two
        (("0", "9.compact", "11"), ("11", ".11.crc"), OK),
        (("0", "1", "2"), ("0",), FAILURE),
        (("0", "1"), (), FAILURE),
    ],
)
def test_a_sink_that_remembers_more_batches_than_its_checkpoint_would_lose_rows(
    tmp_path: Path, kept: tuple[str, ...], done: tuple[str, ...], state: str
) -> None:
    for folder, names in (("out/_spark_metadata", kept), ("checkpoint/commits", done)):
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).touch()
    found = doctor.check_sink(tmp_path / "out", tmp_path / "checkpoint")
    assert found.level == state
    assert ("lose the rows" in found.remedy) is (state == FAILURE)
