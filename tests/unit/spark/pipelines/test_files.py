from __future__ import annotations

from pathlib import Path

import pytest

from nsq.spark.pipelines.files import LocalFiles, Move, below, local_path


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/orders", "/data/orders"),
        ("/data/orders/", "/data/orders"),
        ("file:///data/or%20ders", "/data/or%20ders"),
        ("file:/data", "/data"),
        ("s3a://bucket/orders", None),
        ("hdfs://name:8020/orders", None),
    ],
)
def test_local_locations_are_recognized(location: str, path: str | None) -> None:
    assert local_path(location) == path


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("orders") == str(tmp_path / "orders")


def test_names_below_a_location() -> None:
    assert below("/data/", "_wal") == "/data/_wal"
    assert below(Path("/data"), "a", "b") == "/data/a/b"
    assert below("s3a://bucket/orders/", "_checkpoint") == "s3a://bucket/orders/_checkpoint"
    assert below("s3a://bucket/orders") == "s3a://bucket/orders"


def test_deleting_is_thorough_and_forgiving(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.write("a/b/c", "1")
    files.delete("a")
    files.delete("a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_moved_before_is_skipped(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.write("a", "1")
    moves: list[Move] = [("a", "x/y/b"), ("gone", "x/c")]
    files.move(moves)
    files.move(moves)
    assert files.walk("") == ["x/y/b"]
