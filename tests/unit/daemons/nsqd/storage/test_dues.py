from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.core.message import Message
from nsq.daemons.nsqd.disk.layout import queue_names
from nsq.daemons.nsqd.disk.open_files import OpenFiles
from nsq.daemons.nsqd.storage import dues
from nsq.daemons.nsqd.storage.dues import DueBook
from tests.unit.daemons.nsqd.clock import FakeClock
from tests.unit.daemons.nsqd.disk.files import room_for
from tests.unit.daemons.nsqd.storage.backlogs import message

FILE = "t:c.dues.dat"
ENTRY = 24


@pytest.fixture
def book(tmp_path: Path) -> Iterator[DueBook]:
    made = DueBook(tmp_path, "t:c", FakeClock())
    yield made
    made.delete()


def reopened(directory: Path, now: float = 1000.0) -> DueBook:
    """By a process that knows only the directory; ``now`` tells how long after the first one."""
    clock = FakeClock()
    clock.advance(now - 1000.0)
    return DueBook(directory, "t:c", clock)


def deferred(count: int, due: float = 1060.0) -> list[Message]:
    return [message(b"a", due) for _ in range(count)]


def test_a_moment_survives_with_all_its_digits(book: DueBook, tmp_path: Path) -> None:
    (one,) = deferred(1, 1060.25)
    book.add([one, message(b"at once")])
    assert book.get(one.id) == pytest.approx(1060.25, abs=1e-6)
    assert reopened(tmp_path, 1010.0).get(one.id) == pytest.approx(1060.25, abs=1e-6)
    assert book.get(b"f" * 16) == 0.0
    assert (tmp_path / FILE).stat().st_size == ENTRY


def test_what_is_due_meanwhile_is_forgotten(book: DueBook, tmp_path: Path) -> None:
    early, late = *deferred(1, 1005.0), *deferred(1, 1060.0)
    book.add([early, late])
    later = reopened(tmp_path, 1010.0)
    assert (later.get(early.id), later.get(late.id) > 0) == (0.0, True)


def test_the_last_entry_of_a_message_counts(book: DueBook, tmp_path: Path) -> None:
    (one,) = deferred(1)
    book.add([one])
    one.due = 1090.0
    book.add([one])
    assert reopened(tmp_path).get(one.id) == pytest.approx(1090.0)


@pytest.mark.parametrize("torn", [1, ENTRY - 1])
def test_a_torn_entry_at_the_end_is_written_over(book: DueBook, tmp_path: Path, torn: int) -> None:
    first, second = deferred(2)
    book.add([first])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"\x7f" * torn)
    again = reopened(tmp_path)
    again.add([second])
    third = reopened(tmp_path)
    assert third.get(first.id) == third.get(second.id) == pytest.approx(1060.0)
    again.close([])


def test_what_the_disk_refuses_leaves_the_book_as_it_was(book: DueBook, tmp_path: Path) -> None:
    first, second, third = deferred(3)
    book.add([first])
    with room_for(10), pytest.raises(OSError, match="No space"):
        book.add([second])
    assert book.get(second.id) == 0.0
    book.add([third])
    again = reopened(tmp_path)
    assert [again.get(each.id) > 0 for each in (first, second, third)] == [True, False, True]


def test_the_file_does_not_grow_with_what_is_long_gone(book: DueBook, tmp_path: Path) -> None:
    (stays,) = deferred(1)
    book.add([stays])
    with patch.object(dues, "_SPARE", 10):
        for each in deferred(200):
            book.add([each])
            book.remove(each.id)
    assert (tmp_path / FILE).stat().st_size <= 14 * ENTRY
    assert reopened(tmp_path).get(stays.id) > 0


def test_a_clean_stop_leaves_a_file_only_if_it_is_needed(book: DueBook, tmp_path: Path) -> None:
    one, two = deferred(2)
    book.add([one, two])
    book.remove(one.id)
    book.close([])
    assert (tmp_path / FILE).stat().st_size == ENTRY
    again = reopened(tmp_path)
    again.remove(two.id)
    again.close([])
    assert list(tmp_path.iterdir()) == []


def test_what_was_finished_unread_is_struck_once(book: DueBook, tmp_path: Path) -> None:
    book.close([b"a" * 16, b"b" * 16])
    again = reopened(tmp_path)
    assert (again.is_struck(b"a" * 16), again.is_struck(b"a" * 16)) == (True, False)
    again.close([])
    third = reopened(tmp_path)
    assert (third.is_struck(b"a" * 16), third.is_struck(b"b" * 16)) == (False, True)
    third.nothing_unread()
    third.close([])
    assert list(tmp_path.iterdir()) == []


class TestSync:
    def test_there_is_something_to_do_only_after_a_write(self, book: DueBook) -> None:
        assert book.sync_job() is None
        book.add(deferred(1))
        job = book.sync_job()
        assert job is not None
        job()
        book.synced(job)
        assert book.sync_job() is None
        book.add(deferred(1))
        assert book.sync_job() is not None

    def test_what_came_during_a_sync_needs_another(self, book: DueBook) -> None:
        book.add(deferred(1))
        job = book.sync_job()
        assert job is not None
        job()
        book.add(deferred(1))
        book.synced(job)
        assert book.sync_job() is not None

    def test_the_name_of_a_new_file_is_synced_too(self, book: DueBook, tmp_path: Path) -> None:
        synced: list[Path] = []
        with patch.object(dues, "sync_file", synced.append):
            for _ in range(2):
                book.add(deferred(1))
                job = book.sync_job()
                assert job is not None
                job()
                book.synced(job)
        assert synced == [tmp_path / FILE, tmp_path, tmp_path / FILE]

    def test_it_does_not_mind_that_the_queue_was_deleted_meanwhile(self, book: DueBook) -> None:
        book.add(deferred(1))
        job = book.sync_job()
        assert job is not None
        book.delete()
        job()
        book.synced(job)


def test_to_go_the_file_is_no_queue(book: DueBook, tmp_path: Path) -> None:
    book.add(deferred(1))
    assert queue_names(path.name for path in tmp_path.iterdir()) == []


def test_clearing_forgets_all_moments(book: DueBook, tmp_path: Path) -> None:
    (one,) = deferred(1)
    book.add([one])
    book.clear()
    assert book.get(one.id) == 0.0
    book.close([])
    assert list(tmp_path.iterdir()) == []


class TestMoreBooksThanFilesThatMayBeOpen:
    def books(self, directory: Path) -> list[DueBook]:
        files = OpenFiles(2)
        return [DueBook(directory, f"t:c{number}", FakeClock(), files) for number in range(4)]

    def test_lose_nothing(self, tmp_path: Path) -> None:
        books = self.books(tmp_path)
        messages = [deferred(2) for _ in books]
        with patch("os.fsync", side_effect=os.fsync) as fsync:
            for each in range(2):
                for book, its in zip(books, messages, strict=True):
                    book.add([its[each]])
        assert fsync.call_count == 6  # a close, each
        for number, its in enumerate(messages):
            again = DueBook(tmp_path, f"t:c{number}", FakeClock())
            assert [again.get(each.id) for each in its] == pytest.approx([1060.0] * 2)
        for book in books:
            book.delete()

    def test_tell_the_round_when_the_sync_before_a_close_has_failed(self, tmp_path: Path) -> None:
        books = self.books(tmp_path)
        with patch("os.fsync", side_effect=OSError(5, "Input/output error")):
            for book in books:
                book.add(deferred(1))
        job = books[0].sync_job()
        assert job is not None
        with pytest.raises(OSError, match="Input/output"):
            job()
        job = books[0].sync_job()
        assert job is not None
        job()
        books[0].synced(job)
        assert books[0].sync_job() is None
        for book in books:
            book.delete()
