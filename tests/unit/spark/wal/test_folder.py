"""A directory keeps its promises on a disk that fails, is full or loses power, and beside slow processes."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from nsq.errors import WalError
from nsq.spark.wal import folder
from nsq.spark.wal.disk import Disk, DiskFull
from nsq.spark.wal.folder import Folder
from nsq.spark.wal.objects import Conflict, create, replace

from .conftest import FailingDisk

FAILING = st.sets(
    st.sampled_from(["create", "allocate", "write", "sync", "link", "rename", "remove", "sync_folder"])
)
NAMES = st.sampled_from(["one", "m/two", "m/three"])


class Model(RuleBasedStateMachine):
    """An object has the content of a put that succeeded, or of one that failed after that."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.disk = FailingDisk()
        self.store = Folder(self.root / "log", disk=self.disk)
        self.numbered = 0
        self.now: dict[str, tuple[bytes, str]] = {}  # what there is, with its tag
        self.tags: dict[str, list[str]] = {}  # of now and earlier

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(name=NAMES, failing=FAILING, torn=st.sampled_from([0, 3]), old=st.integers(0, 3))
    def put(self, name: str, failing: set[str], torn: int, old: int) -> None:
        self.numbered += 1
        data = b"%06d" % self.numbered
        there = self.now.get(name)
        tags = self.tags.get(name, [])
        tag = tags[-1 - old] if there is not None and old < len(tags) else None
        self.disk.failing, self.disk.torn = failing, torn
        try:
            new = create(self.store, name, data) if tag is None else replace(self.store, name, data, tag)
        except Conflict:
            assert there is not None
            assert tag != there[1]
        except WalError:
            assert failing
            self.disk.failing = set()
            # It may have happened. To try again makes it sure.
            found = self.store.get(name)
            if found is not None and found.data == data:
                assert tag == (there[1] if there else None)
                new = create(self.store, name, data) if tag is None else replace(self.store, name, data, tag)
                assert new == found.tag
                self._note(name, data, new)
        else:
            assert tag == (there[1] if there else None)
            self._note(name, data, new)
        self.disk.failing = set()

    def _note(self, name: str, data: bytes, tag: str) -> None:
        self.now[name] = data, tag
        self.tags.setdefault(name, []).append(tag)

    @rule(names=st.sets(NAMES), failing=FAILING)
    def delete(self, names: set[str], failing: set[str]) -> None:
        self.disk.failing = failing
        try:
            self.store.delete_many(names)
        except WalError:
            assert "remove" in failing
            self.disk.failing = set()
            self.store.delete_many(names)
        self.disk.failing = set()
        for name in names:
            self.now.pop(name, None)
            self.tags.pop(name, None)

    @invariant()
    def objects_are_there_and_no_others(self) -> None:
        assert {entry.name: entry.tag for entry in self.store.list_after("")} == {
            name: tag for name, (_, tag) in self.now.items()
        }
        for name, found in self.now.items():
            assert self.store.get(name) == found

    @rule()
    def old_versions_go(self) -> None:
        """A put on a disk that works leaves its own version and the one before it."""
        for name, (data, tag) in self.now.items():
            self.now[name] = data, self.store.put_match(name, data, tag)
            self.tags[name].append(self.now[name][1])
            there = os.listdir(self.root / "log" / f"{name}~")
            drafts = [int(each[1:10]) for each in there if each.startswith(".")]  # that could not be removed
            least = min([int(self.now[name][1]), *drafts]) - 1
            assert all(int(each) >= least for each in there if each.isdecimal())


def test_a_failing_disk_loses_nothing_and_invents_nothing() -> None:
    run_state_machine_as_test(
        Model, settings=settings(stateful_step_count=25, suppress_health_check=list(HealthCheck))
    )


# Power cuts


class PowerCut(BaseException):
    pass


class UnsafeDisk(Disk):
    """Loses power before its operation number ``left``; ``lose`` then takes away what is not on disk yet."""

    def __init__(self, left: int = 1 << 30) -> None:
        super().__init__()
        self.left = left
        self._unsynced: dict[int, Path] = {}  # by descriptor: written, not fsynced
        self._new: list[Path] = []  # names in folders that were not fsynced since

    def _next(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut

    def create(self, path: Path, mode: int) -> int:
        self._next()
        self._new.append(path)
        descriptor = super().create(path, mode)
        self._unsynced[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        self._next()
        return super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        self._next()
        self._unsynced.pop(descriptor, None)

    def link(self, old: Path, new: Path) -> None:
        self._next()
        assert old not in self._unsynced.values(), "linked before its content was on disk"
        super().link(old, new)
        self._new.append(new)

    def rename(self, old: Path, new: Path) -> None:
        self._next()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._next()
        super().remove(path)

    def sync_folder(self, path: Path) -> None:
        self._next()
        self._new = [each for each in self._new if each.parent != path]

    def lose(self, names: bool) -> None:
        """With ``names``, also the names that may be lost."""
        for path in self._unsynced.values():
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)
        for path in self._new if names else ():
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("names", [False, True])
def test_after_a_power_cut_an_object_is_there_whole_or_not_at_all(tmp_path: Path, names: bool) -> None:
    contents = [b"%d " % number * 100 for number in range(4)]
    for cut in range(100):
        disk = UnsafeDisk()
        root = tmp_path / f"{cut}"
        store = Folder(root, disk=disk)
        tag = store.put_new("m/replaced", contents[0])
        replaced, put = 0, False
        disk.left = cut
        try:
            for number in (1, 2, 3):
                tag = store.put_match("m/replaced", contents[number], tag)
                replaced = number
            store.put_new("s/new", b"new " * 100)
            put = True
        except PowerCut:
            disk.lose(names)
        again = Folder(root)
        found = {entry.name: again.get(entry.name) for entry in again.list_after("")}
        now = found["m/replaced"]
        assert now is not None
        assert replaced <= contents.index(now.data) <= replaced + 1
        assert "s/new" in found or not put
        assert found.get("s/new", (b"new " * 100,))[0] == b"new " * 100  # type: ignore[index]
        if put:
            assert cut > 20
            return
    raise AssertionError("the power never stayed on")


# Slow and killed processes


class Pausing(Disk):
    """Calls ``meanwhile`` before its next link."""

    meanwhile: Callable[[], None] | None = None

    def link(self, old: Path, new: Path) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().link(old, new)


def grow(store: Folder, times: int) -> None:
    for _ in range(times):
        found = store.get("m/one")
        assert found is not None
        store.put_match("m/one", b"%d" % (int(found.data) + 1), found.tag)


@pytest.mark.parametrize("others", [1, 2, 50])
def test_a_writer_that_was_suspended_loses_although_its_version_was_cleaned_up(
    tmp_path: Path, others: int
) -> None:
    disk = Pausing()
    suspended, store = Folder(tmp_path, disk=disk), Folder(tmp_path)
    tag = store.put_new("m/one", b"0")
    disk.meanwhile = lambda: grow(store, others)
    with pytest.raises(Conflict, match="m/one"):
        suspended.put_match("m/one", b"overwritten", tag)
    assert store.get("m/one") == (b"%d" % others, f"{others + 1}")
    grow(store, 3)
    assert len(os.listdir(tmp_path / "m/one~")) <= 3  # what was kept for its draft is gone


def test_a_writer_that_was_suspended_for_hours_loses_too(tmp_path: Path) -> None:
    def hours() -> None:
        [draft] = [path for path in (tmp_path / "m/one~").iterdir() if path.name.startswith(".")]
        os.utime(draft, (1, 1))
        grow(store, 50)
        assert len(os.listdir(tmp_path / "m/one~")) == 2

    disk = Pausing()
    suspended, store = Folder(tmp_path, disk=disk), Folder(tmp_path)
    tag = store.put_new("m/one", b"0")
    disk.meanwhile = hours
    with pytest.raises(WalError, match="m/one"):
        suspended.put_match("m/one", b"overwritten", tag)
    assert store.get("m/one") == (b"50", "51")
    with pytest.raises(Conflict):
        replace(suspended, "m/one", b"overwritten", tag)


def test_drafts_of_killed_processes_go_after_an_hour_and_are_never_listed(tmp_path: Path) -> None:
    now = time.time()
    store = Folder(tmp_path, now=lambda: now)
    store.put_new("m/one", b"0")
    grow(store, 1)
    chance = uuid.uuid4().hex
    places = (f".two-{chance}", f"m/.one-{chance}", f"m/one~/.000000003-{chance}")
    drafts = [tmp_path / place for place in places]
    others = [tmp_path / ".bashrc", tmp_path / "m" / ".nfs0001-2"]  # are nothing of ours
    for path in (*drafts, *others):
        path.touch()
    assert [entry.name for entry in store.list_after("")] == ["m/one"]
    grow(store, 3)
    assert [draft.exists() for draft in drafts] == [True] * 3
    now += folder.DRAFT_AGE + 1
    store.list_after("")
    grow(store, 1)
    assert [draft.exists() for draft in drafts] == [False] * 3
    assert sorted(os.listdir(tmp_path)) == [".bashrc", ".reserve", "m"]
    assert others[1].exists()


def test_an_object_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Folder(tmp_path)
    store.put_new("m/one", b"0")
    grow(store, 1)
    read = Path.read_bytes

    def late(path: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read)
        grow(store, 5)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", late)
    assert store.get("m/one") == (b"6", "7")


# A full disk


class FullDisk(Disk):
    """Has room for ``room`` bytes of new files."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 40
        self._sizes: dict[Path, int] = {}
        self._paths: dict[int, Path] = {}

    def create(self, path: Path, mode: int) -> int:
        descriptor = super().create(path, mode)
        self._paths[descriptor] = path
        return descriptor

    def _take(self, size: int) -> None:
        if size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= size

    def allocate(self, descriptor: int, size: int) -> None:
        self._take(size)
        os.ftruncate(descriptor, size)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        self._take(len(data))
        return super().write(descriptor, data, position)

    def remove(self, path: Path) -> None:
        if path.exists() and path.stat().st_nlink == 1:
            self.room += path.stat().st_size
        super().remove(path)


def test_a_full_disk_takes_replacements_and_no_new_objects_until_the_reserve_is_back(tmp_path: Path) -> None:
    disk = FullDisk()
    store = Folder(tmp_path, disk=disk)
    store.put_new("m/one", b"0")
    store.put_new("s/one/1", bytes(1 << 20))
    disk.room = 0
    with pytest.raises(DiskFull, match="No space left"):
        store.put_new("s/one/2", bytes(1000))
    grow(store, 20)
    assert disk.room > 0
    with pytest.raises(DiskFull):  # although there is room for it
        store.put_new("s/one/2", b"1")
    store.delete_many(["s/one/1"])
    store.put_new("s/one/2", bytes(1000))
    assert (tmp_path / ".reserve").stat().st_size == folder.RESERVE


# Rights


def test_a_new_log_is_private_and_one_in_a_directory_gets_its_mode(tmp_path: Path) -> None:
    def rights(path: Path) -> int:
        return path.stat().st_mode & 0o777

    mask = os.umask(0o022)
    try:
        shared = tmp_path / "shared"
        shared.mkdir(mode=0o755)
        for place, mode in ((shared, 0o755), (tmp_path / "deep" / "own", 0o700)):
            store = Folder(place)
            tag = store.put_new("m/one", b"")
            store.put_match("m/one", b"", tag)
            lock = store.hold("m/one")
            assert lock is not None
            lock.release()
            paths = list(place.rglob("*"))
            assert len(paths) == 6
            assert {rights(path) for path in paths if path.is_dir()} == {mode} == {rights(place)}
            assert {rights(path) for path in paths if path.is_file()} == {mode & 0o666}
    finally:
        os.umask(mask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory to any group")
def test_everything_in_a_shared_directory_belongs_to_its_group(tmp_path: Path) -> None:
    os.chown(tmp_path, -1, 4321)
    store = Folder(tmp_path)
    store.put_match("m/one", b"", store.put_new("m/one", b""))
    assert {path.stat().st_gid for path in tmp_path.rglob("*")} == {4321}


# Locks


def test_a_lock_held_here_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS, closing it would release the lock."""
    store = Folder(tmp_path)
    held = store.hold("m/one")
    assert held is not None
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *_: pytest.fail("opened again"))
        assert store.is_held("m/one")
        with pytest.raises(Conflict):
            store.hold("m/one")
    held.release()
    held.release()
    assert not store.is_held("m/one")


def test_a_system_without_locks_is_an_error(tmp_path: Path, disk: Any) -> None:
    store = Folder(tmp_path, disk=disk)
    disk.failing = {"flock"}
    with pytest.raises(WalError, match="m/one~ cannot be locked: No locks available"):
        store.hold("m/one")
    with pytest.raises(WalError, match="cannot be examined: No locks available"):
        store.is_held("m/one")


def test_a_lock_file_that_was_deleted_meanwhile_is_not_locked(tmp_path: Path) -> None:
    class Deleting(Disk):
        def flock(self, descriptor: int, operation: int) -> None:
            if not deleted:
                deleted.append(True)
                Folder(tmp_path).delete_many(["m/one"])
            super().flock(descriptor, operation)

    deleted: list[bool] = []
    store = Folder(tmp_path, disk=Deleting())
    with pytest.raises(Conflict):
        store.hold("m/one")
    lock = store.hold("m/one")
    assert lock is not None
    lock.release()
