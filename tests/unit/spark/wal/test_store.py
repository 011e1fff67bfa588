from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import ConfigError
from nsq.spark.wal import open_wal, store
from nsq.spark.wal.folder import Folder
from nsq.spark.wal.objects import Bucket


@pytest.mark.parametrize(
    ("location", "directory"),
    [
        ("/data/wal", "/data/wal"),
        ("file:///data/wal", "/data/wal"),
        ("file:/data/wal", "/data/wal"),
        ("FILE://localhost/data/a%20b", "/data/a b"),
        ("c:wal", "c:wal"),
    ],
)
def test_a_path_or_file_uri_is_a_directory(location: str, directory: str) -> None:
    assert store.directory_of(location) == Path(directory)


def test_a_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wal = open_wal("wal")
    assert isinstance(wal._store, Folder)
    assert wal.location == str(tmp_path / "wal")


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert store.directory_of("~/wal") == Path("/home/me/wal")


def test_another_uri_is_an_object_store() -> None:
    wal = open_wal("s3://bucket/wal?region=eu-central-1")
    assert isinstance(wal._store, Bucket)
    assert wal.location == "s3://bucket/wal?region=eu-central-1"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        *(
            (uri, "must be a directory or begin with s3:")
            for uri in ("hdfs://host/wal", "mock:///bucket/wal")
        ),
        *((text, "wal ") for text in ("", "  ", "file://data/wal", "file:wal", "nosuch://bucket/wal")),
    ],
)
def test_an_invalid_location_or_a_file_system_of_hadoop_is_refused(location: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_wal(location)


def test_credentials_stay_out_of_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        open_wal("s3://key:secret@bucket/wal")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/data/w@l?", "/data/w@l?"),
        ("s3://bucket/wal", "s3://bucket/wal"),
        ("s3://key:sec/ret@bucket/wal?region=eu&token=secret", "s3://bucket/wal"),
    ],
)
def test_a_shown_location_has_no_credentials(location: str, shown: str) -> None:
    assert store.shown(location) == shown
