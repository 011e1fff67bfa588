from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.disk import syncing
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import (
    OpenFiles,
    Replacement,
    SyncJob,
    replace_content,
    run_together,
    share_of_limit,
)
from tests.unit.daemons.nsqd.disk.files import Lines, data, drain, meta_positions, names, open_queue, records

FIVE = [bytes([65 + number]) * 16 for number in range(5)]  # one full file


def test_data_is_synced_before_the_meta_file_gets_its_name(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 2)
    seen: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        seen.append("renamed")
        real_replace(source, target)

    with patch("os.fsync", fsync), patch("os.replace", replace):
        queue.sync()
    first, second, temporary = sorted(seen[:3])
    assert (first, second) == ("q.diskqueue.000000.dat", "q.diskqueue.000001.dat")
    assert temporary.startswith("q.diskqueue.meta.dat.")
    assert seen[3:] == ["renamed", tmp_path.name]
    queue.close()


def test_a_deleted_queue_does_not_come_back_by_its_old_job(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 2)
    drain(queue, 7)
    job = queue.sync_job()
    assert job is not None
    queue.delete()
    following = open_queue(tmp_path)
    following.append(FIVE)
    job()
    queue.synced(job)
    assert names(tmp_path) == ["q.diskqueue.000000.dat", "q.diskqueue.meta.dat"]
    assert meta_positions(tmp_path) == "0\n0,0\n0,0\n"
    assert records(following) == FIVE
    following.close()


def test_a_failed_file_is_written_again_without_disturbing_appends_meanwhile(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE[:2])
    with patch("os.fsync", side_effect=OSError(errno.EIO, "broken")), pytest.raises(OSError, match="broken"):
        queue.sync()
    job = queue.sync_job()
    assert job is not None
    pread = os.pread

    def read_while_an_append_fails_and_another_follows(descriptor: int, size: int, offset: int) -> bytes:
        if offset:
            return pread(descriptor, size, offset)
        with open(data(tmp_path, 0), "ab") as file:
            file.write(b"a part of a record")
        content = pread(descriptor, size, offset)
        os.truncate(data(tmp_path, 0), 40)
        queue.append([FIVE[2]])
        return content

    with patch("os.pread", read_while_an_append_fails_and_another_follows):
        job()
    queue.synced(job)
    assert records(queue) == FIVE[:3]
    queue.close()


def test_a_failed_file_that_is_gone_or_cannot_be_read_is_given_up(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"content")
    job = SyncJob(tmp_path, {there: 7, tmp_path / "gone": 7}, failed={there, tmp_path / "gone"})
    with patch("os.pread", side_effect=OSError(errno.EIO, "broken")):
        job()
    assert job.failed == set()
    assert there.read_bytes() == b"content"


def test_a_failed_file_that_cannot_be_written_again_stays_failed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    job = SyncJob(tmp_path, {file: 7}, failed={file})
    full = OSError(errno.ENOSPC, "full")
    for call in ("os.pread", "os.pwrite"):
        with patch(call, side_effect=full), pytest.raises(OSError, match="full"):
            job()
    assert job.failed == {file}


@pytest.mark.parametrize(("taken", "left"), [(3, [0, 1, 2]), (12, [2]), (15, [])])
def test_on_a_full_disk_files_without_wanted_records_are_removed(
    tmp_path: Path, taken: int, left: list[int]
) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 3)
    queue.sync()
    drain(queue, taken)
    assert queue.make_room() is (len(left) < 3)
    assert [number for number in range(4) if data(tmp_path, number).exists()] == left
    queue.append([b"new"])
    expected = [*FIVE * len(left), b"new"]
    queue.release()  # a kill: the meta file speaks of what is gone
    again = open_queue(tmp_path)
    assert (again.depth, records(again)) == (len(expected), expected)
    again.close()


def test_on_a_full_disk_a_file_of_a_failed_sync_is_removed_too(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE[:2])
    drain(queue)
    queue.begin_new_file()
    assert queue.make_room()
    assert names(tmp_path) == ["q.diskqueue.meta.dat"]
    queue.close()


def test_an_empty_queue_removes_its_large_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE[:3])
    drain(queue)
    with patch("nsq.daemons.nsqd.disk.queue._WORTH_REMOVING", 60):
        queue.sync()
    assert names(tmp_path) == ["q.diskqueue.meta.dat"]
    queue.append(FIVE)
    queue.close()
    again = open_queue(tmp_path)
    assert records(again) == FIVE
    again.close()


def test_a_thread_removes_large_files_while_a_new_queue_uses_their_names(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 2)
    go_on = threading.Event()
    unlink = os.unlink

    def wait(path: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert go_on.wait(100)
        unlink(path)

    with patch("nsq.daemons.nsqd.disk.queue._LARGE", 60), patch("os.unlink", wait):
        queue.delete()
        [remover] = [thread for thread in threading.enumerate() if thread.name == "nsqd-remove"]
        assert not remover.daemon  # the process waits for it
        again = open_queue(tmp_path)
        again.append(FIVE)
        left = [name for name in names(tmp_path) if name.startswith("nsqd.")]
        assert len(left) == 2
        assert all(name.endswith(".tmp") for name in left)
        go_on.set()
        remover.join()
    assert names(tmp_path) == ["q.diskqueue.000000.dat", "q.diskqueue.meta.dat"]
    again.close()


def test_without_a_thread_large_files_are_removed_at_once(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 3)
    data(tmp_path, 1).unlink()
    with (
        patch("nsq.daemons.nsqd.disk.queue._LARGE", 60),
        patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")),
    ):
        queue.delete()
    assert names(tmp_path) == []


@pytest.mark.parametrize("count", [1, 40])
def test_many_jobs_are_done_as_one(tmp_path: Path, count: int) -> None:
    queues = [open_queue(tmp_path, f"q{number}") for number in range(count)]
    for queue in queues:
        queue.append(FIVE)
    jobs = [job for queue in queues if (job := queue.sync_job()) is not None]
    renamed: list[Path] = []
    synced: list[Path] = []
    with (
        patch.object(syncing, "sync_path", lambda path: synced.append(path) or assert_early(path, renamed)),
        patch.object(Replacement, "rename", lambda replacement: renamed.append(replacement.target)),
    ):
        run_together(jobs)
    assert len(renamed) == count
    assert len(synced) == 2 * count + 1
    assert synced[-1] == tmp_path
    for queue in queues:
        queue.delete()


def assert_early(path: Path, renamed: list[Path]) -> None:
    assert path.is_dir() or not renamed


def test_a_failure_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    targets = [tmp_path / name for name in "abc"]
    for target in targets:
        replace_content(target, b"old")
    jobs = [SyncJob(tmp_path, {}, replacement=Replacement(target, b"new")) for target in targets]
    with (
        patch("os.fsync", side_effect=[None, None, OSError(errno.ENOSPC, "full"), None]),
        pytest.raises(OSError, match="full"),
    ):
        run_together(jobs)
    assert [target.read_bytes() for target in targets] == [b"old"] * 3
    assert names(tmp_path) == ["a", "b", "c"]


class Owner:
    """One file, written to, and closed when that is asked for."""

    def __init__(self, files: OpenFiles, path: Path) -> None:
        self.files = files
        self.path = path
        self.descriptor = -1

    def use(self, *, write: bool = False) -> Owner:
        if self.descriptor < 0:
            self.descriptor = self.files.open(self.path, os.O_WRONLY | os.O_CREAT, self.close_early)
        self.files.used(self.descriptor)
        if write:
            self.files.wrote(self.descriptor)
        return self

    def close_early(self) -> None:
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
            owner.close_early()
    assert len(files) == 0


def opened(owners: list[Owner]) -> list[int]:
    return [number for number, owner in enumerate(owners) if owner.is_open]


def test_the_least_recently_used_file_is_closed(owners: list[Owner]) -> None:
    for number in (0, 1, 2, 0, 3):
        owners[number].use()
    assert opened(owners) == [0, 2, 3]


def test_files_with_unsynced_data_are_closed_last(owners: list[Owner]) -> None:
    owners[0].use(write=True)
    for number in (1, 2, 3, 4):
        owners[number].use()
    assert opened(owners) == [0, 3, 4]
    for number in (1, 2, 5):
        owners[number].use(write=True)
    assert opened(owners) == [1, 2, 5]


def test_without_free_descriptors_other_files_are_closed(owners: list[Owner]) -> None:
    for number in (0, 1):
        owners[number].use()
    with refusing(lambda: len(opened(owners)) > 0):
        owners[2].use()
    assert opened(owners) == [2]


def test_without_any_free_descriptor_opening_fails(owners: list[Owner]) -> None:
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


def test_a_file_is_synced_before_it_is_closed_early(queues: Queues) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        fsync(descriptor)

    with patch("os.fsync", remember):
        queues.append(b"a")
    assert synced == [f"q{number}.diskqueue.000000.dat" for number in range(7)]


def test_a_synced_file_is_closed_without_another_sync(queues: Queues) -> None:
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
    assert job is not None
    job()
    queue.flushed(job)


def sync(queue: DiskQueue) -> None:
    job = queue.sync_job()
    assert job is not None
    job()
    queue.synced(job)


@pytest.mark.parametrize("round_", [flush, sync])
def test_a_file_whose_sync_failed_before_the_close_is_written_again(
    queues: Queues, round_: Callable[[DiskQueue], None]
) -> None:
    with failing_fsync():
        queues.append(b"a")
    assert len(queues.log.complaints) == 7
    written: list[str] = []
    pwrite = os.pwrite

    def remember(descriptor: int, content: bytes, offset: int) -> int:
        written.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        return pwrite(descriptor, content, offset)

    with patch("os.pwrite", remember):
        round_(queues.all[0])
        round_(queues.all[9])  # was not closed
    assert written == ["q0.diskqueue.000000.dat"]


def test_a_failed_early_sync_fails_a_round_under_way(queues: Queues) -> None:
    first = queues.all[0]
    first.append([b"a"])
    job = first.flush_job()
    assert job is not None
    job()
    with failing_fsync():
        queues.append(b"b")
    with pytest.raises(OSError, match="has failed"):
        first.flushed(job)
    flush(first)


class TestAnAppendOverMoreFilesThanMayBeOpen:
    RECORDS = tuple(bytes([65 + number]) * 60 for number in range(8))

    def test_an_append_over_many_files_is_complete(self, queues: Queues) -> None:
        queues.all[0].append(self.RECORDS)
        assert len(queues.files) == 3
        assert records(queues.all[0]) == [*self.RECORDS]

    def test_a_failed_append_over_many_files_leaves_nothing(self, queues: Queues) -> None:
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
        assert names(queues.directory) == ["q0.diskqueue.000000.dat", "q0.diskqueue.meta.dat"]
        assert (queues.directory / "q0.diskqueue.000000.dat").stat().st_size == 9
        queues.all[0].append(self.RECORDS)
        assert records(queues.all[0]) == [b"first", *self.RECORDS]


def test_a_cancelled_job_replaces_nothing_though_its_file_cannot_be_removed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    job = SyncJob(tmp_path, {}, replacement=Replacement(target, b"new"))

    def cancel_and_sync(*_: object) -> dict[Path, OSError]:
        with patch.object(Path, "unlink", side_effect=OSError(errno.ENOSPC, "the disk is full")):
            job.cancel()
        return {}

    with patch.object(syncing, "sync_files", cancel_and_sync):
        job()
    assert target.read_bytes() == b"old"
