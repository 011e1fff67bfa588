from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from nsq.errors import WalOwned
from nsq.spark.wal import ownership


class Hours:
    """A clock that naps move, and what happens at a time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: dict[float, object] = {}

    def clock(self) -> float:
        return self.now

    def nap(self, seconds: float) -> None:
        self.now += seconds
        for moment in [one for one in self.events if one <= self.now]:
            event = self.events.pop(moment)
            assert callable(event)
            event()


def claim(path: Path, hours: Hours, patience: float, name: str = "other") -> ownership.FileLock:
    return ownership.claim(path, name, patience, 0o600, hours.clock, hours.nap)


def test_the_wait_for_an_owner_ends_with_an_error(tmp_path: Path) -> None:
    hours = Hours()
    held = claim(tmp_path / "owner", hours, 0, "first")
    for patience, least in ((0.0, 0.25), (5.0, 5.0)):
        started = hours.now
        with pytest.raises(WalOwned, match="is owned by first"):
            claim(tmp_path / "owner", hours, patience)
        assert least <= hours.now - started < least + 0.2
    held.release()


def test_a_leaving_owner_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    hours = Hours()
    held = claim(tmp_path / "owner", hours, 0, "first")
    held.leaving()
    with pytest.raises(WalOwned, match="which is leaving; waited 30"):
        claim(tmp_path / "owner", hours, 1)
    held.release()


def test_an_owner_may_announce_its_leave_while_another_waits(tmp_path: Path) -> None:
    hours = Hours()
    held = claim(tmp_path / "owner", hours, 0, "first")
    hours.events[100.5] = held.leaving
    hours.events[110.0] = held.release
    claim(tmp_path / "owner", hours, 1).release()


def test_a_released_claim_says_nothing_any_more(tmp_path: Path) -> None:
    hours = Hours()
    held = claim(tmp_path / "owner", hours, 0, "a very long description of the first")
    held.release()
    second = claim(tmp_path / "owner", hours, 0, "second")
    held.leaving()
    owner = ownership.holder(tmp_path / "owner")
    assert owner is not None
    assert (owner.description, owner.leaving) == ("second", False)
    second.release()
    assert ownership.holder(tmp_path / "owner") is None


@pytest.mark.parametrize("text", [b"", b"{", b'{"description": "x"}', b"[]", b"\xff"])
def test_half_a_description_is_no_error(tmp_path: Path, text: bytes) -> None:
    held = claim(tmp_path / "owner", Hours(), 0)
    held.write(text)
    assert ownership.holder(tmp_path / "owner") == ownership.UNKNOWN_OWNER
    held.release()


def test_a_description_is_read_back(tmp_path: Path) -> None:
    held = claim(tmp_path / "owner", Hours(), 0, "me")
    held.leaving()
    here = f"(process {os.getpid()} on {os.uname().nodename})"
    assert str(ownership.holder(tmp_path / "owner")) == f"me {here}, which is leaving"
    held.release()


# Locks


def is_held(path: Path) -> bool:
    with ownership.lock_probe(path) as free:
        return not free


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    first = ownership.acquire(tmp_path / "lock")
    assert first is not None
    assert ownership.acquire(tmp_path / "lock") is None
    assert is_held(tmp_path / "lock")
    first.release()
    first.release()
    assert not is_held(tmp_path / "lock")
    second = ownership.acquire(tmp_path / "lock")
    assert second is not None
    second.release()


def test_a_missing_lock_file_is_free(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "lock")
    assert os.listdir(tmp_path) == []


def test_a_lock_cannot_be_taken_while_others_probe_it(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with ownership.lock_probe(tmp_path / "lock") as one, ownership.lock_probe(tmp_path / "lock") as two:
        assert one
        assert two
        assert ownership.acquire(tmp_path / "lock") is None


def test_a_lock_file_held_by_this_process_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS, closing it would release the lock."""
    path = tmp_path / "lock"
    held = ownership.acquire(path)
    assert held is not None
    os.link(path, tmp_path / "other name")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *_: pytest.fail("opened again"))
        patched.setattr(Path, "read_bytes", lambda _: pytest.fail("opened again"))
        for name in ("lock", "other name"):
            assert is_held(tmp_path / name)
            assert ownership.acquire(tmp_path / name) is None
            assert ownership.holder(tmp_path / name) is ownership.UNKNOWN_OWNER
    held.release()


def test_a_system_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available"):
        ownership.acquire(tmp_path / "lock")
    with pytest.raises(OSError, match="No locks available"):
        is_held(tmp_path / "lock")
