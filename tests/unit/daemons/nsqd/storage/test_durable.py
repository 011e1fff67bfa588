from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed
from nsq.daemons.nsqd.disk.layout import Place
from nsq.daemons.nsqd.disk.syncing import OpenFiles
from nsq.daemons.nsqd.storage import dues, durable
from nsq.daemons.nsqd.storage.dues import DueTimes
from tests.fakes.clock import FakeClock
from tests.integration import go_reader
from tests.unit.daemons.nsqd.disk.files import Lines, room_for
from tests.unit.daemons.nsqd.storage.backlogs import Durable, bodies, ids, message, messages

RECORD = 4 + 26 + 1  # what a body of one byte takes


@pytest.fixture
def backlog(tmp_path: Path) -> Iterator[Durable]:
    made = Durable(tmp_path)
    yield made
    made.delete()


def killed(backlog: Durable, directory: Path, limit: int = 3, clock: FakeClock | None = None) -> Durable:
    """A new life on what a kill at this moment leaves."""
    shutil.copytree(backlog.dues._path.parent, directory)
    backlog.delete()
    return Durable(directory, limit, clock)


def forgotten(finished: list[Message]) -> None:
    """Called with messages that were in memory only."""


def many(count: int) -> list[Message]:
    return messages(*[b"x"] * count)


def small_lag(records: int) -> object:
    return patch.object(durable, "_MAX_LAG", records)


def test_first_in_first_out_over_memory_and_disk(backlog: Durable) -> None:
    for body in (b"a", b"b", b"c", b"d", b"e"):
        backlog.put(messages(body))
    assert (len(backlog), backlog.backend_depth, backlog.writes) == (5, 2, 5)
    assert bodies(backlog.take(4)) == [b"a", b"b", b"c", b"d"]
    backlog.put(messages(b"f"))
    assert bodies(backlog.take(10)) == [b"e", b"f"]
    assert (len(backlog), backlog.take(1)) == (0, [])


def test_a_message_that_is_put_back_is_not_written_again(backlog: Durable) -> None:
    backlog.put(messages(b"a", b"b"))
    backlog.put_back(backlog.take(2))
    assert bodies(backlog.take(2)) == [b"a", b"b"]
    assert backlog.disk.depth == 2


def test_attempts_survive_a_clean_stop(backlog: Durable, tmp_path: Path) -> None:
    backlog.put(messages(b"a", b"b"))
    for each in backlog.take(1):
        each.attempts = 3
    backlog.close([])
    reborn = Durable(tmp_path)
    assert {each.body: each.attempts for each in reborn.take(2)} == {b"a": 3, b"b": 0}
    reborn.delete()


class TestDeferred:
    def test_a_due_message_without_a_record_is_stored(self, backlog: Durable, tmp_path: Path) -> None:
        backlog.put(messages(b"a"))
        (held,) = backlog.take(1)  # the disk refused to defer it, so its record is still here
        backlog.put_due([held, message(b"b")], forgotten)
        assert (bodies(backlog.take(5)), backlog.disk.depth) == ([b"b", b"a"], 2)


def test_obsolete_records_are_skipped_and_gos_nsqd_does_not_get_them(tmp_path: Path) -> None:
    backlog = Durable(tmp_path, limit=0)
    first, second = messages(b"deferred", b"waits")
    backlog.put([first, first, second])
    backlog.skip_records(dict.fromkeys([each.place for each in backlog.disk.unread_records(9)[:2]], first.id))
    assert len(backlog) == 1
    (taken,) = backlog.take(10)
    assert taken.body == b"waits"
    backlog.put([first])  # it is due now
    assert bodies(backlog.take(10)) == [b"deferred"]
    backlog.finished([taken, first])
    backlog.put([second])
    backlog.skip_records({each.place: second.id for each in backlog.disk.unread_records(9)[:1]})
    backlog.close([])
    assert go_reader.bodies(tmp_path, "t:c") == []


def test_a_record_that_is_not_needed_hides_no_later_record_of_its_message(tmp_path: Path) -> None:
    """A message whose record is unread was deferred; it comes back after a stop, and nsqd is killed."""
    before = tmp_path / "before"
    before.mkdir()
    backlog = Durable(before, limit=0)
    first, second = messages(b"deferred", b"waits")
    backlog.put([second, first])
    backlog.skip_records({each.place: each.id for each in backlog.disk.unread_records(9)[1:2]})
    backlog.close([])
    again = Durable(before, limit=0)
    again.put_due([first], forgotten)
    assert bodies(again.take(10)) == [b"waits", b"deferred"]
    after_kill = killed(again, tmp_path / "after")
    assert bodies(after_kill.take(10)) == [b"waits", b"deferred"]
    after_kill.delete()


class TestStragglers:
    def test_many_unfinished_messages_are_not_rewritten_in_every_round(self, backlog: Durable) -> None:
        """Ten thousand deferred ones would be written anew in every round."""
        for _ in range(20):
            backlog.put([message(b"a", due=5000.0)])
        assert len(backlog.take(20)) == 20
        size = backlog.disk.size
        with small_lag(6):
            for _ in range(5):
                backlog.sync()
        assert backlog.disk.size == size

    def test_on_a_full_disk_finished_messages_are_still_committed(self, backlog: Durable) -> None:
        backlog.put(many(12))
        taken = backlog.take(12)
        backlog.finished(taken[:4])
        backlog.finished(taken[5:])
        with small_lag(6), room_for(0):
            backlog.advance()
        assert len(backlog.errors) == 1
        assert backlog.disk.depth == 8


class TestFaults:
    def test_while_syncs_fail_messages_are_refused(self, backlog: Durable) -> None:
        backlog.broken = OSError(errno.EIO, "Input/output error")
        with pytest.raises(StorageFailed, match="Input/output"):
            backlog.put(many(1))
        with pytest.raises(StorageFailed):
            backlog.put([message(b"a", due=1060.0)])
        backlog.broken = None
        backlog.put(many(1))
        assert (len(backlog), backlog.errors) == (1, [])

    def test_a_damaged_record_that_was_moved_does_not_upset_the_count(
        self, backlog: Durable, tmp_path: Path
    ) -> None:
        backlog.put(many(5))
        backlog.put([message(b"a", due=1060.0)])
        for path in tmp_path.glob("*.diskqueue.0*.dat"):
            path.write_bytes(b"\xff" * path.stat().st_size)
        assert backlog.take(10) == []
        assert len(backlog) == 0
        backlog.put(messages(b"later"))
        assert (len(backlog), bodies(backlog.take(10))) == (1, [b"later"])

    def test_a_stop_on_a_full_disk_says_what_will_be_repeated(self, backlog: Durable, tmp_path: Path) -> None:
        backlog.put(many(3))
        taken = backlog.take(3)
        backlog.finished(taken[1:2])
        # The first is to be written anew behind it, and there is no room for that.
        with room_for(0):
            backlog.close([])
        assert len(backlog.errors) == 1
        reborn = Durable(tmp_path)
        assert ids(reborn.take(10)) == ids(taken)
        reborn.delete()

    def test_a_stop_writes_messages_again_whose_file_was_removed(
        self, backlog: Durable, tmp_path: Path
    ) -> None:
        backlog.put(many(3))
        taken = backlog.take(3)
        (tmp_path / "t:c.diskqueue.000000.dat").unlink()
        backlog.close(taken)
        assert len(backlog.errors) == 1
        reborn = Durable(tmp_path)
        assert ids(reborn.take(10)) == ids(taken)
        reborn.delete()


class TestBorrowed:
    """Messages that a topic's disk keeps, as this one took no more."""

    def test_messages_held_in_memory_are_delivered_and_reported_as_finished(self, backlog: Durable) -> None:
        finished: list[list[bytes]] = []
        later = message(b"c", due=150.0)
        three = [*messages(b"a", b"b"), later]
        assert backlog.hold_in_memory(three, lambda messages: finished.append(bodies(messages)))
        first, second = backlog.take(10)
        backlog.put_back([first])
        backlog.finished([second])
        backlog.finished([later])
        assert bodies(backlog.take(10)) == [b"a"]
        assert (finished, backlog.writes, len(backlog)) == ([[b"b"], [b"c"]], 0, 0)
        backlog.clear()
        assert finished[2:] == [[b"a"]]

    def test_only_so_many_messages_are_held_in_memory(self, backlog: Durable) -> None:
        large = [message(bytes(1 << 20)) for _ in range(16)]
        assert backlog.hold_in_memory(large, lambda messages: None)
        assert not backlog.hold_in_memory(messages(b"a"), lambda messages: None)
        backlog.finished(large[:1])
        assert backlog.hold_in_memory(messages(b"a"), lambda messages: None)

    @pytest.mark.parametrize("limit", [0, 1, 9])
    def test_a_topic_is_emptied_but_for_what_its_channels_have_not_finished(
        self, tmp_path: Path, limit: int
    ) -> None:
        (tmp_path / "data").mkdir()
        backlog = Durable(tmp_path / "data", limit)
        backlog.put(messages(b"finished", b"a", b"b", b"waiting", b"waiting too"))
        done, *left = backlog.take(3)
        backlog.finished([done])
        backlog.clear_waiting()
        assert (len(backlog), backlog.take(10)) == (0, [])
        reborn = killed(backlog, tmp_path / "after")
        again = reborn.take(10)
        assert ids(again) == ids(left)
        reborn.finished(again)
        reborn.clear_waiting()
        assert (len(reborn), reborn.disk.depth) == (0, 0)
        reborn.delete()

    def test_due_messages_that_the_disk_refuses_are_delivered_up_to_so_many(self, backlog: Durable) -> None:
        finished: list[bytes] = []
        backlog.put(messages(b"a"))
        (held,) = backlog.take(1)  # the disk refused to defer it, so its record is still here
        due = [held, *messages(b"b", b"c")]
        with room_for(10), patch.object(durable, "_MOST_MEMORY_ONLY", 2):
            assert not backlog.put_due(due, lambda messages: finished.extend(bodies(messages)))
            with pytest.raises(StorageFailed, match="No space left"):
                backlog.put_due(messages(b"d"), forgotten)
            taken = backlog.take(10)
            assert bodies(taken) == [b"a", b"b", b"c"]
            backlog.put_back(taken[1:2])  # requeued, or timed out
            backlog.finished([taken[0], taken[2]])
            assert finished == [b"c"]
            assert not backlog.put_due(messages(b"d"), forgotten)
        assert bodies(backlog.take(10)) == [b"b", b"d"]
        assert backlog.put_due(messages(b"e"), forgotten)

    def test_held_messages_that_are_still_deferred_keep_no_due_ones_back(self, backlog: Durable) -> None:
        held, due = message(b"a", due=1060.0), message(b"b", due=1060.0)
        with room_for(0), patch.object(durable, "_MOST_MEMORY_ONLY", 1):
            assert backlog.hold_in_memory([held], forgotten)
            assert not backlog.put_due([held, due], forgotten)
            assert bodies(backlog.take(10)) == [b"a", b"b"]
            with pytest.raises(StorageFailed):
                backlog.put_due(messages(b"c"), forgotten)

    def test_a_stop_writes_no_message_held_in_memory_only(self, backlog: Durable, tmp_path: Path) -> None:
        assert backlog.hold_in_memory([message(b"a")], lambda messages: None)
        (taken,) = backlog.take(1)
        taken.due = 150.0  # requeued with a delay
        backlog.close([taken])
        assert Durable(tmp_path).take(10) == []


FILE = "t:c.dues.dat"
ENTRY = 24


@pytest.fixture
def due_times(tmp_path: Path) -> Iterator[DueTimes]:
    made = DueTimes(tmp_path, "t:c", FakeClock())
    yield made
    made.delete()


def reopened(directory: Path, now: float = 1000.0) -> DueTimes:
    """By a process that knows only the directory; ``now`` tells how long after the first one."""
    clock = FakeClock()
    clock.advance(now - 1000.0)
    return DueTimes(directory, "t:c", clock)


def close(due_times: DueTimes, finished: dict[Place, bytes]) -> None:
    """As a stop does it."""
    job = due_times.last_job(finished)
    if job is not None:
        job()
    due_times.release()


def deferred(count: int, due: float = 1060.0) -> list[Message]:
    return [message(b"a", due) for _ in range(count)]


def test_a_due_time_survives_with_all_its_digits(due_times: DueTimes, tmp_path: Path) -> None:
    (one,) = deferred(1, 1060.25)
    due_times.add([one, message(b"at once")])
    assert due_times.get(one.id) == pytest.approx(1060.25, abs=1e-6)
    assert reopened(tmp_path, 1010.0).get(one.id) == pytest.approx(1060.25, abs=1e-6)
    assert due_times.get(b"f" * 16) == 0.0
    assert (tmp_path / FILE).stat().st_size == 2 * ENTRY  # the latest due time is noted too


def test_a_damaged_due_time_is_kept_and_reported_once(due_times: DueTimes, tmp_path: Path) -> None:
    one, two = deferred(2)
    due_times.add([one, two])
    content = bytearray((tmp_path / FILE).read_bytes())
    content[ENTRY + 16] ^= 0x40  # the highest bits of the first message's due time
    (tmp_path / FILE).write_bytes(content)
    log = Lines()
    again = DueTimes(tmp_path, "t:c", FakeClock(), log=log)
    assert again.get(one.id) > 1e9
    assert again.get(two.id) == pytest.approx(1060.0)
    assert log.complaints == [
        f"{FILE} has a due time later than all that nsqd wrote there: "
        "deferring until then (at last 2170-01-03 22:07:58 UTC)"
    ]
    close(again, {})
    third = DueTimes(tmp_path, "t:c", FakeClock(), log=log)
    assert (third.get(one.id) > 1e9, len(log.complaints)) == (True, 1)


def test_a_due_time_in_ten_years_is_kept(due_times: DueTimes, tmp_path: Path) -> None:
    ten_years = 3650 * 86_400.0
    (first,), (last,) = deferred(1), deferred(1, 1000.0 + ten_years)
    due_times.add([first])
    due_times.add([last])
    log = Lines()
    again = DueTimes(tmp_path, "t:c", FakeClock(), log=log)
    assert again.get(last.id) == pytest.approx(1000.0 + ten_years)
    assert log.complaints == []


@pytest.mark.parametrize("torn", [1, ENTRY - 1])
def test_a_torn_entry_at_the_end_is_written_over(due_times: DueTimes, tmp_path: Path, torn: int) -> None:
    first, second = deferred(2)
    due_times.add([first])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"\x7f" * torn)
    again = reopened(tmp_path)
    again.add([second])
    third = reopened(tmp_path)
    assert third.get(first.id) == third.get(second.id) == pytest.approx(1060.0)
    close(again, {})


def test_the_file_of_due_times_does_not_grow_with_obsolete_entries(
    due_times: DueTimes, tmp_path: Path
) -> None:
    (stays,) = deferred(1)
    due_times.add([stays])
    with patch.object(dues, "_SPARE", 10):
        for each in deferred(200):
            due_times.add([each])
            due_times.remove(each.id)
    assert (tmp_path / FILE).stat().st_size <= 14 * ENTRY
    assert reopened(tmp_path).get(stays.id) > 0


def test_a_clean_stop_leaves_a_file_only_if_it_is_needed(due_times: DueTimes, tmp_path: Path) -> None:
    one, two = deferred(2)
    due_times.add([one, two])
    due_times.remove(one.id)
    close(due_times, {})
    assert (tmp_path / FILE).stat().st_size == 2 * ENTRY
    again = reopened(tmp_path)
    again.remove(two.id)
    close(again, {})
    assert list(tmp_path.iterdir()) == []


def test_a_note_about_a_record_is_for_that_record_alone(due_times: DueTimes, tmp_path: Path) -> None:
    ids, places = [b"a" * 16, b"a" * 16, b"b" * 16], [(0, 30), (7, 30), (7, 60)]
    close(due_times, dict(zip(places, ids, strict=True)))
    again = reopened(tmp_path)
    assert not again.was_finished(b"a" * 16, (7, 60))
    assert not again.was_finished(b"c" * 16, (0, 30))
    assert again.was_finished(b"a" * 16, (0, 30))
    close(again, {})
    third = reopened(tmp_path)
    found = [third.was_finished(*each) for each in zip(ids, places, strict=True)]
    assert found == [False, True, True]
    third.all_read()
    close(third, {})
    assert list(tmp_path.iterdir()) == []


class TestSync:
    def test_a_due_time_added_during_a_sync_needs_another_sync(self, due_times: DueTimes) -> None:
        due_times.add(deferred(1))
        job = due_times.sync_job()
        assert job is not None
        job()
        due_times.add(deferred(1))
        due_times.synced(job)
        assert due_times.sync_job() is not None

    def test_a_queue_may_be_deleted_during_a_sync(self, due_times: DueTimes) -> None:
        due_times.add(deferred(1))
        job = due_times.sync_job()
        assert job is not None
        due_times.delete()
        job()
        due_times.synced(job)


class TestMoreFilesThanMayBeOpen:
    def all_due_times(self, directory: Path) -> list[DueTimes]:
        files = OpenFiles(2)
        return [DueTimes(directory, f"t:c{number}", FakeClock(), files) for number in range(4)]

    def test_due_times_lose_nothing_when_files_are_closed_early(self, tmp_path: Path) -> None:
        all_due_times = self.all_due_times(tmp_path)
        messages = [deferred(2) for _ in all_due_times]
        with patch("os.fsync", side_effect=os.fsync) as fsync:
            for each in range(2):
                for due_times, its in zip(all_due_times, messages, strict=True):
                    due_times.add([its[each]])
        assert fsync.call_count == 6  # a close, each
        for number, its in enumerate(messages):
            again = DueTimes(tmp_path, f"t:c{number}", FakeClock())
            assert [again.get(each.id) for each in its] == pytest.approx([1060.0] * 2)
        for due_times in all_due_times:
            due_times.delete()

    @pytest.mark.parametrize("called", [False, True], ids=["before its call", "after its call"])
    def test_due_times_whose_sync_failed_before_an_early_close_are_written_again(
        self, tmp_path: Path, called: bool
    ) -> None:
        first, *others = self.all_due_times(tmp_path)
        first.add(deferred(1))
        job = first.sync_job()
        assert job is not None
        if called:
            job()
        with patch("os.fsync", side_effect=OSError(5, "Input/output error")):
            for due_times in others:
                due_times.add(deferred(1))
        if called:
            with pytest.raises(OSError, match="has failed"):
                first.synced(job)
            job = first.sync_job()
            assert job is not None
        with patch("os.pwrite", wraps=os.pwrite) as write:
            job()
        assert write.call_count == 1
        first.synced(job)
        assert first.sync_job() is None
        for due_times in (first, *others):
            due_times.delete()
