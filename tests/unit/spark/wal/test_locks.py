from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from nsq.spark.wal import ownership as locks


def is_held(path: Path) -> bool:
    with locks.lock_probe(path) as free:
        return not free


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    first = locks.acquire(tmp_path / "lock")
    assert first is not None
    assert locks.acquire(tmp_path / "lock") is None
    assert is_held(tmp_path / "lock")
    first.release()
    first.release()
    assert not is_held(tmp_path / "lock")
    second = locks.acquire(tmp_path / "lock")
    assert second is not None
    second.release()


def test_a_missing_lock_file_is_free(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "lock")
    assert os.listdir(tmp_path) == []


def test_a_lock_cannot_be_taken_while_others_probe_it(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with locks.lock_probe(tmp_path / "lock") as one, locks.lock_probe(tmp_path / "lock") as two:
        assert one
        assert two
        assert locks.acquire(tmp_path / "lock") is None


def test_a_lock_file_held_by_this_process_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS, closing it would release the lock."""
    path = tmp_path / "lock"
    held = locks.acquire(path)
    assert held is not None
    os.link(path, tmp_path / "other name")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *_: pytest.fail("opened again"))
        for name in ("lock", "other name"):
            assert is_held(tmp_path / name)
            assert locks.acquire(tmp_path / name) is None
    held.release()


def test_a_system_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available"):
        locks.acquire(tmp_path / "lock")
    with pytest.raises(OSError, match="No locks available"):
        is_held(tmp_path / "lock")
