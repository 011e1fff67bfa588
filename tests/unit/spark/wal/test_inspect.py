from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import WalError, WalOwned
from nsq.spark.wal import Segment, Subject, inspect
from nsq.spark.wal.directory import DirectoryWal


@pytest.fixture
def used(wal: DirectoryWal, make: Any) -> DirectoryWal:
    """A dead receiver with two segments, and one with nothing."""
    wal.log("b").close()
    with wal.log("a") as log:
        log.append(make(2))
        log.roll()
        log.append(make(3, start=2))
    return wal


def test_ls_describes_readers_and_receivers_and_says_what_a_log_is_for(used: DirectoryWal, make: Any) -> None:
    assert inspect.ls(used.location).subject is None
    used.prepare(Subject("orders", "spark"))
    with used.log("c") as log:
        log.append(make(1))
        claim = used.own("default", "the query", 0)
        found = inspect.ls(used.location, now=1_700_000_060)
        claim.release()
        size = (Path(used.location) / "c" / "000001.open").stat().st_size
    assert (found.location, found.identity, found.subject) == (used.location, used.identity(), "orders/spark")
    assert found.readers == []
    assert found.receivers == [
        inspect.ReceiverLine("a", False, 2, 5, 105, 0, 60.0),
        inspect.ReceiverLine("b", False, 0, 0, 0, 0, None),
        inspect.ReceiverLine("c", True, 0, 0, 0, size, None),
    ]


@pytest.mark.parametrize("look", [inspect.ls, inspect.verify, inspect.gc])
def test_a_missing_log_is_an_error_and_is_not_created(tmp_path: Path, look: Any) -> None:
    with pytest.raises(WalError, match="there is no log at"):
        look(str(tmp_path / "no"))
    assert os.listdir(tmp_path) == []


def test_verify_sees_damage(used: DirectoryWal) -> None:
    assert inspect.verify(used.location) == inspect.Verified(2, 5, [])
    path = used.path(used.segments()[1])
    data = bytearray(path.read_bytes())
    data[-12] ^= 1
    path.write_bytes(bytes(data))
    found = inspect.verify(used.location)
    assert (found.segments, found.rows) == (1, 2)
    assert [problem.partition(": ")[2] for problem in found.problems] == [
        "0 of 3 rows can be read: the next batch does not match its checksum"
    ]
    assert inspect.ls(used.location, now=1_700_000_060).receivers[0].oldest_seconds == 60.0


def test_ls_survives_damage(used: DirectoryWal) -> None:
    used.path(used.segments()[0]).write_bytes(b"damaged")
    assert inspect.ls(used.location).receivers[0].oldest_seconds is None


def test_verify_sees_a_wrong_size_and_a_hole(used: DirectoryWal) -> None:
    folder = Path(used.location) / "a"
    (folder / "000002-3-63.arrow").rename(folder / "000003-3-64.arrow")
    found = inspect.verify(used.location)
    assert found.problems == [
        "a: segment 1 is followed by 3",
        "Segment(receiver='a', number=3, rows=3, bytes=64): its bodies have 63 bytes",
    ]


def test_gc_recovers_and_removes_what_is_empty(used: DirectoryWal, make: Any) -> None:
    log = used.log("killed")
    log.append(make(1))
    assert log._open is not None
    os.close(log._open.descriptor)
    log._lock.release()
    found = inspect.gc(used.location)
    assert found == inspect.Tidied([Segment("killed", 1, 1, 21)], [], ["b"])
    assert len(used.segments()) == 3


def test_gc_deletes_unread_segments_only_with_force(used: DirectoryWal, make: Any) -> None:
    with used.log("alive") as log:
        log.append(make(1))
        log.roll()
        found = inspect.gc(used.location, force=True)
        assert found == inspect.Tidied([], [Segment("a", 1, 2, 42), Segment("a", 2, 3, 63)], ["a", "b"])
        assert used.segments() == [Segment("alive", 1, 1, 21)]


def test_gc_deletes_nothing_that_a_query_may_want(used: DirectoryWal) -> None:
    claim = used.own("default", "the query", 0)
    with pytest.raises(WalOwned, match="the query"):
        inspect.gc(used.location, force=True)
    claim.release()
    assert len(used.segments()) == 2
