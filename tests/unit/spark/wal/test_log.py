"""A log in a directory, and over a store in this process that loses answers, fails and stalls."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq.errors import SegmentLost, WalError, WalForeign, WalOwned
from nsq.spark.wal import claim as claims
from nsq.spark.wal import log as logs
from nsq.spark.wal import manifest, receiver_log
from nsq.spark.wal.disk import DiskFull
from nsq.spark.wal.folder import Folder
from nsq.spark.wal.log import Wal
from nsq.spark.wal.names import Position, Subject
from nsq.spark.wal.objects import Conflict, Entry, Memory, Objects
from nsq.spark.wal.readers import ReaderState
from nsq.spark.wal.receiver_log import ReceiverLog
from nsq.spark.wal.status import Status
from tests.fakes.clock import Clock as StandingClock
from tests.fakes.objects import FaultyStore
from tests.integration.patience import eventually
from tests.unit.spark.wal.conftest import Make, log_of, made, put_all


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_log, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(receiver_log, "LONGEST_PAUSE", 0.002)


class Clock(StandingClock):
    def nap(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(store: Objects, clock: Clock) -> Wal:
    wal = Wal(store, "memory://log", now=clock, clock=clock, nap=clock.nap)
    wal.prepare(Subject("orders", "spark"))
    return wal


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return Memory() if request.param == "memory" else Folder(tmp_path / "log")


def test_a_segment_is_read_back_once_it_is_named(
    make: Make, ids: Callable[..., list[int]], store: Objects, clock: Clock
) -> None:
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, *[1] * 5)
        assert ids(wal) == list(range(5))
        assert [folder.alive for folder in wal.receivers()] == [True]
        after = {"one": Position(3)}
        assert [file.segment.number for file in wal.listing(after).files] == [4, 5]
    assert [folder.alive for folder in wal.receivers()] == [False]
    assert ids(wal) == list(range(5))


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from([0.0, 0.1, 0.5]))
def test_errors_and_lost_answers_neither_lose_nor_repeat_a_segment(
    seed: int, errors: float, lost: float
) -> None:
    store = FaultyStore(seed)
    wal = opened(store, Clock())
    log = wal.log("one")
    store.errors, store.lost = errors, lost
    done: list[int] = []

    def put(start: int) -> None:
        for number in range(start, start + 5):
            log.put(made(1, start=number), lambda number=number: done.append(number))  # type: ignore[misc]

    threads = [threading.Thread(target=put, args=(5 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    eventually(lambda: sorted(done), lambda found: found == list(range(15)), 60.0)
    log.close()
    store.errors = store.lost = 0.0
    bodies = [one for segment in wal.segments() for one in wal.read(segment)["id"].to_pylist()]
    assert sorted(bodies) == [b"%016x" % number for number in range(15)]
    assert [segment.number for segment in wal.segments()] == list(range(1, 16))


def test_a_segment_behind_a_missing_one_is_not_named(make: Make, clock: Clock) -> None:
    wal = opened(Memory(), clock)
    done: list[str] = []
    with log_of(wal) as log:
        with log._lock:
            log._next = 2  # as if another thread were still putting segment 1
        log.put(make(1), lambda: done.append("second"))
        beat = log._head.beat
        log._wake.put(None)
        eventually(lambda: log._head.beat, lambda now: now > beat, 60.0)  # it has written the head again
        assert done == []
        assert wal.segments() == []


def test_segments_that_wait_for_an_earlier_one_do_not_fill_the_disk(make: Make, clock: Clock) -> None:
    class First(Memory):
        """Has no room for the first segment."""

        def put_new(self, name: str, data: bytes) -> str:
            if full and name == manifest.segment_name("one", 1):
                raise DiskFull(f"{name}: no space left")
            return super().put_new(name, data)

    full, store = True, First()
    wal = opened(store, clock)
    named: list[int] = []

    def put(number: int) -> None:
        log.put(make(1, start=number), lambda: named.append(number))

    with log_of(wal) as log:
        threads = [threading.Thread(target=put, args=(number,)) for number in range(20)]
        threads[0].start()
        eventually(lambda: log.full, bool, 60.0)
        for thread in threads[1:]:
            thread.start()
        there = lambda: len(store.list_after(manifest.SEGMENTS))  # noqa: E731
        eventually(there, lambda count: count == receiver_log.AHEAD - 1, 60.0)
        eventually(lambda: log._next, lambda number: number == 21, 60.0)
        assert there() == receiver_log.AHEAD - 1
        full = False
        for thread in threads:
            thread.join(60.0)
        eventually(lambda: sorted(named), lambda found: found == list(range(20)), 60.0)


def test_a_receiver_that_was_taken_for_dead_names_nothing_more(make: Make, clock: Clock) -> None:
    store = FaultyStore(now=clock)
    wal = opened(store, clock)
    log = wal.log("one")
    put_all(log, make, 1)
    wal.receivers()
    clock.now += logs.DEAD + 1
    wal.close_dead()  # it may be that this process was suspended
    assert [(folder.alive, folder.closed) for folder in wal.receivers()] == [(False, False)]
    clock.now += logs.CONFIRMED
    wal.close_dead()
    assert [(folder.alive, folder.closed) for folder in wal.receivers()] == [(False, True)]

    done: list[int] = []
    log.put(make(1, start=1), lambda: done.append(1))
    eventually(lambda: log.broken, bool, 60.0)
    assert "starts again under a new name" in log.broken
    assert done == []
    with pytest.raises(WalError, match="dead"):
        log.put(make(1, start=2), lambda: done.append(2))
    log.close()
    assert [segment.number for segment in wal.segments()] == [1]

    assert wal.delete_orphans() == 1
    assert store.get(manifest.segment_name("one", 1)) is not None


def test_the_search_for_orphans_spares_a_receiver_that_starts_meanwhile(make: Make, clock: Clock) -> None:
    class Starting(Memory):
        """Starts a receiver just before the segments are listed."""

        def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
            if prefix == manifest.SEGMENTS and not logs:
                logs.append(wal.log("new"))
                put_all(logs[0], make, 1)
            return super().list_after(prefix, after, most)

    logs: list[ReceiverLog] = []
    wal = opened(Starting(), clock)  # whose clock is far ahead of this process's
    clock.now += 1e10
    assert wal.delete_orphans() == 0
    assert wal.read(wal.segments()[0]).num_rows == 1
    logs[0].close()


def test_a_store_that_lists_late_loses_and_repeats_nothing(make: Make, clock: Clock) -> None:
    class Late(Memory):
        def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
            found = super().list_after(prefix, after, most)
            return [] if late and prefix == manifest.HEADS else found

    late = False
    store = Late()
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, *[1] * 2)
        segments = wal.segments()
        late = True
        assert wal.segments() == segments
        assert [folder.receiver for folder in wal.receivers()] == ["one"]
        assert opened(store, clock).delete_orphans() == 0  # it has never seen the head
        assert len(store.list_after(manifest.SEGMENTS)) == 2
    store.delete_many([manifest.head_name("one")])
    assert wal.segments() == []


def test_the_search_for_orphans_takes_the_log_in_portions(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "ORPHANS_AT_ONCE", 2)
    store = Memory()
    wal = opened(store, clock)
    for number in range(1, 6):
        store.put_new(manifest.segment_name("gone", number), b"")
    with log_of(wal) as log:
        put_all(log, make, *[1] * 3)
        left = []
        for _ in range(6):
            clock.now += logs.ORPHANS_EVERY
            wal.discard_empty([])
            left.append(len(store.list_after(manifest.SEGMENTS)) - 3)
        assert left == [3, 1, 0, 0, 0, 0]
        store.put_new(manifest.segment_name("gone", 6), b"")
        assert wal.delete_orphans() == 1


def test_a_receiver_that_goes_on_after_an_outage_of_the_store_is_not_dead(make: Make, clock: Clock) -> None:
    wal = opened(Memory(), clock)
    with log_of(wal) as log:
        put_all(log, make, 1)
        wal.receivers()
        clock.now += 10 * logs.DEAD  # no process reached the store meanwhile
        wal.close_dead()
        put_all(log, make, 1, start=1)
        clock.now += logs.CONFIRMED
        wal.close_dead()
        assert [(folder.alive, folder.closed) for folder in wal.receivers()] == [(True, False)]


def test_a_process_that_has_just_begun_finds_the_dead_by_the_stores_clock(make: Make, clock: Clock) -> None:
    store = Memory(now=clock)
    wal = opened(store, clock)
    dead = wal.log("dead")
    clock.now += logs.DEAD + 1
    with log_of(wal, "alive"):
        assert [(one.receiver, one.alive) for one in opened(store, clock).receivers()] == [
            ("alive", True),
            ("dead", False),
        ]
    dead.close()


def test_a_receiver_deletes_its_segments_behind_all_readers(make: Make, clock: Clock) -> None:
    store = FaultyStore()
    wal = opened(store, clock)
    claim, other = wal.own("default", "a test", 0.0), wal.own("other", "a test", 0.0)
    with log_of(wal) as log:
        put_all(log, make, *[1] * 4)
        wal.save_reader("default", ReaderState({"one": Position(3)}, True, "", clock.now))
        wal.save_reader("other", ReaderState({"one": Position(2)}, True, "", clock.now))
        held, share = wal.measure(log, 1000)
        assert held == sum(file.size for file in wal.listing().files)
        assert share == 1000
        eventually(lambda: log.first, lambda first: first == 3, 60.0)
        wal.measure(log, 1000)  # the objects go after the head has said so
        there = [entry.name for entry in store.list_after(manifest.SEGMENTS)]
        assert there == [manifest.segment_name("one", number) for number in (3, 4)]
        assert [segment.number for segment in wal.segments()] == [3, 4]
    claim.release()
    other.release()


def test_retention_is_the_longest_that_any_reader_wants(make: Make, store: Objects, clock: Clock) -> None:
    wal = opened(store, clock)
    claims = [wal.own(name, "a test", 0.0) for name in ("default", "other")]
    with log_of(wal) as log:
        put_all(log, make, *[1] * 3)
        done = {"one": Position(3)}
        wal.save_reader("default", ReaderState(done, True, "", clock.now, 0.0, 0))
        wal.save_reader("other", ReaderState(done, True, "", clock.now, 100.0, 1 << 30))
        wal.measure(log, 1 << 30)
        put_all(log, make, 1, start=3)
        assert log.first == 1
        clock.now += 101
        wal.measure(log, 1 << 30)
        put_all(log, make, 1, start=4)
        assert log.first == 4
    for claim in claims:
        claim.release()


def test_segments_of_a_dead_receiver_are_deleted_with_its_manifest(
    make: Make, store: Objects, clock: Clock
) -> None:
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, *[1] * 3)
        assert wal.delete(wal.segments()) == []  # the living delete their own
    gone = wal.segments()
    assert wal.delete(gone[:2]) == gone[:2]
    assert wal.segments() == gone[2:]
    wal.discard_empty([])
    assert len(wal.receivers()) == 1
    store.put_new(manifest.segment_name("one", 4), b"")  # it was killed before it named this one
    wal.delete(gone)
    wal.discard_empty([ReaderState({"one": Position(3)})])
    assert [(each.first, each.ended) for each in wal.receivers()] == [(4, True)]
    wal.discard_empty([ReaderState()])  # no reader knows it any more
    assert wal.receivers() == []
    assert [entry.name for entry in store.list_after("")] == ["identity.json", "subject.json"]


def test_a_known_receiver_that_the_store_lists_late_is_there(make: Make, clock: Clock) -> None:
    class Late(Memory):
        def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
            return []

    store = Late()
    with log_of(opened(store, clock)) as log:
        put_all(log, make, 1)
        other = opened(store, clock)
        assert other.listing().receivers == []
        assert [each.receiver for each in other.listing(known=["one", "none"]).receivers] == ["one"]


def test_a_listing_costs_one_request_and_one_for_each_manifest_that_changed(make: Make, clock: Clock) -> None:
    store = FaultyStore()
    wal = opened(store, clock)
    with log_of(wal, "one") as one, log_of(wal, "two") as two:
        put_all(one, make, *[1] * 2)
        put_all(two, make, *[1] * 2)
        wal.listing()
        store.calls.clear()
        wal.listing()
        assert dict(store.calls) == {"list": 1}
        put_all(two, make, 1, start=2)
        store.calls.clear()
        assert len(wal.listing().files) == 5
        assert dict(store.calls) == {"list": 1, "get": 1}


def test_pages_are_read_only_for_what_a_reader_has_not_committed(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "PAGE", 10)
    monkeypatch.setattr(manifest, "KEPT", 2)
    store = FaultyStore()
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, *[1] * 35)
        assert [segment.number for segment in wal.segments()] == list(range(1, 36))
        fresh = opened(store, clock)
        store.calls.clear()
        assert [one.segment.number for one in fresh.listing({"one": Position(25)}).files] == list(
            range(26, 36)
        )
        assert dict(store.calls) == {"list": 1, "get": 2}  # the head, and one of three pages
        claim = wal.own("default", "a test", 0.0)
        wal.save_reader("default", ReaderState({"one": Position(25)}, True, "", clock.now))
        wal.measure(log, 1000)
        put_all(log, make, 1, start=35)
        wal.measure(log, 1000)
        assert len(store.list_after(manifest.PAGES)) == 1
        assert len(store.list_after(manifest.SEGMENTS)) == 11
        claim.release()


def test_deleting_behind_a_dead_receiver_reads_its_pages_once(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "PAGE", 10)
    monkeypatch.setattr(manifest, "KEPT", 2)
    store = FaultyStore()
    wal = opened(store, clock)
    with log_of(wal, "living") as living:
        put_all(living, make, *[1] * 25)
        with log_of(wal, "dead") as dead:
            put_all(dead, make, *[1] * 25)
        read = {"living": Position(25), "dead": Position(25)}
        wal.listing(read)
        store.calls.clear()
        for _ in range(3):
            assert [file.segment.receiver for file in wal.files_of_readers()] == ["dead"] * 25
            wal.listing(read)
        assert store.calls["get"] == 2  # the pages of the dead one, not those of the living one


def test_a_lost_segment_names_its_object(make: Make, store: Objects, clock: Clock) -> None:
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, 1)
    store.delete_many([manifest.segment_name("one", 1)])
    with pytest.raises(SegmentLost, match="s/one/000000001"):
        wal.read(wal.segments()[0])


# Readers


def test_a_readers_name_is_refused_while_its_owner_lives(store: Objects, clock: Clock) -> None:
    wal = opened(store, clock)
    claim = wal.own("default", "the first", 0.0)

    class Beating(Clock):
        def nap(self, seconds: float) -> None:
            super().nap(seconds)
            claim.verify()

    with pytest.raises(WalOwned, match="the first"):
        opened(store, Beating()).own("default", "the second", 3.0)
    claim.release()
    opened(store, clock).own("default", "the third", 0.0).release()


def test_a_stalled_reader_says_that_it_was_taken_over(clock: Clock) -> None:
    store = Memory()
    first = opened(store, clock)
    claim = first.own("default", "the first", 0.0)
    second = opened(store, Clock())
    taken = second.own("default", "the second", 0.0)  # after 20 s of silence, by its own clock
    with pytest.raises(WalOwned, match="taken over by the second"):
        first.save_reader("default", ReaderState({"one": Position(1)}, True, "", 1.0))
    with pytest.raises(WalOwned, match="taken over"):
        claim.check()
    claim.release()
    taken.release()


@pytest.mark.parametrize("lost", [0.5, 1.0])
def test_a_position_whose_answers_are_lost_is_not_taken_for_a_takeover(clock: Clock, lost: float) -> None:
    store = FaultyStore(7)
    wal = opened(store, clock)
    claim = wal.own("default", "a test", 0.0)
    store.lost = lost
    for segment in range(1, 20):
        try:
            wal.save_reader("default", ReaderState({"one": Position(segment)}, True, "", clock.now))
        except WalOwned:
            raise
        except WalError:
            pass  # the answer was lost twice: Spark's checkpoint has the position too
    store.lost = 0.0
    wal.save_reader("default", ReaderState({"one": Position(20)}, True, "", clock.now))
    assert wal.readers()["default"].at == {"one": Position(20)}
    claim.release()


def test_a_reader_that_was_removed_is_gone(store: Objects, clock: Clock) -> None:
    wal = opened(store, clock)
    wal.own("default", "a test", 0.0).release()
    claim = wal.own("default", "another", 0.0)
    wal.save_reader("default", ReaderState({}, True, "", clock.now))
    wal.remove_reader("default")
    claim.release()
    assert wal.readers() == {}
    assert wal.owner("default") is None


def test_a_reader_that_is_silent_for_long_has_no_owner(clock: Clock) -> None:
    store = Memory(now=clock)
    claim = opened(store, clock).own("default", "a test", 0.0)
    assert "a test" in str(opened(store, clock).owner("default"))
    clock.now += 4 * claims.SILENCE
    assert opened(store, clock).owner("default") is None
    claim.release()


# Where the store has locks


def folder_log(place: Path, clock: Clock) -> Wal:
    return opened(Folder(place), clock)


def crash(log: ReceiverLog) -> None:
    """End its thread and its lock, as the end of the process does."""
    log._break("killed")
    log._thread.join(60.0)
    log._release()


def test_a_dead_receiver_is_known_at_once(
    make: Make, ids: Callable[..., list[int]], tmp_path: Path, clock: Clock
) -> None:
    wal = folder_log(tmp_path, clock)
    log = wal.log("one")
    put_all(log, make, 2)
    assert [(one.alive, one.closed) for one in wal.receivers()] == [(True, False)]
    crash(log)
    assert [(one.alive, one.closed) for one in wal.receivers()] == [(False, False)]
    assert wal.close_dead() == ["one"]
    assert wal.close_dead() == []
    assert [(one.alive, one.closed) for one in wal.receivers()] == [(False, True)]
    assert ids(wal) == [0, 1]


def test_a_receiver_that_is_suspended_for_long_stays_alive(make: Make, tmp_path: Path, clock: Clock) -> None:
    wal = folder_log(tmp_path, clock)
    with log_of(wal) as log:
        wal.receivers()
        clock.now += 1e6
        wal.receivers()
        clock.now += 1e6
        assert wal.close_dead() == []
        assert [one.alive for one in wal.receivers()] == [True]
        put_all(log, make, 1)


def test_a_reader_that_is_suspended_for_long_keeps_its_name_and_a_dead_one_loses_it(
    tmp_path: Path, clock: Clock
) -> None:
    wal = folder_log(tmp_path, clock)
    claim = wal.own("default", "the first", 0.0)
    with pytest.raises(WalOwned, match="the first"):
        folder_log(tmp_path, clock).own("default", "the second", 10 * claims.SILENCE)
    assert "the first" in str(wal.owner("default"))
    assert claim._hold is not None
    claim._hold.release()  # as the end of its process does
    assert wal.owner("default") is None
    began = clock.now
    second = folder_log(tmp_path, clock).own("default", "the second", 0.0)
    assert clock.now - began < 1.0
    with pytest.raises(WalOwned, match="taken over by the second"):
        claim.save(ReaderState())
    claim.release()
    second.release()


def test_an_owner_that_is_leaving_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    first = folder_log(tmp_path, clock).own("default", "the first", 0.0)
    first.leaving()
    store = Folder(tmp_path)
    told = lambda: json.loads(store.get("readers/default.json").data)["owner"]["leaving"]  # type: ignore[union-attr] # noqa: E731
    eventually(told, bool, 60.0)
    with pytest.raises(WalOwned, match="which is leaving; waited 30"):
        folder_log(tmp_path, clock).own("default", "the second", 1.0)
    first.release()


def test_a_head_is_written_for_a_changed_status_and_not_for_an_unchanged_one(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_log, "STATUS_EVERY", 0.01)
    looks = 0
    status = Status()

    def look() -> Status:
        nonlocal looks
        looks += 1
        return status

    wal = folder_log(tmp_path, clock)
    with log_of(wal) as log:
        log.status = look
        eventually(lambda: looks, lambda count: count > 20, 60.0)
        assert log._head.beat == 0
        for paused in ("the log is full", ""):
            status = dataclasses.replace(status, paused=paused)
            eventually(lambda: wal.receivers()[0].status.paused, lambda found: found == paused, 60.0)  # noqa: B023
        eventually(lambda: log._head.beat, lambda beat: beat == 2, 60.0)


def test_dead_receivers_take_no_share_of_the_limit(store: Objects, clock: Clock) -> None:
    store = Memory(now=clock) if isinstance(store, Memory) else store
    wal = opened(store, clock)
    dead = [wal.log(f"dead-{number}") for number in range(3)]
    for log in dead:
        if isinstance(store, Folder):
            log.close()
    clock.now += logs.DEAD + 1
    with log_of(wal, "one") as one, log_of(wal, "two"):
        assert wal.measure(one, 1000) == (0, 500)
    for log in dead:
        log.close()


def test_on_a_full_disk_retention_keeps_nothing(make: Make, store: Objects, clock: Clock) -> None:
    wal = opened(store, clock)
    claim = wal.own("default", "a test", 0.0)
    with log_of(wal) as log:
        put_all(log, make, 1, 1)
        wal.save_reader("default", ReaderState({"one": Position(1)}, True, "", clock.now, 1e6, 1 << 30))
        wal.measure(log, 1 << 30)
        assert log.first == 1
        log._troubles["segments"] = DiskFull("no space left")
        wal.measure(log, 1 << 30)
        eventually(lambda: log.first, lambda first: first == 2, 60.0)
    claim.release()


# What a log is for


ORDERS, CLICKS = Subject("orders", "spark"), Subject("clicks", "spark")


def test_a_log_gets_its_identity_once(store: Objects) -> None:
    identity = Wal(store, "x").prepare()
    assert Wal(store, "x").prepare() == identity == Wal(store, "x").identity()
    assert [entry.name for entry in store.list_after("")] == ["identity.json"]


def test_a_place_with_other_files_is_refused(store: Objects) -> None:
    store.put_new(".hidden", b"")
    store.put_new("letters/1", b"")
    with pytest.raises(WalForeign, match="is not a log, and not empty"):
        Wal(store, "x").prepare()
    store.delete_many(["letters/1"])
    assert Wal(store, "x").prepare()


def test_a_log_of_an_older_format_is_refused_and_left_alone(store: Objects) -> None:
    store.put_new("identity.json", b'{"format": 1, "identity": "5f0c", "created": "2025-01-31T12:00:00Z"}')
    store.put_new("20250131T120000-host-1-abcd/000001-5-100.arrow", b"")
    before = store.list_after("")
    for use in (Wal(store, "x").prepare, Wal(store, "x").identity, lambda: Wal(store, "x").log("r")):
        with pytest.raises(WalForeign, match=r"identity.json belongs to a log of format 1, .* checkpoints"):
            use()
    assert store.list_after("") == before


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WalError, match="file"):
        Wal(Folder(tmp_path / "file"), "x").prepare()


def test_a_log_is_for_one_topic_and_channel(store: Objects) -> None:
    wal = Wal(store, "x")
    assert wal.prepare() == wal.prepare(ORDERS) == wal.prepare(ORDERS)  # one without a subject is adopted
    assert wal.subject() == ORDERS
    for other in (CLICKS, Subject("orders", "archive")):
        with pytest.raises(WalForeign, match=f"is the log of orders/spark, and this is to read {other}"):
            wal.prepare(other)
    both = Subject("clicks,orders", "spark")
    wal.prepare(both)
    assert wal.subject() == both


def test_only_one_of_two_processes_sets_the_subject_of_a_log() -> None:
    class Beside(Memory):
        def put_new(self, name: str, data: bytes) -> str:
            if name == "subject.json" and not done:
                done.append(True)
                Wal(self, "x").prepare(ORDERS)
            return super().put_new(name, data)

    done: list[bool] = []
    with pytest.raises(WalForeign, match="is the log of orders/spark"):
        Wal(Beside(), "x").prepare(CLICKS)


@pytest.mark.parametrize("name", ["../r", ".r", "a/b", ""])
def test_a_receiver_needs_a_name_and_a_prepared_log(store: Objects, name: str) -> None:
    with pytest.raises(WalError, match="is not a valid receiver name"):
        Wal(store, "x").log(name)
    with pytest.raises(WalError, match="prepare it first"):
        Wal(store, "x").log("r")


def test_two_receivers_cannot_have_one_name(store: Objects, clock: Clock) -> None:
    wal = opened(store, clock)
    wal.log("r").close()
    with pytest.raises(Conflict, match="m/r"):
        wal.log("r")


# The store


def test_processes_may_prepare_a_new_log_at_once() -> None:
    class Beside(Memory):
        """While one process probes the store, another one prepares the log."""

        def put_match(self, name: str, data: bytes, tag: str) -> str:
            if not prepared:
                prepared.append("")
                prepared[0] = Wal(self, "memory://log").prepare()
            return super().put_match(name, data, tag)

    prepared: list[str] = []
    assert Wal(Beside(), "memory://log").prepare() == prepared[0]


def test_a_log_that_a_race_keeps_from_being_made_is_tried_again_and_has_no_identity(clock: Clock) -> None:
    class Racing(Memory):
        """Answers 409, as S3 does when it cannot decide between two requests at once."""

        def put_new(self, name: str, data: bytes) -> str:
            if refused and name.startswith(refused[0]):
                del refused[0]
                raise Conflict(f"{name}: 409")
            return super().put_new(name, data)

    refused = ["identity.json"] * 5
    wal = Wal(Racing(), "memory://log", nap=clock.nap)
    with pytest.raises(WalError, match="because of a race"):
        wal.prepare()
    refused = [".probe-", "identity.json"]
    assert wal.prepare() == wal.identity()


def test_a_job_is_asked_to_stop_through_the_log(store: Objects, clock: Clock) -> None:
    wal = opened(store, clock)
    assert not wal.stop_requested("j")
    wal.request_stop("j")
    assert opened(store, clock).stop_requested("j")
    wal.forget_job("j")
    assert not wal.stop_requested("j")


def test_errors_of_a_job_are_found_until_they_are_taken_back_or_old(store: Objects) -> None:
    clock = Clock()
    clock.now = time.time()
    wal = opened(store, clock)
    assert wal.job_errors() == []
    wal.request_stop("j")
    wal.note_error("j", "0", "no way to nsqd")
    wal.note_error("j", "1", "no way to nsqd")
    wal.note_error("k", "0", "no credentials")
    assert wal.job_errors() == ["no way to nsqd", "no credentials"]
    wal.note_error("k", "0", "wrong credentials")
    assert wal.job_errors("k") == ["wrong credentials"]
    wal.note_error("k", "0", "")
    assert wal.job_errors("k") == []
    clock.now += 4 * logs.NOTED_EVERY
    assert wal.job_errors() == []
    clock.now -= 4 * logs.NOTED_EVERY
    wal.forget_job("j")
    assert wal.job_errors() == []
    assert not wal.stop_requested("j")


def test_a_page_that_cannot_be_written_holds_up_nothing(
    make: Make, ids: Callable[..., list[int]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, the head that says what is deleted is what makes room."""
    monkeypatch.setattr(manifest, "PAGE", 4)
    monkeypatch.setattr(manifest, "KEPT", 1)

    class NoPages(Memory):
        def put_new(self, name: str, data: bytes) -> str:
            if full and name.startswith(manifest.PAGES):
                raise DiskFull(f"{name}: no space left")
            return super().put_new(name, data)

    full = True
    store = NoPages()
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, *[1] * 9)
        assert ids(wal) == list(range(9))
        full = False
        put_all(log, make, 1, start=9)
        assert len(store.list_after(manifest.PAGES)) == 2
        assert ids(wal) == list(range(10))


def test_pages_of_deleted_segments_go_wherever_they_begin(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "PAGE", 10)
    monkeypatch.setattr(manifest, "KEPT", 2)
    store = Memory()
    wal = opened(store, clock)
    claim = wal.own("default", "a test", 0.0)
    with log_of(wal) as log:
        for start, at in ((0, 5), (6, 11), (18, 30)):
            put_all(log, make, *[1] * (6 if not start else 12 if start == 6 else 14), start=start)
            wal.save_reader("default", ReaderState({"one": Position(at)}, True, "", clock.now))
            wal.measure(log, 1000)
            eventually(lambda: log.first, lambda first: first == at + 1, 60.0)  # noqa: B023
        wal.measure(log, 1000)
        assert [entry.name for entry in store.list_after(manifest.PAGES)] == []
    claim.release()
