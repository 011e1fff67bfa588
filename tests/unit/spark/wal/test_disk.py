from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nsq.spark.wal.disk import Disk


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda one, data, at: pwrite(one, data[:3], at))
    disk = Disk()
    descriptor = disk.create(tmp_path / "file", 0o600)
    assert disk.write(descriptor, memoryview(b"0123456789"), 2) == 12
    disk.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"\0\x000123456789"


def test_a_write_that_writes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="No space left"):
        Disk().write(0, memoryview(b"x"), 0)


@pytest.mark.parametrize(("fsync", "synced"), [(True, 2), (False, 0)])
def test_fsync_can_be_left_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool, synced: int
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    disk = Disk(fsync)
    descriptor = disk.create(tmp_path / "file", 0o600)
    disk.sync(descriptor)
    disk.sync_folder(tmp_path)
    disk.close(descriptor)
    assert len(calls) == synced


def test_a_file_is_made_once_and_removed_twice(tmp_path: Path) -> None:
    disk = Disk()
    descriptor = disk.create(tmp_path / "file", 0o600)
    disk.close(descriptor)
    disk.close(descriptor)
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "file", 0o600)
    disk.remove(tmp_path / "file")
    disk.remove(tmp_path / "file")


@pytest.mark.parametrize("missing", [AttributeError(), OSError(errno.EOPNOTSUPP, "not supported")])
def test_space_is_written_where_it_cannot_be_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise missing

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    disk = Disk()
    descriptor = disk.create(tmp_path / "file", 0o600)
    disk.allocate(descriptor, 10_000)
    disk.close(descriptor)
    assert (tmp_path / "file").read_bytes() == bytes(10_000)
