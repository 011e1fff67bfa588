from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import WalError, WalOwned
from nsq.spark.wal import Segment, Subject, inspect, manifest
from nsq.spark.wal.log import Wal
from nsq.spark.wal.names import Position
from nsq.spark.wal.readers import ReaderState
from tests.unit.spark.wal.conftest import log_of, put_all
from tests.unit.spark.wal.test_log import crash


@pytest.fixture
def used(wal: Wal, make: Any) -> Wal:
    """A dead receiver with two segments, and one with nothing."""
    wal.log("b").close()
    with log_of(wal, "a") as log:
        put_all(log, make, 2, 3)
    return wal


def path_of(wal: Wal, number: int) -> Path:
    return Path(wal.location) / manifest.segment_name("a", number)


def test_ls_describes_readers_and_receivers_and_says_what_a_log_is_for(used: Wal, make: Any) -> None:
    assert inspect.ls(used.location).subject is None
    used.prepare(Subject("orders", "spark"))
    with log_of(used, "c") as log:
        put_all(log, make, 1)
        claim = used.own("default", "the query", 0)
        used.save_reader("default", ReaderState(updated=1_700_000_000.0))
        found = inspect.ls(used.location, now=1_700_000_060)
        claim.release()
    assert (found.location, found.identity, found.subject) == (used.location, used.identity(), "orders/spark")
    assert [(one.reader, one.rows, one.idle_seconds) for one in found.readers] == [("default", 6, 60.0)]
    assert "the query" in str(found.readers[0].owner)
    assert found.receivers == [
        inspect.ReceiverLine("a", False, 2, 5, 105, 60.0),
        inspect.ReceiverLine("b", False, 0, 0, 0, None),
        inspect.ReceiverLine("c", True, 1, 1, 21, 60.0),
    ]


@pytest.mark.parametrize("look", [inspect.ls, inspect.verify, inspect.gc])
def test_a_missing_log_is_an_error_and_is_not_created(tmp_path: Path, look: Any) -> None:
    with pytest.raises(WalError, match="there is no log at"):
        look(str(tmp_path / "no"))
    assert os.listdir(tmp_path) == []


def test_verify_sees_damage(used: Wal) -> None:
    assert inspect.verify(used.location) == inspect.Verified(2, 5, [])
    path = path_of(used, 2)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))
    found = inspect.verify(used.location)
    assert (found.segments, found.rows) == (1, 2)
    assert found.problems == [f"{path} does not match its checksum"]
    assert inspect.ls(used.location, now=1_700_000_060).receivers[0].oldest_seconds == 60.0


def test_verify_sees_segments_that_are_gone(used: Wal) -> None:
    path_of(used, 1).unlink()
    found = inspect.verify(used.location)
    assert (found.segments, found.rows) == (1, 3)
    assert [problem.endswith("s/a/000000001.arrow is not there") for problem in found.problems] == [True]


def test_verify_sees_what_readers_lack(used: Wal) -> None:
    claim = used.own("hourly", "a test", 0.0)
    at = {"a": Position(1), "forgotten": Position(7)}
    used.save_reader("hourly", ReaderState(at, True, updated=1.0))
    used.delete(used.segments())
    claim.release()
    assert inspect.verify(used.location).problems == [
        "reader 'hourly' lacks the manifest of receiver forgotten",
        "reader 'hourly' lacks segments 2 to 2 of receiver a",
    ]


def test_gc_closes_the_dead_and_forgets_those_without_segments(used: Wal, make: Any) -> None:
    log = used.log("killed")
    put_all(log, make, 1)
    crash(log)
    found = inspect.gc(used.location)
    assert found == inspect.Tidied(["killed"], [], ["b"])
    assert len(used.segments()) == 3


def test_gc_deletes_unread_segments_only_with_force(used: Wal, make: Any) -> None:
    with log_of(used, "alive") as log:
        put_all(log, make, 1)
        found = inspect.gc(used.location, force=True)
        assert found == inspect.Tidied([], [Segment("a", 1, 2, 42), Segment("a", 2, 3, 63)], ["a", "b"])
        assert used.segments() == [Segment("alive", 1, 1, 21)]


def test_gc_deletes_nothing_that_a_query_may_want(used: Wal) -> None:
    claim = used.own("default", "the query", 0)
    with pytest.raises(WalOwned, match="the query"):
        inspect.gc(used.location, force=True)
    claim.release()
    assert len(used.segments()) == 2
