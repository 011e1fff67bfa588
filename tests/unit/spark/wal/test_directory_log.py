from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import WalError
from nsq.spark.wal import Segment
from nsq.spark.wal.directory import DirectoryWal


def bodies(count: int) -> int:
    return 21 * count


def test_rows_are_appended_rolled_and_read(wal: DirectoryWal, make: Any, ids: Any) -> None:
    with wal.log("r") as log:
        assert log.roll() is None
        log.append(make(3))
        log.append(make(2, start=3))
        assert (log.open_rows, log.open_bytes) == (5, bodies(5))
        assert wal.segments() == []
        assert log.roll() == Segment("r", 1, 5, bodies(5))
        assert (log.open_rows, log.open_bytes) == (0, 0)
        assert log.roll() is None
        log.append(make(1, start=5))
        assert log.close() == Segment("r", 2, 1, bodies(1))
    assert wal.segments() == [Segment("r", 1, 5, bodies(5)), Segment("r", 2, 1, bodies(1))]
    assert ids(wal) == list(range(6))


def test_writes_and_syncs_have_a_safe_order(wal: DirectoryWal, disk: Any, make: Any) -> None:
    with wal.log("r") as log:
        disk.calls.clear()
        log.append(make(1))
        assert disk.calls == ["create", "write", "write", "sync", "sync_folder"]
        disk.calls.clear()
        log.append(make(1))
        assert disk.calls == ["write", "write", "sync"]
        disk.calls.clear()
        log.roll()
        assert disk.calls == ["rename", "sync_folder"]


def test_a_log_without_rows_makes_no_file(wal: DirectoryWal, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(0))
        assert os.listdir(Path(wal.location) / "r") == ["lock"]


def test_a_closed_log_refuses_rows(wal: DirectoryWal, make: Any) -> None:
    log = wal.log("r")
    assert log.close() is None
    assert log.close() is None
    with pytest.raises(WalError, match="closed"):
        log.append(make(1))


def test_a_file_is_not_written_to_after_a_failed_fsync(wal: DirectoryWal, disk: Any, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(3))
        disk.failing = {"sync"}
        with pytest.raises(WalError, match=r"000001\.open cannot be made durable: Input/output error"):
            log.append(make(1, start=3))
        assert log.open_rows == 3
        disk.failing = set()
        log.append(make(1, start=3))
        assert wal.segments() == [Segment("r", 1, 3, bodies(3))]
        assert log.open_rows == 1
        assert log.roll() == Segment("r", 2, 1, bodies(1))


def test_a_failed_write_is_cut_off(wal: DirectoryWal, disk: Any, make: Any, ids: Any) -> None:
    with wal.log("r") as log:
        log.append(make(3))
        size = log.written
        disk.failing, disk.torn = {"write"}, 50
        with pytest.raises(WalError, match=r"r/000001\.open cannot be written: No space left on device"):
            log.append(make(1, start=3))
        disk.failing = set()
        segment = log.roll()
        assert segment == Segment("r", 1, 3, bodies(3))
        assert wal.path(segment).stat().st_size == size
        log.append(make(1, start=3))
    assert ids(wal) == [0, 1, 2, 3]


def test_a_failed_close_gives_up_the_lock_and_leaves_the_rest_to_recovery(
    wal: DirectoryWal, disk: Any, make: Any, ids: Any
) -> None:
    log = wal.log("r")
    log.append(make(3))
    disk.failing = {"rename"}
    with pytest.raises(WalError, match="cannot be sealed"):
        log.close()
    disk.failing = set()
    assert wal.recover() == [Segment("r", 1, 3, bodies(3))]
    assert ids(wal) == [0, 1, 2]


def test_files_end_up_with_the_rights_of_the_log(tmp_path: Path, make: Any) -> None:
    def rights(path: Path) -> int:
        return path.stat().st_mode & 0o777

    mask = os.umask(0o022)
    try:
        shared = tmp_path / "shared"
        shared.mkdir(mode=0o755)
        for place, folder, file in ((shared, 0o755, 0o644), (tmp_path / "own", 0o700, 0o600)):
            wal = DirectoryWal(place)
            wal.prepare()
            with wal.log("r") as log:
                log.append(make(1))
            assert rights(place / "r") == rights(place) == folder
            assert {rights(one) for one in (place / "r").iterdir()} == {file}
            assert rights(place / "identity.json") == file
    finally:
        os.umask(mask)
