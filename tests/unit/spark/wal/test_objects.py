from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from nsq.errors import SegmentLost, WalError, WalForeign, WalOwned
from nsq.spark.wal import ReceiverFolder, Segment, Subject
from nsq.spark.wal import objects as leases
from nsq.spark.wal.objects import Bucket, ObjectWal

hours = itertools.count(1_000_000.0, 0.01)


def now() -> float:
    return next(hours)


def on(filesystem: fs.FileSystem, path: str) -> ObjectWal:
    return ObjectWal(filesystem, path, now=now, clock=now, nap=lambda seconds: None)


@pytest.fixture(params=["local", "subtree", "mock"])
def wal(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectWal:
    local = fs.LocalFileSystem()
    if request.param == "local":
        made = on(local, str(tmp_path / "wal"))
    elif request.param == "subtree":
        made = on(fs.SubTreeFileSystem(str(tmp_path), local), "wal")
    else:
        made = on(fs._MockFileSystem(), "bucket/wal")
    made.prepare()
    return made


def test_prepared_once(wal: ObjectWal) -> None:
    assert wal.prepare() == wal.prepare() == wal.identity()


def test_of_two_who_prepare_at_once_one_identity_counts() -> None:
    files = fs._MockFileSystem()
    others: list[str] = []
    second = on(files, "b/wal")

    def meanwhile(seconds: float) -> None:
        Bucket(files, "b/wal").delete("identity.json")  # the other one has not seen ours
        others.append(second.prepare())

    first = ObjectWal(files, "b/wal", now=now, clock=now, nap=meanwhile)
    assert [first.prepare()] == others == [second.identity()]


def test_something_else_is_refused() -> None:
    files = fs._MockFileSystem()
    files.create_dir("b/wal/letters")
    with pytest.raises(WalForeign, match="b/wal is no log, and not empty"):
        on(files, "b/wal").prepare()


def test_a_newer_format_is_refused() -> None:
    files = fs._MockFileSystem()
    files.create_dir("b/wal")
    Bucket(files, "b/wal").put("identity.json", b'{"format": 2, "identity": "x"}')
    with pytest.raises(WalForeign, match=r"b/wal/identity\.json has format 2"):
        on(files, "b/wal").prepare()


ORDERS, CLICKS = Subject("orders", "spark"), Subject("clicks", "spark")


def test_a_log_is_for_one_topic_and_channel(wal: ObjectWal) -> None:
    assert wal.subject() is None  # as older logs do, it does not say
    assert wal.prepare(ORDERS) == wal.prepare(ORDERS) == wal.identity()
    with pytest.raises(WalForeign, match="wal is the log of orders/spark, and this is to read clicks/spark"):
        wal.prepare(CLICKS)
    assert wal.receivers() == []


def test_of_two_who_prepare_at_once_the_last_one_has_it() -> None:
    files = fs._MockFileSystem()

    def meanwhile(seconds: float) -> None:
        Bucket(files, "b/wal").delete("subject.json")  # the other one has not seen ours
        on(files, "b/wal").prepare(CLICKS)

    first = ObjectWal(files, "b/wal", now=now, clock=now, nap=meanwhile)
    with pytest.raises(WalForeign, match="b/wal is the log of clicks/spark"):
        first.prepare(ORDERS)


def test_a_new_log_is_waited_for_once() -> None:
    naps: list[float] = []
    wal = ObjectWal(fs._MockFileSystem(), "b/wal", now=now, clock=now, nap=naps.append)
    wal.prepare(ORDERS)
    wal.prepare(ORDERS)
    assert naps == [leases.SETTLE]


def test_appended_is_sealed(wal: ObjectWal, make: Any) -> None:
    with wal.log("r") as log:
        assert log.roll() is None
        log.append(make(3))
        assert wal.segments() == [Segment("r", 1, 3, 63)]
        log.append(make(2, start=3))
        log.append(make(0))
        assert (log.open_rows, log.open_bytes) == (0, 0)
        assert log.roll() == Segment("r", 2, 2, 42)
        assert log.roll() is None
        assert wal.receivers() == [ReceiverFolder("r", True, 0, 2)]
    assert [list(wal.read(segment)) for segment in wal.segments()] == [[make(3)], [make(2, start=3)]]
    assert wal.receivers() == [ReceiverFolder("r", False, 0, 2)]
    assert wal.recover() == []


def test_refusals(wal: ObjectWal, make: Any) -> None:
    with wal.log("r") as log, pytest.raises(WalError, match="a receiver's name must be new"):
        wal.log("r")
    with pytest.raises(WalError, match="is no name for a receiver"):
        wal.log("a/b")
    with pytest.raises(WalError, match="closed"):
        log.append(make(1))
    with pytest.raises(WalError, match="has to be prepared first"):
        on(fs._MockFileSystem(), "b/wal").log("r")


def test_deleted_and_lost(wal: ObjectWal, make: Any) -> None:
    with wal.log("r") as log:
        log.append(make(1))
        log.append(make(1))
    first, second = wal.segments()
    for _ in range(2):
        wal.delete([first])
    assert wal.segments() == [second]
    with pytest.raises(SegmentLost, match=r"wal/r/000001-1-21\.arrow is not there"):
        wal.read(first)


def test_a_shorter_object_is_lost(make: Any) -> None:
    files = fs._MockFileSystem()
    wal = on(files, "b/wal")
    wal.prepare()
    with wal.log("r") as log:
        log.append(make(1))
    bucket = Bucket(files, "b/wal")
    bucket.put("r/000001-1-21.arrow", bytes(bucket.get("r/000001-1-21.arrow") or b"")[:300])
    with pytest.raises(SegmentLost, match=r"b/wal/r/000001-1-21\.arrow: 0 of 1 rows"):
        list(wal.read(Segment("r", 1, 1, 21)))


def test_empty_folders_of_the_dead_go(wal: ObjectWal, make: Any) -> None:
    wal.log("empty").close()
    with wal.log("full") as full:
        full.append(make(1))
    with wal.log("alive"):
        wal.discard_empty()
        assert [folder.receiver for folder in wal.receivers()] == ["alive", "full"]


def test_one_owner(wal: ObjectWal) -> None:
    assert wal.owner("default") is None
    claim = wal.own("default", "one", 0)
    owner = wal.owner("default")
    assert owner is not None
    assert owner.description == "one"
    with pytest.raises(WalOwned, match="is owned by one"):
        wal.own("default", "two", 0)
    claim.release()
    assert wal.owner("default") is None


class Outage:
    """Puts of segments fail, before or after they have happened, or the store answers nothing at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before = self.after = self.silent = False
        put, has = Bucket.put, Bucket.has

        def failing_put(bucket: Bucket, name: str, data: bytes | pa.Buffer, *, once: bool = False) -> None:
            if self.before:
                raise WalError("no connection")
            put(bucket, name, data)
            if self.after:
                raise WalError("no answer")

        def failing_has(bucket: Bucket, name: str) -> bool:
            if self.silent:
                raise WalError("no connection")
            return has(bucket, name)

        monkeypatch.setattr(Bucket, "put", failing_put)
        monkeypatch.setattr(Bucket, "has", failing_has)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


def test_a_failed_put_leaves_what_there_was(wal: ObjectWal, make: Any, outage: Outage) -> None:
    with wal.log("r") as log:
        log.append(make(1))
        outage.before = True
        with pytest.raises(WalError, match="no connection"):
            log.append(make(2))
        outage.before = False
        log.append(make(3))
    assert wal.segments() == [Segment("r", 1, 1, 21), Segment("r", 2, 3, 63)]


def test_a_put_that_only_seemed_to_fail_counts(wal: ObjectWal, make: Any, outage: Outage) -> None:
    with wal.log("r") as log:
        outage.after = True
        log.append(make(1))
        assert log.roll() == Segment("r", 1, 1, 21)


def test_a_put_that_turns_out_to_have_happened_keeps_its_number(
    wal: ObjectWal, make: Any, outage: Outage
) -> None:
    with wal.log("r") as log:
        outage.after = outage.silent = True
        with pytest.raises(WalError):
            log.append(make(1))
        outage.after = False
        with pytest.raises(WalError):
            log.append(make(2))
        outage.silent = False
        log.append(make(2))
    assert wal.segments() == [Segment("r", 1, 1, 21), Segment("r", 2, 2, 42)]


def test_a_receiver_whose_lease_is_old_is_dead(make: Any) -> None:
    files, hour = fs._MockFileSystem(), [1000.0]
    wal = ObjectWal(files, "b/wal", now=lambda: hour[0], clock=lambda: hour[0], nap=lambda seconds: None)
    wal.prepare()
    with wal.log("r"):
        assert wal.receivers()[0].alive
        hour[0] += leases.LIFETIME + leases.SKEW
        assert not wal.receivers()[0].alive
