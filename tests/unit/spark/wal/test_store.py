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


@pytest.mark.parametrize(
    "location",
    [
        "s3://key:hidden@bucket/wal",
        "s3://bucket/wal?region=eu-central-1&access_key_id=hidden",
        "s3://bucket/wal?AWS_SECRET_ACCESS_KEY=hidden",
        "s3://bucket/wal?aws_session_token=hidden",
        "az://container/wal?azure_storage_account_key=hidden",
        "az://container/wal?sas_key=hidden",
        "gs://bucket/wal?google_service_account_key=hidden",
    ],
)
def test_credentials_in_a_location_are_refused_and_not_shown(location: str) -> None:
    with pytest.raises(ConfigError, match="wal holds credentials") as caught:
        open_wal(location)
    assert "hidden" not in str(caught.value)
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
