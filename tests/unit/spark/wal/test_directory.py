from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import SegmentLost, WalError, WalForeign, WalOwned
from nsq.spark.wal import ReceiverFolder, Segment, Subject, ownership
from nsq.spark.wal.directory import DirectoryWal


def test_a_log_gets_its_identity_once(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there" / "yet"
    identity = DirectoryWal(place).prepare()
    assert DirectoryWal(place).prepare() == identity == DirectoryWal(place).identity()
    assert os.listdir(place) == ["identity.json"]


def test_an_empty_folder_becomes_a_log(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    assert DirectoryWal(tmp_path).prepare()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(WalForeign, match="is not a log, and not empty"):
        DirectoryWal(tmp_path).prepare()
    assert os.listdir(tmp_path) == ["letters"]


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WalError, match="file cannot be made: File exists"):
        DirectoryWal(tmp_path / "file").prepare()


ORDERS, CLICKS = Subject("orders", "spark"), Subject("clicks", "spark")


def test_a_log_is_for_one_topic_and_channel(tmp_path: Path) -> None:
    wal = DirectoryWal(tmp_path / "wal")
    identity = wal.prepare(ORDERS)
    assert wal.prepare(ORDERS) == wal.prepare() == identity
    assert wal.subject() == ORDERS
    for other in (CLICKS, Subject("orders", "archive")):
        with pytest.raises(WalForeign, match=f"wal is the log of orders/spark, and this is to read {other}"):
            wal.prepare(other)
    assert sorted(os.listdir(wal.location)) == ["identity.json", "subject.json"]


def test_a_log_without_a_subject_is_adopted(wal: DirectoryWal, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(1))
    assert wal.subject() is None
    assert wal.prepare(ORDERS) == wal.identity()
    with pytest.raises(WalForeign):
        wal.prepare(CLICKS)
    assert len(wal.segments()) == 1


def test_only_one_of_two_processes_sets_the_subject_of_a_log(wal: DirectoryWal, monkeypatch: Any) -> None:
    link = os.link

    def late(*paths: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        DirectoryWal(wal.location).prepare(ORDERS)
        link(*paths)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(WalForeign, match="is the log of orders/spark"):
        wal.prepare(CLICKS)


def test_a_log_needs_a_prepared_place(tmp_path: Path) -> None:
    with pytest.raises(WalError, match="prepare it first"):
        DirectoryWal(tmp_path).log("r")
    assert DirectoryWal(tmp_path / "no").identity() is None
    with pytest.raises(WalError, match="no cannot be listed: No such file"):
        DirectoryWal(tmp_path / "no").segments()
    with pytest.raises(WalError, match="No such file"):
        DirectoryWal(tmp_path / "no").own("default", "me", 0)


@pytest.mark.parametrize("name", ["../r", ".r", "owner", "subject.json", ""])
def test_a_receiver_needs_a_name(wal: DirectoryWal, name: str) -> None:
    with pytest.raises(WalError, match="is not a valid receiver name"):
        wal.log(name)


def test_two_receivers_cannot_have_one_name(wal: DirectoryWal) -> None:
    wal.log("r").close()
    with pytest.raises(WalError, match="r is there already"):
        wal.log("r")
    assert sorted(os.listdir(wal.location)) == ["identity.json", "r"]


def test_receivers_are_listed_with_their_open_bytes_and_segments(wal: DirectoryWal, make: Any) -> None:
    wal.log("a").close()
    with wal.log("b") as log:
        log.append(make(1))
        log.roll()
        log.append(make(1))
        size = (Path(wal.location) / "b" / "000002.open").stat().st_size
        assert wal.receivers() == [ReceiverFolder("a", False, 0, 0), ReceiverFolder("b", True, size, 1)]


def test_segments_are_ordered_by_receiver_and_number_and_other_files_are_ignored(
    wal: DirectoryWal, make: Any
) -> None:
    for receiver in ("b", "a"):
        with wal.log(receiver) as log:
            for _ in range(2):
                log.append(make(1))
                log.roll()
    (Path(wal.location) / "notes.txt").touch()
    (Path(wal.location) / "a" / "notes.txt").touch()
    (Path(wal.location) / "link").symlink_to("a")
    (Path(wal.location) / "loop").symlink_to("loop")
    found = [(segment.receiver, segment.number) for segment in wal.segments()]
    assert found == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_a_segment_may_be_deleted_twice(wal: DirectoryWal, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(1))
    gone = Segment("gone", 1, 1, 1)
    for _ in range(2):
        wal.delete([Segment("r", 1, 1, 21), gone])
    assert wal.segments() == []


def test_a_segment_stays_readable_while_it_is_deleted(wal: DirectoryWal, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(3))
        log.append(make(2))
    (segment,) = wal.segments()
    reading = wal.read(segment)
    first = next(reading)
    wal.delete([segment])
    assert [first, *reading] == [make(3), make(2)]


def test_a_missing_shorter_or_empty_segment_is_named(wal: DirectoryWal, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(3))
    (segment,) = wal.segments()
    path = wal.path(segment)
    for size, reason in ((path.stat().st_size - 80, "0 of 3 rows can be read"), (0, "")):
        os.truncate(path, size)
        with pytest.raises(SegmentLost, match=rf"000001-3-63\.arrow: {reason}"):
            list(wal.read(segment))
    path.unlink()
    with pytest.raises(SegmentLost, match=r"wal/r/000001-3-63\.arrow is not there"):
        wal.read(segment)


def test_empty_folders_go(wal: DirectoryWal, make: Any) -> None:
    wal.log("empty").close()
    with wal.log("full") as log:
        log.append(make(1))
    with wal.log("alive"):
        starting = Path(wal.location) / ".new-1"
        starting.mkdir()
        (starting / "lock").touch()
        wal.discard_empty()
        assert sorted(os.listdir(wal.location)) == ["alive", "full", "identity.json"]


def test_a_receiver_that_is_only_just_starting_is_invisible(
    wal: DirectoryWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def looking(old: Path, new: Path) -> None:
        seen.append((wal.receivers(), wal.recover()))
        wal.discard_empty()
        os.rename(old, new)

    monkeypatch.setattr(wal._disk, "rename", looking)
    with wal.log("r"):
        assert seen == [([], [])]
        assert wal.receivers() == [ReceiverFolder("r", True, 0, 0)]


def test_a_start_that_is_disturbed_is_repeated(wal: DirectoryWal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process probes the lock, or removes the folder, before it is locked."""
    acquire, disturbances = ownership.acquire, [0, 1]

    def disturbed(path: Path, mode: int) -> ownership.FileLock | None:
        if not disturbances:
            return acquire(path, mode)
        if disturbances.pop():
            return None
        wal.discard_empty()
        raise FileNotFoundError(path)

    monkeypatch.setattr(ownership, "acquire", disturbed)
    wal.log("r").close()
    assert [folder.receiver for folder in wal.receivers()] == ["r"]


def test_a_start_that_is_always_disturbed_is_an_error(
    wal: DirectoryWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "acquire", lambda path, mode: None)
    with pytest.raises(WalError, match="r cannot be made: its folder was"):
        wal.log("r")


def test_a_readers_name_has_one_owner(wal: DirectoryWal) -> None:
    hours = itertools.count(0.0, 10.0)
    wal = DirectoryWal(wal.location, clock=lambda: next(hours), nap=lambda seconds: None)
    assert wal.owner("default") is None
    first = wal.own("default", "query one", 0)
    owner = wal.owner("default")
    assert owner is not None
    assert (owner.description, owner.pid, owner.leaving) == ("query one", os.getpid(), False)
    with pytest.raises(WalOwned, match=r"wal is owned by query one \(process .*as 'default'.*option reader"):
        wal.own("default", "query two", 0)
    first.release()
    first.release()
    assert wal.owner("default") is None
    wal.own("default", "query two", 0).release()
