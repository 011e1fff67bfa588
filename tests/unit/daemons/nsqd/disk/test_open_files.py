"""Fewer files open than there are queues, and nothing of it to be noticed."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.disk.open_files import OpenFiles, share_of_limit
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import FlushJob, SyncJob
from tests.unit.daemons.nsqd.disk.files import Lines, names, records


class Owner:
    """One file, written to, and closed when that is asked for."""

    def __init__(self, files: OpenFiles, path: Path) -> None:
        self.files = files
        self.path = path
        self.descriptor = -1

    def use(self, *, write: bool = False) -> Owner:
        if self.descriptor < 0:
            self.descriptor = self.files.open(self.path, os.O_WRONLY | os.O_CREAT, self.give_up)
        self.files.used(self.descriptor)
        if write:
            self.files.wrote(self.descriptor)
        return self

    def give_up(self) -> None:
        self.files.close(self.descriptor)
        self.descriptor = -1

    @property
    def is_open(self) -> bool:
        return self.descriptor >= 0


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[list[Owner]]:
    files = OpenFiles(3)
    made = [Owner(files, tmp_path / str(number)) for number in range(6)]
    yield made
    for owner in made:
        if owner.is_open:
            owner.give_up()
    assert len(files) == 0


def opened(owners: list[Owner]) -> list[int]:
    return [number for number, owner in enumerate(owners) if owner.is_open]


def test_the_one_used_the_longest_time_ago_goes(owners: list[Owner]) -> None:
    for number in (0, 1, 2, 0, 3):
        owners[number].use()
    assert opened(owners) == [0, 2, 3]


def test_what_holds_unsynced_data_goes_last(owners: list[Owner]) -> None:
    owners[0].use(write=True)
    for number in (1, 2, 3, 4):
        owners[number].use()
    assert opened(owners) == [0, 3, 4]
    for number in (1, 2, 5):
        owners[number].use(write=True)
    assert opened(owners) == [1, 2, 5]


def test_once_synced_it_is_like_the_others(owners: list[Owner]) -> None:
    owners[0].use(write=True)
    owners[0].files.synced(owners[0].descriptor)
    for number in (1, 2):
        owners[number].use()
    owners[3].use()
    assert opened(owners) == [1, 2, 3]


def test_when_the_process_may_open_no_more_others_make_room(owners: list[Owner]) -> None:
    for number in (0, 1):
        owners[number].use()
    with refusing(lambda: len(opened(owners)) > 0):
        owners[2].use()
    assert opened(owners) == [2]


def test_when_that_does_not_help_it_fails(owners: list[Owner]) -> None:
    owners[0].use()
    with refusing(lambda: True), pytest.raises(OSError, match="Too many"):
        owners[1].use()
    owners[1].use()
    assert opened(owners) == [1]


@contextmanager
def refusing(refuses: Callable[[], bool]) -> Iterator[None]:
    really = os.open

    def limited(*args: object, **others: object) -> int:
        if refuses():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really(*args, **others)  # type: ignore[arg-type]

    with patch("os.open", limited):
        yield


@pytest.mark.parametrize(
    ("limit", "share"), [(1024, 512), (3, 8), (10**7, 100_000), (resource.RLIM_INFINITY, 100_000)]
)
def test_the_share_is_half_of_what_is_allowed(limit: int, share: int) -> None:
    with patch("resource.getrlimit", return_value=(limit, limit)):
        assert share_of_limit() == share


class Queues:
    """Ten queues that have three files between them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = OpenFiles(3)
        self.log = Lines()
        self.all = [self.open(number) for number in range(10)]

    def open(self, number: int) -> DiskQueue:
        return DiskQueue(
            self.directory,
            f"q{number}",
            max_bytes_per_file=100,
            min_record=1,
            max_record=60,
            log=self.log,
            open_files=self.files,
        )

    def append(self, record: bytes) -> None:
        for number, queue in enumerate(self.all):
            queue.append([b"%d" % number + record])

    def reopen(self) -> None:
        for queue in self.all:
            queue.close()
        assert len(self.files) == 0
        self.all = [self.open(number) for number in range(10)]

    def delete(self) -> None:
        for queue in self.all:
            queue.delete()
        assert len(self.files) == 0
        assert names(self.directory) == []


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[Queues]:
    made = Queues(tmp_path)
    yield made
    made.delete()


def test_many_queues_write_and_read_through_a_few_files(queues: Queues) -> None:
    bodies = [b"%03d" % number * 9 for number in range(12)]
    for body in bodies[:6]:
        queues.append(body)
        assert len(queues.files) <= 3
    first = [records(queue, 3) for queue in queues.all]
    for body in bodies[6:]:
        queues.append(body)
    rest = [records(queue) for queue in queues.all]
    assert len(queues.files) <= 3
    for number, found in enumerate(map(list.__add__, first, rest)):
        assert found == [b"%d" % number + body for body in bodies]
    queues.reopen()
    assert [len(records(queue)) for queue in queues.all] == [12] * 10


def test_what_is_closed_early_is_synced_before(queues: Queues) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        fsync(descriptor)

    with patch("os.fsync", remember):
        queues.append(b"a")
    assert synced == [f"q{number}.diskqueue.000000.dat" for number in range(7)]


def test_what_was_synced_in_a_round_is_closed_without(queues: Queues) -> None:
    for queue in queues.all[:3]:
        queue.append([b"a"])
        queue.sync()
    with patch("os.fsync", side_effect=AssertionError):
        queues.all[3].append([b"a"])
        queues.all[4].append([b"a"])


@contextmanager
def failing_fsync() -> Iterator[None]:
    with patch("os.fsync", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
        yield


def flush(queue: DiskQueue) -> None:
    job = queue.flush_job()
    assert isinstance(job, FlushJob)
    job()
    queue.flushed(job)


def sync(queue: DiskQueue) -> None:
    job = queue.sync_job()
    assert isinstance(job, SyncJob)
    job()
    queue.synced(job)


@pytest.mark.parametrize("round_", [flush, sync])
def test_a_sync_that_failed_before_the_close_fails_the_round(
    queues: Queues, round_: Callable[[DiskQueue], None]
) -> None:
    with failing_fsync():
        queues.append(b"a")
    assert len(queues.log.complaints) == 7
    with pytest.raises(OSError, match="Input/output"):
        round_(queues.all[0])
    round_(queues.all[0])
    round_(queues.all[9])  # was not closed


@pytest.mark.parametrize("called", [False, True], ids=["before its call", "after its call"])
def test_a_round_under_way_fails_too(queues: Queues, called: bool) -> None:
    first = queues.all[0]
    first.append([b"a"])
    job = first.flush_job()
    assert job is not None
    if called:
        job()
    with failing_fsync():
        queues.append(b"b")
    with pytest.raises(OSError, match="Input/output"):
        first.flushed(job) if called else job()
    with pytest.raises(OSError, match="Input/output"):
        flush(first)  # which was the first one to cover the second record
    flush(first)


class TestAnAppendOverMoreFilesThanMayBeOpen:
    RECORDS = tuple(bytes([65 + number]) * 60 for number in range(8))

    def test_is_whole(self, queues: Queues) -> None:
        queues.all[0].append(self.RECORDS)
        assert len(queues.files) == 3
        assert records(queues.all[0]) == [*self.RECORDS]

    def test_is_taken_back_whole(self, queues: Queues) -> None:
        queues.all[0].append([b"first"])
        pwrite, left = os.pwrite, 7

        def limited(descriptor: int, content: bytes, offset: int) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return pwrite(descriptor, content, offset)

        with patch("os.pwrite", limited), pytest.raises(OSError, match="No space"):
            queues.all[0].append(self.RECORDS)
        assert names(queues.directory) == ["q0.diskqueue.000000.dat"]
        assert (queues.directory / "q0.diskqueue.000000.dat").stat().st_size == 9
        queues.all[0].append(self.RECORDS)
        assert records(queues.all[0]) == [b"first", *self.RECORDS]
