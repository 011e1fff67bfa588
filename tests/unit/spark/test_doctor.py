"""What the doctor makes of what it finds; the programs it asks are scripts of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsq.spark import doctor
from nsq.spark.doctor import OK, WARNING, WRONG


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def java(tmp_path: Path, says: str, status: int = 0) -> dict[str, str]:
    script(tmp_path / "bin" / "java", f"echo '{says}' >&2; exit {status}")
    return {"JAVA_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_reading_javas_version(said: str, version: int | None) -> None:
    assert doctor.java_version(said) == version


def test_a_java_that_will_do(tmp_path: Path) -> None:
    found = doctor.check_java(java(tmp_path, 'openjdk version "17.0.15"'))
    assert (found.state, found.remedy) == (OK, "")


@pytest.mark.parametrize(
    ("says", "status", "words"),
    [
        ('openjdk version "11.0.2"', 0, "is Java 11; Spark 4 needs 17"),
        ("cannot allocate memory", 1, "does not say its version: cannot allocate memory"),
    ],
)
def test_a_java_that_will_not(tmp_path: Path, says: str, status: int, words: str) -> None:
    found = doctor.check_java(java(tmp_path, says, status))
    assert found.state == WRONG
    assert words in found.text
    assert "JAVA_HOME" in found.remedy


def test_no_java_at_all(tmp_path: Path) -> None:
    assert doctor.check_java({"PATH": str(tmp_path)}).state == WRONG
    assert doctor.check_java({"JAVA_HOME": str(tmp_path)}).state == WRONG


def test_packages() -> None:
    versions = {"pyspark": "4.1.1", "pyarrow": "26.0.1"}
    states = {each.what: (each.state, each.text) for each in doctor.check_packages(versions.get)}
    assert states["pyspark"] == (WRONG, "4.1.1; needs at least 4.2, below 5.0")
    assert states["pyarrow"] == (OK, "26.0.1")
    assert states["pandas"][0] == WRONG


def test_workers_that_are_another_python(tmp_path: Path) -> None:
    other = script(tmp_path / "python3", "echo 2.7")
    (found,) = doctor.check_workers({"PYSPARK_PYTHON": str(other)})
    assert (found.state, "is Python 2.7" in found.text) == (WRONG, True)
    assert found.remedy.startswith("export PYSPARK_PYTHON=")


def test_workers_without_what_they_need(tmp_path: Path) -> None:
    bare = script(tmp_path / "python3", "echo Traceback; echo 'ModuleNotFoundError: pyarrow'; exit 1")
    (found,) = doctor.check_workers({"PYSPARK_PYTHON": str(bare)})
    assert found.text.endswith("ModuleNotFoundError: pyarrow")
    (absent,) = doctor.check_workers({"PYSPARK_PYTHON": str(tmp_path / "absent")})
    assert absent.state == WRONG


def test_the_one_that_starts_jupyter_is_no_worker() -> None:
    (found,) = doctor.check_workers({"PYSPARK_DRIVER_PYTHON": "jupyter"})
    assert found.state == OK


def test_the_python_that_other_programs_get(tmp_path: Path) -> None:
    script(tmp_path / "python3", "echo 'ModuleNotFoundError: pyarrow'; exit 1")
    (found,) = doctor.check_default_python({"PATH": str(tmp_path)})
    assert found.state == WARNING
    assert found.text.startswith(f"{tmp_path}/python3: ModuleNotFoundError: pyarrow; Spark starts it for")
    assert found.remedy.startswith("export PYSPARK_PYTHON=")
    (absent,) = doctor.check_default_python({"PATH": str(tmp_path / "no")})
    assert (absent.state, "there is none on PATH" in absent.text) == (WARNING, True)
    assert list(doctor.check_default_python({"PATH": str(tmp_path), "PYSPARK_PYTHON": "chosen"})) == []


def test_a_wal_that_can_be_used_and_is_left_alone(tmp_path: Path) -> None:
    found = doctor.check_wal(str(tmp_path / "not" / "made" / "yet"))
    assert found.state in (OK, WARNING)  # a warning where the disk is nearly full
    assert list(tmp_path.iterdir()) == []


def test_a_wal_that_cannot(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = doctor.check_wal(str(file / "wal"))
    assert (found.state, str(file) in found.text) == (WRONG, True)


def test_a_little_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE_SPACE", 1 << 80)
    found = doctor.check_wal(str(tmp_path))
    assert (found.state, "MiB free" in found.text) == (WARNING, True)


def test_an_object_store(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert doctor.check_object_wal(f"file://{tmp_path}").state == OK
    assert list(tmp_path.iterdir()) == []
    wrong = doctor.check_wal("nonsense://key:secret@bucket/wal")
    assert (wrong.state, "secret" in wrong.text) == (WRONG, False)


def test_a_wal_is_read_as_a_stream_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/wal" in doctor.check_wal("~/wal").text
    found = doctor.check_wal("file:relative")
    assert (found.state, "file:///absolute/path" in found.text) == (WRONG, True)


@pytest.mark.parametrize(
    ("lists", "state"), [("json pyspark_nsq pyspark_nsq_stats", OK), ("json pyspark_nsq", WARNING)]
)
def test_whether_spark_finds_the_formats_from_another_directory(
    tmp_path: Path, lists: str, state: str
) -> None:
    # It lists nothing where it was started: the modules of that directory do not count.
    python = script(tmp_path / "python", f'test "$PWD" != "{Path.cwd()}" && echo {lists}')
    found = doctor.check_formats({"PYSPARK_PYTHON": str(python)})
    assert found.state == state
    assert ("editable_mode=compat" in found.remedy) == (state == WARNING)
