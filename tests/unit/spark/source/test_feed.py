from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from nsq.errors import Closed, ConnectionFailed, SegmentLost, WalError, WalForeign, WalOwned
from nsq.spark.receiver.pool import PoolStatus
from nsq.spark.source import feed, reader, view
from nsq.spark.source.backlog import Backlog
from nsq.spark.source.feed import Feed
from nsq.spark.source.offsets import Limits
from nsq.spark.source.options import SourceOptions
from nsq.spark.source.reader import Reader
from nsq.spark.wal.names import Listing, Position, ReceiverState, Segment, SegmentFile
from nsq.spark.wal.readers import ReaderState
from nsq.spark.wal.status import Status

BASE = SourceOptions(topic="orders", channel="spark", wal="/wal", nsqd=("a:4150",), retention=0.0)
#: The start of a new checkpoint, and its first offset where there was nothing to read yet.
NEW: dict[str, Any] = {"wal": "w", "at": {}}
START: dict[str, Any] = NEW | {"turn": 1}


class Clock:
    """A replacement of ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 10.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the real one back at the end: each scene brings its own."""
    monkeypatch.setattr(feed, "time", Clock())
    monkeypatch.setattr(reader, "time", Clock())
    monkeypatch.setattr(view, "time", Clock())


class FakeLog:
    location = "/wal"

    def __init__(self) -> None:
        self.sealed: list[Segment] = []
        self.dead: set[str] = set()  # and not closed
        self.closed: set[str] = set()
        self.present: set[str] = set()
        self.deleted: list[Segment] = []
        self.broken = False
        self.states: dict[str, ReaderState] = {}
        self.save_error: WalError | None = None
        self.job_errors: Callable[[], list[str]] = list

    def files_of_readers(self) -> list[SegmentFile]:
        return [
            SegmentFile(one, 10 * one.rows, float(one.number), 1000 * one.number - 999, 1000 * one.number)
            for one in self.segments()
        ]

    def listing(self, after: Mapping[str, Position], known: Iterable[str] = ()) -> Listing:
        files = self.files_of_readers()
        size = sum(file.size for file in files)
        wanted = [one for one in files if one.segment.number > after.get(one.segment.receiver, (0, 0))[0]]
        return Listing(wanted, self.receivers(), size)

    def readers(self) -> dict[str, ReaderState]:
        return dict(self.states)

    def save_reader(self, reader: str, state: ReaderState) -> None:
        if self.save_error is not None:
            raise self.save_error
        self.states[reader] = state

    def seal(self, receiver: str, rows: int, size: int = 0) -> Segment:
        number = 1 + max(
            (one.number for one in [*self.sealed, *self.deleted] if one.receiver == receiver), default=0
        )
        self.sealed.append(Segment(receiver, number, rows, size))
        self.present.add(receiver)
        return self.sealed[-1]

    def segments(self) -> list[Segment]:
        return sorted(self.sealed)

    def receivers(self) -> list[ReceiverState]:
        return [
            ReceiverState(
                name,
                name not in self.dead,
                sum(one.receiver == name for one in self.sealed),
                Status(),
                name in self.closed,
                1 + max((one.number for one in self.deleted if one.receiver == name), default=0),
            )
            for name in sorted(self.present | self.dead)
        ]

    def close_dead(self) -> list[str]:
        closed = sorted(self.dead)
        self.closed |= self.dead
        self.dead.clear()
        return closed

    def delete(self, segments: Iterable[Segment]) -> list[Segment]:
        if self.broken:
            raise WalError("/wal/x cannot be deleted")
        gone = list(segments)
        for segment in gone:
            self.sealed.remove(segment)
            self.deleted.append(segment)
        return gone

    def discard_empty(self, states: Iterable[ReaderState]) -> None:
        needed = {segment.receiver for segment in self.sealed} | {
            name for state in states for name in state.at
        }
        self.present -= self.closed - needed


class FakeReceivers:
    """Receivers with a clock: time passes during waits; ``plan`` says what happens when."""

    def __init__(self, log: FakeLog, clock: Clock) -> None:
        self.log = log
        self.clock = clock
        self.calls: list[str] = []
        self.waits: list[float] = []
        self.now = PoolStatus()
        self.plan: list[tuple[float, Callable[[], None]]] = []

    def at(self, seconds: float, happens: Callable[[], None]) -> None:
        self.plan.append((1000.0 + seconds, happens))

    def receive(self, rows: int) -> None:
        """Another segment is named."""
        self.log.seal("own", rows, rows)
        self.now = dataclasses.replace(self.now, sealed=self.now.sealed + 1)

    def start(self) -> None:
        if "start" not in self.calls:
            self.calls.append("start")

    def state(self) -> PoolStatus:
        return self.now

    status = state

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        due = [entry for entry in self.plan if entry[0] <= self.clock.now + seconds]
        if due:
            first = min(due, key=lambda entry: entry[0])
            self.plan.remove(first)
            self.clock.now = max(self.clock.now, first[0])
            first[1]()
        else:
            self.clock.now += seconds

    def stop(self) -> None:
        self.calls.append("stop")


class FakePoller:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.value: Backlog | None = None
        self.calls: list[str] = []

    def last_answer(self, patience: float = 0.0) -> Backlog | None:
        if self.value is None:
            self.clock.now += patience
            return None
        return dataclasses.replace(self.value, began=self.clock.now)

    def recent_answer(self, age: float, patience: float) -> Backlog | None:
        assert (age, patience) == (feed.RECENT, feed.REPORTING)
        return self.last_answer()

    def stop(self) -> None:
        self.calls.append("stop")


class FakeClaim:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.taken = False

    def check(self) -> None:
        if self.taken:
            raise WalOwned("/wal has been taken")

    def verify(self) -> None:
        self.calls.append("verify")
        self.check()

    def leaving(self) -> None:
        self.calls.append("leaving")

    def release(self) -> None:
        self.calls.append("release")


class Scene:
    """A feed with fakes around it. With the log of ``before``, it is the next run of a query on that log."""

    def __init__(self, before: Scene | None = None, **options: Any) -> None:
        self.clock = before.clock if before else Clock()
        feed.time = reader.time = view.time = self.clock  # type: ignore[assignment]
        self.log = before.log if before else FakeLog()
        self.receivers = FakeReceivers(self.log, self.clock)
        self.backlog = FakePoller(self.clock)
        self.claim = FakeClaim()
        chosen = dataclasses.replace(BASE, **options)
        if before is None:
            self.log.states[chosen.reader] = ReaderState(updated=1.0)  # it has begun with START
        self.feed = Feed(
            chosen,
            self.log,  # type: ignore[arg-type]
            Reader(chosen, self.log, "w", self.claim),  # type: ignore[arg-type]
            self.receivers,  # type: ignore[arg-type]
            self.backlog,  # type: ignore[arg-type]
        )

    def start_available_now(self, backlog: Backlog) -> None:
        self.backlog.value = backlog
        self.feed.start_available_now()

    def latest(self, start: Any = None, limits: Limits | None = None) -> Any:
        return self.feed.latest(START if start is None else start, limits or Limits())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def planned_batch(scene: Scene, start: Any = START) -> Any:
    """The end of a batch that Spark has planned, and that is not committed yet."""
    end = scene.latest(start)
    scene.feed.plan(start, end)
    return end


def test_the_beginning_is_always_the_same(scene: Scene) -> None:
    assert scene.feed.initial() == scene.feed.initial() == NEW
    assert scene.receivers.calls == []


def test_the_offset_stays_the_same_without_data_and_spark_does_not_wait_long(scene: Scene) -> None:
    assert scene.latest() is START
    assert 0.4 <= scene.clock.now - 1000.0 <= 1.0
    assert len(scene.receivers.waits) <= 3  # woken, not polling
    assert scene.receivers.calls == ["start"]


@pytest.mark.parametrize(("ready", "first"), [(2.0, 2.4), (99.0, 5.0)])
def test_only_the_first_answer_waits_for_ready_receivers_and_not_for_long(
    scene: Scene, ready: float, first: float
) -> None:
    scene.receivers.now = PoolStatus(wanted=1)
    scene.receivers.at(ready, lambda: setattr(scene.receivers, "now", PoolStatus()))
    assert scene.latest() is START
    assert first <= scene.clock.now - 1000.0 <= first + 1.0
    before = scene.clock.now
    assert scene.latest() is START
    assert scene.clock.now - before <= 0.6


def test_a_batch_lingers_and_takes_rows_that_come_meanwhile(scene: Scene) -> None:
    scene.receivers.at(0.1, lambda: scene.receivers.receive(5))
    scene.receivers.at(0.2, lambda: scene.receivers.receive(7))
    assert scene.latest() == {"wal": "w", "at": {"own": 2}, "from": {"own": 1}}
    assert scene.clock.now == pytest.approx(1000.35)


def test_every_trigger_asks_the_nsqds_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(scene.backlog, "last_answer", lambda: asked.append(scene.clock.now))
    scene.latest()
    assert asked == [1000.0]


@pytest.mark.parametrize(
    ("options", "without"),
    [({"linger": 3.0}, 5), ({"min_messages_per_trigger": 100, "max_trigger_delay": 2.0}, 3)],
    ids=["linger", "few rows"],
)
def test_waiting_for_more_rows_goes_on_in_the_next_calls_and_ends(
    options: dict[str, Any], without: int
) -> None:
    scene = Scene(**options)
    scene.receivers.receive(5)
    answers = [scene.latest() for _ in range(without + 1)]
    assert [answer is START for answer in answers] == [True] * without + [False]


@pytest.mark.parametrize(("worked", "lingered"), [(0.0, 0.25), (0.1, 0.15), (2.0, 0.0)])
def test_rows_that_came_during_a_batch_have_lingered_since(
    scene: Scene, worked: float, lingered: float
) -> None:
    scene.receivers.receive(5)
    first = scene.latest()
    scene.receivers.receive(7)
    scene.clock.now += worked
    began = scene.clock.now
    assert scene.latest(first)["at"] == {"own": 2}
    assert scene.clock.now - began == pytest.approx(lingered)


def test_a_full_batch_does_not_linger(scene: Scene) -> None:
    scene.log.seal("far", 100, 1000)
    assert scene.latest(limits=Limits(rows=60))["at"] == {"far": [0, 60]}
    assert scene.clock.now == 1000.0


def test_few_rows_do_not_wait_for_more_in_a_full_log() -> None:
    scene = Scene(min_messages_per_trigger=100, max_trigger_delay=900.0)
    scene.log.seal("a", 5)
    scene.receivers.now = PoolStatus(paused="the log is full")
    assert scene.latest()["at"] == {"a": 1}


def test_receivers_elsewhere_are_seen_within_a_second(scene: Scene) -> None:
    assert scene.latest() is START
    scene.log.seal("far", 1)
    waited = [scene.latest() is START for _ in range(4)]
    assert False in waited


def test_a_dead_receiver_is_closed_and_what_it_left_is_read(scene: Scene) -> None:
    scene.log.seal("dead", 7)
    scene.log.dead.add("dead")
    assert scene.latest() == {"wal": "w", "at": {"dead": 1}, "from": {"dead": 1}}
    assert scene.log.dead == set()


def test_a_foreign_checkpoint_is_refused_naming_both(scene: Scene) -> None:
    for ask in (
        lambda: scene.latest({"wal": "other", "at": {}}),
        lambda: scene.feed.plan({"wal": "other", "at": {}}, START),
        lambda: scene.feed.commit({"wal": "other", "at": {}}),
    ):
        with pytest.raises(WalForeign, match=r"the log other, but /wal is the log w"):
            ask()


def test_a_query_that_was_taken_over_reads_and_deletes_nothing(scene: Scene) -> None:
    scene.log.seal("a", 10)
    end = scene.latest()
    scene.claim.taken = True
    for ask in (
        lambda: scene.latest(end),
        lambda: scene.feed.plan(START, end),
        lambda: scene.feed.commit(end),
    ):
        with pytest.raises(WalOwned, match="has been taken"):
            ask()
    assert scene.log.deleted == []


def test_a_lost_segment_is_an_error_that_names_it(scene: Scene) -> None:
    scene.log.seal("a", 10)
    with pytest.raises(
        SegmentLost, match=r"/wal lacks .*: s/a/000000002\.arrow; failOnDataLoss=false goes on"
    ):
        scene.feed.plan(START, {"wal": "w", "at": {"a": 2}})


def test_a_lost_segment_is_left_out_with_failondataloss_false(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(fail_on_data_loss=False)
    scene.log.seal("a", 10)
    assert len(scene.feed.plan(START, {"wal": "w", "at": {"a": 2}})) == 1
    assert "lacks segments that this batch needs: s/a/000000002.arrow; going on" in caplog.text


def test_a_commit_deletes_segments_that_were_read_completely(scene: Scene) -> None:
    done, half, new = (scene.log.seal("a", 10) for _ in range(3))
    gone = scene.log.seal("b", 1)
    scene.feed.commit({"wal": "w", "at": {"a": [1, 5], "b": 1}})
    assert (scene.log.deleted, scene.log.sealed) == ([done, gone], [half, new])
    assert [(each.receiver, each.first) for each in scene.log.receivers()] == [("a", 2), ("b", 2)]


def test_a_segment_that_cannot_be_deleted_fails_no_query(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.log.seal("a", 10)
    scene.log.broken = True
    scene.feed.commit({"wal": "w", "at": {"a": 1}})
    assert "cannot be deleted" in caplog.text


def test_a_full_log_makes_a_batch_without_rows_so_that_spark_commits(scene: Scene) -> None:
    # Spark commits a batch when it makes the next one, for which a paused receiver would bring no row.
    read = scene.log.seal("a", 10)
    end = planned_batch(scene)
    scene.receivers.now = PoolStatus(paused="the log is full")
    turned = scene.latest(end)
    assert turned == {"wal": "w", "at": {"a": 1}, "turn": 1}
    assert scene.feed.plan(end, turned) == []
    assert scene.log.deleted == []  # the checkpoint may lag behind: asynchronous progress tracking
    scene.feed.commit(end)
    assert scene.log.deleted == [read]
    assert scene.latest(turned) is turned  # nothing more to commit


def test_a_commit_whose_position_cannot_be_saved_still_deletes(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    read = scene.log.seal("a", 10)
    end = planned_batch(scene)
    scene.log.save_error = WalError("/wal/readers/default.json cannot be written: no space left")
    scene.feed.commit(end)
    assert scene.log.deleted == [read]
    assert "no space left" in caplog.text


def test_a_commit_that_finds_the_reader_taken_over_deletes_nothing(scene: Scene) -> None:
    scene.log.seal("a", 10)
    end = planned_batch(scene)
    scene.log.save_error = WalOwned("taken over by another query")
    with pytest.raises(WalOwned, match="taken over"):
        scene.feed.commit(end)
    assert scene.log.deleted == []


# Readers


def following(scene: Scene, start: Any) -> Any:
    """The end of the next batch, however often Spark has to ask for it."""
    return next(end for _ in range(9) if (end := scene.latest(start)) != start)


def test_a_new_checkpoint_of_a_known_reader_is_refused_with_the_remedies(scene: Scene) -> None:
    scene.log.seal("a", 10)
    planned_batch(scene, NEW)
    with pytest.raises(WalForeign) as refused:
        Scene(scene).latest(NEW)
    for way in ("old checkpoint", "empty sink", "startingPosition=committed", "option reader"):
        assert way in str(refused.value)


def test_a_batch_that_was_planned_is_planned_again_after_a_restart(scene: Scene) -> None:
    scene.log.seal("a", 10)
    end = planned_batch(scene, NEW)
    again = Scene(scene)
    assert again.feed.initial() == NEW
    assert len(again.feed.plan(NEW, end)) == 1
    assert again.latest(end) is end


def test_a_query_that_planned_nothing_begins_again(scene: Scene) -> None:
    assert scene.latest(NEW) == START
    scene.log.seal("a", 10)
    assert Scene(scene).latest(NEW)["at"] == {"a": 1}


@pytest.mark.parametrize("option", [{}, {"starting_position": "latest"}])
def test_a_query_goes_on_after_a_first_batch_without_rows(option: dict[str, Any]) -> None:
    scene = Scene(**option)
    end = planned_batch(scene, NEW)
    scene.log.seal("a", 10)
    again = Scene(scene, **option).latest(end)
    assert again["at"] == {"a": 1}
    assert sum(piece.rows for task in Scene(scene, **option).feed.plan(end, again) for piece in task) == 10
    with pytest.raises(WalForeign, match="checkpoint begins anew"):  # the sink has a batch of that number
        Scene(scene).latest(NEW)


@pytest.mark.parametrize(
    ("option", "rows"),
    [
        ({"starting_position": "earliest"}, 20),
        ({"starting_position": "committed"}, 10),
        ({"starting_timestamp": 1500}, 10),
        ({"starting_timestamp": 900}, 20),
        ({"starting_position": "latest"}, 0),
    ],
)
def test_starting_options_choose_where_a_new_checkpoint_begins(
    option: dict[str, Any], rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = Scene(retention=1000.0)
    before.log.seal("a", 10)
    end = planned_batch(before, NEW)
    before.feed.commit(end)
    before.log.seal("a", 10)
    scene = Scene(before, retention=1000.0, **option)
    found = scene.latest(NEW)
    assert "rows are left out if its sink remembers" in caplog.text
    start = NEW
    if not rows:
        assert scene.feed.plan(NEW, found) == []
        scene.log.seal("a", 7)
        start, found, rows = found, following(scene, found), 7
    planned = scene.feed.plan(start, found)
    assert sum(piece.rows for task in planned for piece in task) == rows
    again = Scene(scene, retention=1000.0, **option)  # both runs plan the same from the two offsets alone
    assert again.feed.plan(start, found) == planned
    again.feed.commit(found)
    assert again.latest(found) is found


def test_a_beginning_that_was_chosen_is_kept_until_a_batch_is_planned(scene: Scene) -> None:
    scene.log.seal("a", 10)
    latest = Scene(scene, starting_position="latest")
    assert latest.latest(NEW) == START | {"at": {"a": 1}, "from": {"a": 2}}
    scene.log.seal("a", 5)
    assert Scene(scene, starting_position="latest").latest(NEW)["at"] == {"a": 2}


def test_an_older_checkpoint_is_refused() -> None:
    scene = Scene(retention=1000.0)
    scene.log.seal("a", 10)
    first = planned_batch(scene, NEW)
    scene.log.seal("a", 10)
    second = following(scene, first)
    scene.feed.plan(first, second)
    scene.feed.commit(second)
    for ask in (
        lambda: Scene(scene, retention=1000.0).latest(first),
        lambda: Scene(scene, retention=1000.0).feed.plan(NEW, first),
    ):
        with pytest.raises(WalForeign, match="checkpoint is older than what reader 'default'"):
            ask()


def test_an_older_checkpoint_is_refused_also_when_all_its_receivers_are_gone(scene: Scene) -> None:
    scene.log.seal("a", 10)
    first = planned_batch(scene, NEW)
    scene.log.seal("a", 10)
    second = following(scene, first)
    scene.feed.plan(first, second)
    scene.log.closed.add("a")
    scene.feed.commit(second)
    assert [each.ended for each in scene.log.receivers()] == [True]
    assert Scene(scene).latest(second) is second
    with pytest.raises(WalForeign, match="checkpoint is older than what reader 'default'"):
        Scene(scene).latest(first)


def test_every_reader_holds_up_deletion(scene: Scene) -> None:
    other = Scene(scene, reader="other")
    segment = scene.log.seal("a", 10)
    end = planned_batch(scene, NEW)
    planned_batch(other, NEW)
    scene.feed.commit(end)
    assert scene.log.deleted == []
    other.feed.commit(end)
    assert scene.log.deleted == [segment]


def test_a_checkpoint_of_a_reader_that_was_removed_is_refused(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.log.seal("a", 10)
    end = planned_batch(scene, NEW)
    scene.log.seal("a", 10)
    del scene.log.states["default"]
    for ask in (lambda: Scene(scene).latest(end), lambda: Scene(scene).feed.plan(NEW, end)):
        with pytest.raises(WalForeign, match=r"does not know the reader 'default'.*failOnDataLoss=false"):
            ask()
    careless = Scene(scene, fail_on_data_loss=False)
    assert careless.latest(end)["at"] == {"a": 2}
    assert caplog.text.count("going on with what the log holds") == 1
    assert scene.log.states["default"].at == {"a": Position(1)}


# Loss: what was deleted before this reader has read it


def deleted(scene: Scene, *segments: Segment) -> None:
    """Delete segments, whatever the readers have committed."""
    scene.log.delete(segments)


@pytest.mark.parametrize("known", [True, False])
def test_segments_deleted_before_they_were_read_are_lost(
    scene: Scene, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if known:
        scene.log.seal("a", 10)
    start = planned_batch(scene, NEW)
    lost = scene.log.seal("a", 10), scene.log.seal("a", 10)
    scene.log.seal("a", 7)
    deleted(scene, *lost)
    first, last = (2, 3) if known else (1, 2)
    with pytest.raises(SegmentLost, match=rf"segments {first} to {last} of receiver a; failOnDataLoss=false"):
        Scene(scene).latest(start)
    careless = Scene(scene, fail_on_data_loss=False)
    end = careless.latest(start)
    assert sum(piece.rows for task in careless.feed.plan(start, end) for piece in task) == 7
    assert "going on without it" in caplog.text


def test_a_receiver_without_its_manifest_is_lost(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.log.seal("a", 10)
    start = planned_batch(scene, NEW)
    scene.log.sealed.clear()
    scene.log.present.clear()
    with pytest.raises(SegmentLost, match=r"lacks .*: the manifest of receiver a; failOnDataLoss=false"):
        Scene(scene).latest(start)
    careless = Scene(scene, fail_on_data_loss=False)
    assert careless.latest(start) == start
    assert caplog.text.count("going on without it") == 1
    scene.log.seal("b", 5)
    careless.clock.now += feed.LISTING
    assert careless.latest(start)["at"] == {"b": 1}


def test_a_receiver_that_has_ended_and_was_read_is_forgotten_and_not_lost(scene: Scene) -> None:
    scene.log.seal("a", 10)
    scene.log.closed.add("a")
    first = planned_batch(scene, NEW)
    scene.feed.commit(first)  # deletes its segment
    assert scene.log.present == {"a"}  # because the reader's position names it
    scene.log.seal("b", 5)
    second = Scene(scene).latest(first)
    assert second["at"] == {"b": 1}
    again = Scene(scene)  # while the state still names it, and the checkpoint does not
    assert again.latest(second) is second
    again.feed.plan(first, second)
    again.feed.commit(second)
    assert "a" not in scene.log.present
    assert Scene(scene).latest(second) is second


def test_a_new_reader_begins_with_what_is_there(scene: Scene) -> None:
    gone, _ = scene.log.seal("a", 10), scene.log.seal("a", 7)
    deleted(scene, gone)
    ended = scene.log.seal("b", 1)
    deleted(scene, ended)
    scene.log.closed.add("b")
    seen: list[ReaderState] = []
    listing = scene.log.listing
    scene.log.listing = lambda *given: seen.append(scene.log.states["default"]) or listing(*given)  # type: ignore[method-assign,func-returns-value]
    end = planned_batch(scene, NEW)
    assert end == {"wal": "w", "at": {"a": 2}, "from": {"a": 2}}
    assert seen[0].at == {}  # it is known before it lists: what it lists stays
    deleted(scene, *scene.log.sealed)
    with pytest.raises(SegmentLost, match=r"lacks segments that this batch needs: s/a/000000002\.arrow"):
        Scene(scene).feed.plan(NEW, end)


def test_a_deleted_log_is_replaced_with_failondataloss_false(caplog: pytest.LogCaptureFixture) -> None:
    old = {"wal": "other", "at": {"gone": 7}}
    scene = Scene(fail_on_data_loss=False)
    scene.log.seal("a", 10)
    assert scene.feed.plan(old, {"wal": "other", "at": {"gone": 8}}) == []
    end = scene.latest(old)
    assert end == {"wal": "w", "at": {"a": 1}, "from": {"a": 1}}
    assert len(scene.feed.plan(old, end)) == 1
    scene.feed.commit(end)
    assert caplog.text.count("going on with this one") == 1


def test_trigger_once_takes_all_rows_in_one_batch(scene: Scene) -> None:
    """trigger(once=True): Spark asks a single time."""
    scene.log.seal("old", 10)
    scene.backlog.value = Backlog(depth=5, asked=1)
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0):
        scene.receivers.at(seconds, lambda: scene.receivers.receive(1))
    end = scene.feed.latest(START, Limits(), once=True)
    assert sum(piece.rows for task in scene.feed.plan(START, end) for piece in task) == 15


# AvailableNow


def test_an_availablenow_run_reads_the_backlog(scene: Scene) -> None:
    scene.log.seal("old", 10)
    scene.log.closed.add("old")
    scene.start_available_now(Backlog(depth=5, asked=1))
    assert scene.receivers.calls == []  # nothing is received before it is counted
    scene.receivers.at(2.0, lambda: scene.receivers.receive(5))
    first = scene.latest()
    assert first["at"] == {"old": 1}
    scene.feed.commit(first)
    second = scene.latest(first)
    assert second["at"] == {"own": 1}
    assert scene.latest(second) is second
    assert [segment.rows for segment in scene.log.deleted] == [10, 5]


@pytest.mark.parametrize(("option", "rows"), [("earliest", 20), ("committed", 10), ("latest", 0)])
def test_an_availablenow_run_of_a_new_checkpoint_reads_all_from_the_chosen_beginning(
    option: str, rows: int
) -> None:
    before = Scene(retention=1000.0)
    before.log.seal("a", 10)
    end = planned_batch(before, NEW)
    before.feed.commit(end)
    before.log.seal("a", 10)
    scene = Scene(before, retention=1000.0, starting_position=option)
    scene.start_available_now(Backlog(asked=1))
    found = scene.latest(NEW)
    planned = scene.feed.plan(NEW, found)
    assert sum(piece.rows for task in planned for piece in task) == rows
    assert scene.latest(found) is found


def test_an_availablenow_run_ends_although_new_messages_come(scene: Scene) -> None:
    scene.start_available_now(Backlog(depth=10, asked=1))
    read, rows = START, 0
    for _ in range(100):
        scene.receivers.receive(8)
        end = scene.latest(read)
        if end is read:
            break
        rows += sum(piece.rows for task in scene.feed.plan(read, end) for piece in task)
        read = end
    assert rows == 10


def test_an_availablenow_run_does_not_wait_for_messages_of_other_consumers(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nsq.spark.source")
    scene.start_available_now(Backlog(depth=10, asked=1))
    scene.backlog.value = Backlog(asked=1)
    scene.receivers.at(0.5, lambda: scene.receivers.receive(4))
    end = scene.latest()
    assert scene.latest(end) is end
    assert 1002.0 <= scene.clock.now < 1005.0
    assert "read 4 rows, 6 did not come" in caplog.text


@pytest.mark.parametrize(("after", "ends"), [(2.0, 2.0), (99.0, feed.STARTING)])
def test_an_availablenow_run_creates_its_channel_before_it_ends(
    scene: Scene, after: float, ends: float
) -> None:
    def connect() -> None:
        scene.receivers.now = PoolStatus(wanted=1, alive=1, connections=1)

    scene.backlog.value = Backlog(asked=1)
    scene.receivers.now = PoolStatus(wanted=1)
    scene.feed.start_available_now()
    scene.receivers.at(after, connect)
    assert scene.latest() is START
    assert ends <= scene.clock.now - 1000.0 < ends + 1.5


def test_an_availablenow_run_ends_when_nothing_comes_and_nsqd_is_unknown(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.feed.start_available_now()
    assert "the backlog is unknown" in caplog.text
    assert scene.clock.now == 1060.0
    scene.receivers.at(61.0, lambda: scene.receivers.receive(5))
    end = scene.latest()
    assert end["at"] == {"own": 1}
    assert scene.latest(end) is end


def test_an_availablenow_run_that_reaches_no_nsqd_fails(scene: Scene) -> None:
    scene.backlog.value = Backlog(errors=("http://a:4151/stats cannot be reached",))
    scene.receivers.now = PoolStatus(wanted=1, alive=1)
    scene.feed.start_available_now()
    with pytest.raises(ConnectionFailed, match="nothing was read: http://a:4151/stats cannot be reached"):
        scene.latest()


@pytest.mark.parametrize(
    ("errors", "connected", "rows"),
    [
        (("a:4151 is behind a firewall",), True, 0),  # but its other port is not
        ((), False, 0),  # nothing is published anywhere yet
        (("a:4151 cannot be reached",), False, 5),
    ],
)
def test_an_availablenow_run_with_a_connection_or_rows_does_not_fail(
    scene: Scene, errors: tuple[str, ...], connected: bool, rows: int
) -> None:
    scene.backlog.value = Backlog(errors=errors)
    scene.receivers.now = PoolStatus(wanted=1, alive=1, connections=int(connected))
    if rows:
        scene.log.seal("old", rows)
    scene.feed.start_available_now()
    end = scene.latest()
    assert (end is START) == (not rows)
    assert scene.latest(end) is end


def test_an_availablenow_run_names_nsqds_that_report_no_backlog(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.start_available_now(Backlog(asked=1, errors=("b:4151 cannot be reached",)))
    assert "the run waits only for the messages of the other nsqds: b:4151 cannot be reached" in caplog.text


def test_an_availablenow_run_without_receivers_warns_of_messages_in_nsqd(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(receivers=0)
    scene.log.seal("other", 3)
    scene.start_available_now(Backlog(depth=5, asked=1))
    end = scene.latest()
    assert end["at"] == {"other": 1}
    assert scene.latest(end) is end
    assert scene.clock.now < 1010.0
    assert "5 messages wait in nsqd: option receivers is 0" in caplog.text


def test_an_availablenow_run_ends_with_its_driver(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.start_available_now(Backlog(depth=5, asked=1))
    scene.receivers.at(5.0, lambda: monkeypatch.setattr(os, "getppid", lambda: 1))
    with pytest.raises(Closed):
        scene.latest()


def test_an_availablenow_run_that_waits_for_nsqd_ends_with_its_driver(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(Closed):
        scene.feed.start_available_now()
    assert scene.clock.now <= 1001.0


# Reports, and the end


def test_a_report_counts_waiting_messages(scene: Scene) -> None:
    scene.log.seal("a", 10, 100)
    scene.latest(limits=Limits(rows=4))
    scene.log.seal("a", 3, 3)
    scene.feed._view.refresh()
    scene.receivers.now = PoolStatus(received=13, paused="the disk is full")
    scene.backlog.value = Backlog(depth=7, in_flight=2, asked=1, received=13)
    report = scene.feed.report()
    scene.feed.close()
    assert report == {
        "wal": "w",
        "at": {"a": 2},
        "lag": 18,
        "received": 13,
        "walRows": 9,
        "walBytes": 63,
        "nsqdDepth": 7,
        "nsqdInFlight": 2,
        "oldestSeconds": 10.0,
        "paused": "the disk is full",
        "error": None,
        "receivers": 1,
    }


def test_a_report_and_the_log_say_why_receivers_fail(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(receivers=0)
    scene.log.job_errors = lambda: ["2 receivers of t/c fail: no credentials"]
    status = Status(error="error: nsqlookupd a:4161 is away")
    scene.log.receivers = lambda: [ReceiverState("a", True, 0, status, False)]  # type: ignore[method-assign]
    scene.backlog.value = Backlog(errors=("l:4161: refused",))
    scene.latest()
    assert scene.feed._job_errors.last_answer(60.0)
    error = "error: nsqlookupd a:4161 is away; 2 receivers of t/c fail: no credentials; l:4161: refused"
    assert [scene.feed.report()["error"] for _ in range(2)] == [error] * 2
    assert caplog.text.count(f"receiving: {error}") == 1
    scene.feed.close()


def test_received_never_falls(scene: Scene) -> None:
    scene.log.present |= {"own", "other"}
    counts = {"own": 5, "other": 100}

    def receivers() -> list[ReceiverState]:
        names = sorted(scene.log.present)
        return [ReceiverState(name, True, 0, Status(received=counts[name]), False) for name in names]

    scene.log.receivers = receivers  # type: ignore[method-assign]
    scene.receivers.now = PoolStatus(received=5, receivers=("own",))
    scene.latest()
    assert scene.feed.received() == 105
    scene.receivers.now = PoolStatus(received=5, receivers=("next",))  # "own" has ended
    scene.clock.now += feed.LISTING
    scene.latest()
    assert scene.feed.received() == 105
    scene.log.present = {"next"}  # "other" has ended too, and its manifest is gone
    counts["next"] = 7
    scene.receivers.now = PoolStatus(received=12, receivers=("next",))
    scene.clock.now += feed.LISTING
    scene.latest()
    assert scene.feed.received() == 112


def test_the_oldest_message_is_looked_for_in_what_is_not_read_completely(scene: Scene) -> None:
    scene.log.seal("a", 10, 100)
    scene.log.seal("a", 5, 50)
    found, end = list[int | None](), START
    for rows in (4, 6, 5):
        end = scene.latest(end, Limits(rows=rows))
        found.append(scene.feed._view.oldest(scene.feed._read))
    assert found == [1, 1001, None]


def test_a_report_leaves_out_unknown_figures(scene: Scene) -> None:
    report = scene.feed.report()
    scene.feed.close()
    assert (report["nsqdDepth"], report["walRows"], report["paused"]) == (None, 0, None)
    assert (report["lag"], report["error"]) == (None, "the nsqds have not said their depths for 3 s")
    scene.backlog.value = Backlog()
    assert scene.feed.report()["error"].startswith("no nsqd is known")


def test_a_batch_planned_before_a_restart_is_no_lag(scene: Scene) -> None:
    scene.log.seal("a", 10)
    scene.backlog.value = Backlog(asked=1)
    scene.feed.plan(START, {"wal": "w", "at": {"a": 1}})
    assert scene.feed.report()["lag"] == 0
    scene.feed.close()


def test_a_close_announces_itself_first_and_releases_the_name_last(scene: Scene) -> None:
    scene.feed.close()
    assert scene.claim.calls == ["leaving", "release"]
    assert scene.receivers.calls == ["stop"]
    assert scene.backlog.calls == ["stop"]


def test_the_name_is_released_even_if_a_close_fails(scene: Scene) -> None:
    def fail() -> None:
        raise RuntimeError("stuck")

    scene.receivers.stop = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        scene.feed.close()
    assert scene.claim.calls == ["leaving", "release"]


# A full log, and receivers elsewhere


def test_a_full_log_is_emptied_although_no_batch_awaits_a_commit() -> None:
    """The log is as after the removal of a reader that held up deletion."""
    scene = Scene(wal_max_bytes=100, retention=1000.0)
    scene.log.seal("a", 6)
    first = scene.latest()
    scene.feed.plan(START, first)
    scene.log.states["gone"] = ReaderState()
    scene.log.seal("a", 6)
    scene.clock.now += feed.LISTING
    second = scene.latest(first)
    scene.feed.plan(first, second)
    scene.feed.commit(second)
    assert scene.log.deleted == []
    del scene.log.states["gone"]
    scene.clock.now += feed.LISTING
    scene.latest(second)
    assert [segment.number for segment in scene.log.deleted] == [1, 2]


def test_a_log_that_is_full_for_a_receiver_elsewhere_is_emptied() -> None:
    """The receiver was given a smaller walMaxBytes than the query."""
    scene = Scene(receivers=0, retention=1000.0)
    for _ in range(2):
        scene.log.seal("a", 6)
    end = planned_batch(scene)
    scene.feed.commit(end)
    assert scene.log.deleted == []  # retention keeps them
    full = ReceiverState(
        "a", True, 0, Status(full=1, paused="the log holds 120 bytes, of 100 at most"), False
    )
    scene.log.receivers = lambda: [full]  # type: ignore[method-assign]
    scene.log.seal("a", 6)
    scene.clock.now += view.RELIEVING
    later = scene.latest(end)
    assert [segment.number for segment in scene.log.deleted] == [1]  # half of the log may stay
    scene.feed.plan(end, later)
    scene.feed.commit(later)
    assert len(scene.log.deleted) == 1  # not again before the receiver has measured the log
    scene.feed.close()


def test_a_stream_without_receivers_says_that_the_log_is_full() -> None:
    scene = Scene(wal_max_bytes=100, receivers=0)
    scene.log.seal("a", 10)
    scene.latest()
    assert scene.feed.report()["paused"] == "the log holds 100 bytes, of 100 at most"
    scene.feed.close()


def test_committed_segments_are_deleted_now_and_then_while_retention_keeps_some() -> None:
    scene = Scene(retention=1.0)
    looked = []
    original = scene.log.files_of_readers
    scene.log.files_of_readers = lambda: looked.append(1) or original()  # type: ignore[func-returns-value, method-assign]
    last = START
    for _ in range(5):
        scene.log.seal("a", 10)
        end = scene.latest(last)
        scene.feed.plan(last, end)
        looked.clear()
        scene.feed.commit(end)
        last = end
    assert looked == []  # not again so soon
    scene.clock.now += view.DELETING
    scene.feed.commit(last)
    assert looked == [1]


def test_a_report_counts_receivers_on_other_hosts() -> None:
    scene = Scene(receivers=0)
    status = Status(received=500, paused="the disk is full")
    scene.log.receivers = lambda: [ReceiverState("a", True, 0, status, False)]  # type: ignore[method-assign]
    scene.latest()
    report = scene.feed.report()
    assert (report["received"], report["paused"], report["receivers"]) == (500, "the disk is full", 1)
    assert scene.feed.received() == 500
    scene.feed.close()


def test_a_query_that_was_taken_over_does_not_report_data_loss() -> None:
    scene = Scene()
    scene.log.seal("a", 10)
    end = scene.latest()
    scene.log.delete(scene.log.segments())

    def verify() -> None:
        raise WalOwned("taken over by another query")

    scene.claim.verify = verify  # type: ignore[method-assign]
    with pytest.raises(WalOwned, match="taken over"):
        scene.feed.plan(START, end)
