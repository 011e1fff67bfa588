"""A shared log over a store in this process that loses answers, fails and stalls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq.errors import SegmentLost, WalError, WalOwned
from nsq.spark.wal import manifest, shared, shared_log
from nsq.spark.wal.names import Position, Subject
from nsq.spark.wal.objects import Conflict, Entry, Memory, create, replace
from nsq.spark.wal.readers import ReaderState
from nsq.spark.wal.shared import SharedWal
from nsq.spark.wal.shared_log import SharedLog
from tests.fakes.clock import Clock as StandingClock
from tests.fakes.objects import FaultyStore
from tests.integration.patience import eventually
from tests.unit.spark.wal.conftest import Make, made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(shared_log, "LONGEST_PAUSE", 0.002)


class Clock(StandingClock):
    def nap(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(store: Memory, clock: Clock) -> SharedWal:
    wal = SharedWal(store, "memory://log", now=clock, clock=clock, nap=clock.nap)
    wal.prepare(Subject("orders", "spark"))
    return wal


@contextmanager
def log_of(wal: SharedWal, receiver: str = "one") -> Iterator[SharedLog]:
    log = wal.log(receiver)
    try:
        yield log
    finally:
        log.close()


def put_all(log: SharedLog, make: Make, count: int, start: int = 0) -> None:
    """Put segments of one row each, and wait until they are named."""
    done: list[int] = []
    for number in range(start, start + count):
        log.put(make(1, start=number), lambda number=number: done.append(number))  # type: ignore[misc]
    eventually(lambda: len(done), lambda length: length == count, 60.0)
    assert done == list(range(start, start + count))


def test_a_segment_is_read_back_once_it_is_named(
    make: Make, ids: Callable[..., list[int]], clock: Clock
) -> None:
    wal = opened(Memory(), clock)
    with log_of(wal) as log:
        put_all(log, make, 5)
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
    bodies = [
        one for segment in wal.segments() for batch in wal.read(segment) for one in batch["id"].to_pylist()
    ]
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


def test_a_receiver_that_was_taken_for_dead_names_nothing_more(make: Make, clock: Clock) -> None:
    store = FaultyStore(now=clock)
    wal = opened(store, clock)
    log = wal.log("one")
    put_all(log, make, 1)
    wal.receivers()
    clock.now += shared.DEAD + 1
    wal.recover()  # it may be that this process was suspended
    assert [(folder.alive, folder.closed) for folder in wal.receivers()] == [(False, False)]
    clock.now += shared.CONFIRMED
    wal.recover()
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

    logs: list[SharedLog] = []
    wal = opened(Starting(), clock)  # whose clock is far ahead of this process's
    clock.now += 1e10
    assert wal.delete_orphans() == 0
    assert len(list(wal.read(wal.segments()[0]))) == 1
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
        put_all(log, make, 2)
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
    monkeypatch.setattr(shared, "ORPHANS_AT_ONCE", 2)
    store = Memory()
    wal = opened(store, clock)
    for number in range(1, 6):
        store.put_new(manifest.segment_name("gone", number), b"")
    with log_of(wal) as log:
        put_all(log, make, 3)
        left = []
        for _ in range(6):
            clock.now += shared.ORPHANS_EVERY
            wal.discard_empty()
            left.append(len(store.list_after(manifest.SEGMENTS)) - 3)
        assert left == [3, 1, 0, 0, 0, 0]
        store.put_new(manifest.segment_name("gone", 6), b"")
        assert wal.delete_orphans() == 1


def test_a_receiver_that_goes_on_after_an_outage_of_the_store_is_not_dead(make: Make, clock: Clock) -> None:
    wal = opened(Memory(), clock)
    with log_of(wal) as log:
        put_all(log, make, 1)
        wal.receivers()
        clock.now += 10 * shared.DEAD  # no process reached the store meanwhile
        wal.recover()
        put_all(log, make, 1, start=1)
        clock.now += shared.CONFIRMED
        wal.recover()
        assert [(folder.alive, folder.closed) for folder in wal.receivers()] == [(True, False)]


def test_a_process_that_has_just_begun_finds_the_dead_by_the_stores_clock(make: Make, clock: Clock) -> None:
    store = Memory(now=clock)
    wal = opened(store, clock)
    dead = wal.log("dead")
    clock.now += shared.DEAD + 1
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
        put_all(log, make, 4)
        wal.save_reader("default", ReaderState({"one": Position(3)}, True, "", clock.now))
        wal.save_reader("other", ReaderState({"one": Position(2)}, True, "", clock.now))
        held, share = wal.measure([log], 1000)
        assert held == sum(file.size for file in wal.files())
        assert share == 1000
        eventually(lambda: log.first, lambda first: first == 3, 60.0)
        wal.measure([log], 1000)  # the objects go after the head has said so
        there = [entry.name for entry in store.list_after(manifest.SEGMENTS)]
        assert there == [manifest.segment_name("one", number) for number in (3, 4)]
        assert [segment.number for segment in wal.segments()] == [3, 4]
    claim.release()
    other.release()


def test_retention_is_the_longest_that_any_reader_wants(make: Make, clock: Clock) -> None:
    wal = opened(Memory(), clock)
    claims = [wal.own(name, "a test", 0.0) for name in ("default", "other")]
    with log_of(wal) as log:
        put_all(log, make, 3)
        done = {"one": Position(3)}
        wal.save_reader("default", ReaderState(done, True, "", clock.now, 0.0, 0))
        wal.save_reader("other", ReaderState(done, True, "", clock.now, 100.0, 1 << 30))
        wal.measure([log], 1 << 30)
        put_all(log, make, 1, start=3)
        assert log.first == 1
        clock.now += 101
        wal.measure([log], 1 << 30)
        put_all(log, make, 1, start=4)
        assert log.first == 4
    for claim in claims:
        claim.release()


def test_segments_of_a_dead_receiver_are_deleted_with_its_manifest(make: Make, clock: Clock) -> None:
    store = Memory()
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, 3)
        assert wal.delete(wal.segments()) == []  # the living delete their own
    gone = wal.segments()
    assert wal.delete(gone[:2]) == gone[:2]
    assert wal.segments() == gone[2:]
    wal.discard_empty()
    assert len(wal.receivers()) == 1
    wal.delete(gone)
    wal.discard_empty()
    assert wal.receivers() == []
    assert [entry.name for entry in store.list_after("")] == ["identity.json", "subject.json"]


def test_a_listing_costs_one_request_and_one_for_each_manifest_that_changed(make: Make, clock: Clock) -> None:
    store = FaultyStore()
    wal = opened(store, clock)
    with log_of(wal, "one") as one, log_of(wal, "two") as two:
        put_all(one, make, 2)
        put_all(two, make, 2)
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
        put_all(log, make, 35)
        assert [segment.number for segment in wal.segments()] == list(range(1, 36))
        fresh = opened(store, clock)
        store.calls.clear()
        assert [one.segment.number for one in fresh.listing({"one": Position(25)}).files] == list(
            range(26, 36)
        )
        assert dict(store.calls) == {"list": 1, "get": 2}  # the head, and one of three pages
        claim = wal.own("default", "a test", 0.0)
        wal.save_reader("default", ReaderState({"one": Position(25)}, True, "", clock.now))
        wal.measure([log], 1000)
        put_all(log, make, 1, start=35)
        wal.measure([log], 1000)
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
        put_all(living, make, 25)
        with log_of(wal, "dead") as dead:
            put_all(dead, make, 25)
        read = {"living": Position(25), "dead": Position(25)}
        wal.listing(read)
        store.calls.clear()
        for _ in range(3):
            assert [file.segment.receiver for file in wal.files_of_readers()] == ["dead"] * 25
            wal.listing(read)
        assert store.calls["get"] == 2  # the pages of the dead one, not those of the living one


def test_a_lost_segment_names_its_object(make: Make, clock: Clock) -> None:
    store = Memory()
    wal = opened(store, clock)
    with log_of(wal) as log:
        put_all(log, make, 1)
    store.delete_many([manifest.segment_name("one", 1)])
    with pytest.raises(SegmentLost, match="s/one/000000001"):
        list(wal.read(wal.segments()[0]))


# Readers


def test_a_readers_name_is_refused_while_its_owner_lives(clock: Clock) -> None:
    store = Memory()
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


def test_a_reader_that_was_removed_is_gone(clock: Clock) -> None:
    wal = opened(Memory(), clock)
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
    clock.now += 4 * shared.SILENCE
    assert opened(store, clock).owner("default") is None
    claim.release()


# The store


def test_processes_may_prepare_a_new_log_at_once() -> None:
    class Beside(Memory):
        """While one process probes the store, another one prepares the log."""

        def put_match(self, name: str, data: bytes, tag: str) -> str:
            if not prepared:
                prepared.append("")
                prepared[0] = SharedWal(self, "memory://log").prepare()
            return super().put_match(name, data, tag)

    prepared: list[str] = []
    assert SharedWal(Beside(), "memory://log").prepare() == prepared[0]


def test_a_log_that_a_race_keeps_from_being_made_is_tried_again_and_has_no_identity(clock: Clock) -> None:
    class Racing(Memory):
        """Answers 409, as S3 does when it cannot decide between two requests at once."""

        def put_new(self, name: str, data: bytes) -> str:
            if refused and name.startswith(refused[0]):
                del refused[0]
                raise Conflict(f"{name}: 409")
            return super().put_new(name, data)

    refused = ["identity.json"] * 5
    wal = SharedWal(Racing(), "memory://log", nap=clock.nap)
    with pytest.raises(WalError, match="because of a race"):
        wal.prepare()
    refused = [".probe-", "identity.json"]
    assert wal.prepare() == wal.identity()


def test_a_put_whose_answer_was_lost_is_recognized() -> None:
    store = Memory()
    tag = store.put_new("a", b"ours")
    assert create(store, "a", b"ours") == tag
    with pytest.raises(Conflict):
        create(store, "a", b"another's")
    new = store.put_match("a", b"ours again", tag)
    assert replace(store, "a", b"ours again", tag) == new
    with pytest.raises(Conflict):
        replace(store, "a", b"another's", tag)
    with pytest.raises(Conflict):
        replace(store, "missing", b"x", tag)


def test_a_job_is_asked_to_stop_through_the_log(clock: Clock) -> None:
    wal = opened(Memory(), clock)
    assert not wal.stop_requested("j")
    wal.request_stop("j")
    assert opened(wal._store, clock).stop_requested("j")  # type: ignore[arg-type]
    wal.forget_job("j")
    assert not wal.stop_requested("j")
