from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from nsq.errors import WalError
from nsq.spark.wal.objects import Bucket


@pytest.fixture(params=["local", "subtree", "mock"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    local = fs.LocalFileSystem()
    if request.param == "local":
        made = Bucket(local, str(tmp_path / "root") + "/")
    elif request.param == "subtree":
        made = Bucket(fs.SubTreeFileSystem(str(tmp_path), local), "root")
    else:
        made = Bucket(fs._MockFileSystem(), "bucket/root")
    made.make_folder("")
    return made


def everything(bucket: Bucket) -> list[tuple[str, int]]:
    root = len(bucket.path("x")) - 1
    return sorted((info.path[root:], info.size) for info in bucket.list(recursive=True) if info.is_file)


def test_put_and_got(bucket: Bucket) -> None:
    bucket.make_folder("a")
    bucket.put("a/one", b"1")
    bucket.put("two", b"22")
    bucket.rewrite("two", b"333")
    assert [bytes(bucket.get(name) or b"") for name in ("a/one", "two")] == [b"1", b"333"]
    assert bucket.get("three") is None
    assert [bucket.has(name) for name in ("two", "three", "a")] == [True, False, False]


def test_listed(bucket: Bucket) -> None:
    assert bucket.names("") == []
    bucket.make_folder("a")
    bucket.put("a/one", b"1")
    bucket.put("a/.hidden", b"1")
    bucket.put("two", b"22")
    assert bucket.names("") == ["a", "two"]
    assert [info.base_name for info in bucket.list() if not info.is_file] == ["a"]
    assert everything(bucket) == [("a/one", 1), ("two", 2)]


def test_a_root_that_is_not_there_is_empty() -> None:
    assert Bucket(fs._MockFileSystem(), "no").list(recursive=True) == []


def test_deleted_once_or_twice(bucket: Bucket) -> None:
    bucket.make_folder("a")
    bucket.put("a/one", b"1")
    bucket.put("a/two", b"1")
    for _ in range(2):
        bucket.delete("a/one")
    assert everything(bucket) == [("a/two", 1)]
    for _ in range(2):
        bucket.delete_folder("a")
    assert bucket.names("") == []


def test_errors_name_the_object(bucket: Bucket) -> None:
    bucket.put("file", b"")
    with pytest.raises(WalError, match="root/file/below cannot be written"):
        bucket.put("file/below", b"1")
    bucket.make_folder("folder")
    with pytest.raises(WalError, match=r"root/folder cannot be (read|deleted)"):
        bucket.delete("folder")


def test_nothing_is_seen_of_an_object_until_it_is_whole(tmp_path: Path) -> None:
    bucket = Bucket(fs.LocalFileSystem(), str(tmp_path))
    (tmp_path / "one").mkdir()  # in the way of the move
    (tmp_path / "one" / "x").touch()
    with pytest.raises(WalError):
        bucket.put("one", b"1")
    assert everything(bucket) == [("one/x", 0)]
