"""Recovery of a log whose receiver was killed at any point."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import WalError
from nsq.spark.wal import Segment, names
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


def killed(wal: DirectoryWal, receiver: str, *batches: Any) -> list[int]:
    """A log whose process died after these appends; returns the file's length after each."""
    log = wal.log(receiver)
    sizes = []
    for batch in batches:
        log.append(batch)
        path = Path(wal.location) / receiver / names.open_file(log._next)
        sizes.append(path.stat().st_size)
    assert log._open is not None
    os.close(log._open.descriptor)
    log._lock.release()
    return sizes


def test_a_log_is_recovered_wherever_its_receiver_dies(tmp_path: Path, make: Any, ids: Any) -> None:
    wal = DirectoryWal(tmp_path / "wal", fsync=False)
    wal.prepare()
    sizes = killed(wal, "r", make(1, size=0), make(2, start=1, size=0))
    folder = Path(wal.location) / "r"
    data = (folder / "000001.open").read_bytes()
    shutil.rmtree(folder)
    # How much of a file is valid is tested for every byte of it in test_records.
    cuts = {0, len(data), *range(0, len(data), 101), *(size + step for size in sizes for step in (-1, 0, 1))}
    for cut in sorted(cut for cut in cuts if cut <= len(data)):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "000001.open").write_bytes(data[:cut])
        whole = sum(cut >= size for size in sizes)  # so many appends had returned
        sealed = wal.recover()
        assert sealed == wal.segments(), cut
        assert len(sealed) == (whole > 0)
        assert ids(wal) == list(range(sum(range(whole + 1)))), cut
        assert not any(names.read_open(name) for name in os.listdir(folder))
        assert wal.recover() == []
        shutil.rmtree(folder)


def test_living_receivers_are_left_alone(wal: DirectoryWal, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(3))
        assert wal.recover() == []
        wal.discard_empty()
        assert wal.receivers()[0].alive
        log.append(make(1))
        assert log.roll() == Segment("r", 1, 4, 84)


def test_the_last_batch_is_made_durable_before_it_is_sealed(wal: DirectoryWal, disk: Any, make: Any) -> None:
    killed(wal, "r", make(1))
    disk.calls.clear()
    wal.recover()
    assert disk.calls == ["sync", "rename", "sync_folder"]


def test_a_file_that_another_process_has_recovered_is_skipped(
    wal: DirectoryWal, make: Any, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(wal, "r", make(3))
    other = DirectoryWal(wal.location)
    rename = wal._disk.rename

    def after_the_other(old: Path, new: Path) -> None:
        assert other.recover() == [Segment("r", 1, 3, 63)]
        rename(old, new)

    monkeypatch.setattr(wal._disk, "rename", after_the_other)
    assert wal.recover() == []
    assert ids(wal) == [0, 1, 2]


def test_a_folder_without_a_lock_belongs_to_a_dead_receiver(wal: DirectoryWal, make: Any, ids: Any) -> None:
    killed(wal, "r", make(3))
    (Path(wal.location) / "r" / "lock").unlink()
    assert wal.recover() == [Segment("r", 1, 3, 63)]
