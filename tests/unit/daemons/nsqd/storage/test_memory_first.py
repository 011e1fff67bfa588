from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq.daemons.nsqd.core.backlog import StorageFailed
from tests.unit.daemons.nsqd.disk.files import room_for
from tests.unit.daemons.nsqd.storage.backlogs import Spilling, bodies, message, messages

RECORD = 4 + 26 + 1  # what a body of one byte takes


@pytest.fixture
def backlog(tmp_path: Path) -> Iterator[Spilling]:
    made = Spilling(tmp_path)
    yield made
    made.delete()


def letters(count: int) -> list[bytes]:
    return [bytes([ord("a") + number]) for number in range(count)]


@pytest.mark.parametrize("batches", [[8], [1] * 8, [2, 6], [3, 5], [7, 1]])
@pytest.mark.parametrize("limit", [0, 3, 100])
def test_memory_first_then_disk_in_order(tmp_path: Path, batches: list[int], limit: int) -> None:
    backlog, left = Spilling(tmp_path, limit), letters(8)
    for size in batches:
        backlog.put(messages(*left[:size]))
        left = left[size:]
    assert (len(backlog), backlog.backend_depth) == (8, max(0, 8 - limit))
    assert bodies(backlog.take(5)) == letters(8)[:5]
    backlog.put(messages(b"y"))
    assert bodies(backlog.take(2)) == letters(8)[5:7]
    assert bodies(backlog.take(9)) == [b"h", b"y"]
    assert (len(backlog), backlog.take(1)) == (0, [])
    backlog.delete()


def test_a_message_that_is_put_back_does_not_overtake_those_on_disk(backlog: Spilling) -> None:
    backlog.put(messages(*letters(5)))
    taken = backlog.take(3)
    backlog.put_back(taken)
    assert bodies(backlog.take(9)) == [b"d", b"e", b"a", b"b", b"c"]


def test_messages_put_back_without_room_in_memory_are_written(backlog: Spilling) -> None:
    backlog.put(messages(*letters(3)))
    taken = backlog.take(2)
    backlog.put(messages(b"x", b"y"))
    backlog.put_back(taken)
    assert (len(backlog), backlog.backend_depth) == (5, 2)
    assert bodies(backlog.take(9)) == [b"c", b"x", b"y", b"a", b"b"]


def test_attempts_and_due_times_survive_the_disk(tmp_path: Path) -> None:
    backlog = Spilling(tmp_path, limit=0)
    sent = message(b"a", due=1060.0)
    sent.attempts = 3
    backlog.put([sent])
    (found,) = backlog.take(1)
    assert (found.id, found.attempts, found.due) == (sent.id, 3, 1060.0)
    backlog.delete()


class TestStop:
    def test_a_full_disk_takes_what_it_can_and_the_rest_is_reported(self, tmp_path: Path) -> None:
        backlog = Spilling(tmp_path, limit=1000)
        backlog.put(messages(*[b"x"] * 250))
        with (
            room_for(220 * RECORD),
            pytest.raises(StorageFailed, match=r"50 messages of t:c are lost: .*No space"),
        ):
            backlog.close([])
        reborn = Spilling(tmp_path)
        assert len(reborn) == 200
        reborn.delete()


class TestFaults:
    def test_no_part_of_a_batch_that_does_not_fit_is_in_the_queue(self, backlog: Spilling) -> None:
        backlog.put(messages(b"a"))
        with room_for(RECORD), pytest.raises(StorageFailed, match="No space left"):
            backlog.put(messages(*letters(4)))
        assert (len(backlog), len(backlog.errors)) == (1, 1)
        assert bodies(backlog.take(9)) == [b"a"]

    def test_messages_that_are_put_back_wait_in_memory_until_the_disk_works(self, backlog: Spilling) -> None:
        backlog.put(messages(*letters(3)))
        taken = backlog.take(2)
        backlog.put(messages(b"x", b"y"))
        with room_for(0):
            backlog.put_back(taken)
            assert (len(backlog), backlog.stuck) == (5, 2)
            with pytest.raises(StorageFailed):
                backlog.put(messages(b"z"))
            assert not backlog.retry()
        assert backlog.retry()
        assert (len(backlog), backlog.stuck, backlog.backend_depth) == (5, 0, 2)
        assert bodies(backlog.take(9)) == [b"c", b"x", b"y", b"a", b"b"]

    def test_messages_that_the_disk_refused_can_be_consumed(self, backlog: Spilling) -> None:
        backlog.put(messages(*letters(5)))
        taken = backlog.take(1)
        with room_for(0):
            backlog.put_back(taken)
            assert bodies(backlog.take(9)) == [b"b", b"c", b"d", b"e", b"a"]
        assert (len(backlog), backlog.stuck) == (0, 0)
        backlog.put(messages(b"z"))
        assert backlog.backend_depth == 0

    def test_a_stop_keeps_messages_that_the_disk_refused(self, backlog: Spilling, tmp_path: Path) -> None:
        backlog.put(messages(*letters(4)))
        taken = backlog.take(1)
        with room_for(0):
            backlog.put_back(taken)
        backlog.close([])
        reborn = Spilling(tmp_path)
        assert sorted(bodies(reborn.take(9))) == letters(4)
        reborn.delete()
