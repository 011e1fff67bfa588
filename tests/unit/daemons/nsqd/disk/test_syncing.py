from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.disk.syncing import replace_content
from tests.unit.daemons.nsqd.disk.files import data, drain, meta, names, open_queue, records

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
    assert seen[:2] == ["q.diskqueue.000000.dat", "q.diskqueue.000001.dat"]
    assert seen[2].startswith("q.diskqueue.meta.dat.")
    assert seen[3:] == ["renamed", tmp_path.name]
    queue.close()


def test_nothing_new_needs_no_sync(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE)
    queue.sync()
    assert queue.sync_job() is None
    queue.commit(queue.read(1)[-1][0])
    assert queue.sync_job() is not None
    queue.close()


def test_only_what_is_new_is_synced(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 2)
    queue.sync()
    queue.append(FIVE)
    job = queue.sync_job()
    assert job is not None
    assert job.numbers == {2}
    queue.close()


def test_a_file_about_to_be_removed_is_not_synced(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append([*FIVE, b"next"])
    drain(queue, 5)
    job = queue.sync_job()
    assert job is not None
    assert job.numbers == {1}
    queue.close()


def test_the_queue_can_be_used_while_a_job_runs_elsewhere(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE[:2])
    job = queue.sync_job()
    assert job is not None
    assert job.written.place == (0, 40)
    queue.append(FIVE * 3)
    drain(queue, 7)
    worker = threading.Thread(target=job)
    worker.start()
    worker.join()
    queue.synced(job)
    assert meta(tmp_path).read_text() == "2\n0,0\n0,40\n"
    assert data(tmp_path, 0).exists()  # the meta file still speaks of it
    queue.sync()
    assert not data(tmp_path, 0).exists()
    assert meta(tmp_path).read_text() == "10\n1,40\n3,40\n"
    queue.close()


def test_what_was_written_during_a_job_is_left_to_the_next(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE[:2])
    job = queue.sync_job()
    assert job is not None
    job()
    queue.append(FIVE[2:3])
    queue.synced(job)
    following = queue.sync_job()
    assert following is not None
    assert following.numbers == {0}
    following()
    queue.synced(following)
    assert queue.sync_job() is None
    queue.close()


def test_the_next_job_cancels_the_one_before(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE[:1])
    first = queue.sync_job()
    queue.append(FIVE[1:2])
    second = queue.sync_job()
    assert first is not None
    assert second is not None
    second()
    first()
    queue.synced(first)
    queue.synced(second)
    assert meta(tmp_path).read_text() == "2\n0,0\n0,40\n"
    assert names(tmp_path) == ["q.diskqueue.000000.dat", "q.diskqueue.meta.dat"]
    queue.close()


@pytest.mark.parametrize("called", [False, True])
def test_an_emptied_queue_has_nothing_to_do_with_its_old_job(tmp_path: Path, called: bool) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 2)
    job = queue.sync_job()
    assert job is not None
    if called:
        job()
    queue.empty()
    if not called:
        job()
    queue.synced(job)
    assert names(tmp_path) == []
    queue.append([b"new"])
    queue.close()
    assert meta(tmp_path).read_text() == "1\n2,0\n2,7\n"


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
    assert names(tmp_path) == ["q.diskqueue.000000.dat"]
    assert records(following) == FIVE
    following.close()


def test_closing_cancels_a_job_that_runs_late(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE[:1])
    job = queue.sync_job()
    assert job is not None
    drain(queue)
    queue.close()
    job()
    assert meta(tmp_path).read_text() == "0\n0,20\n0,20\n"


def test_a_disk_that_fails_is_the_caller_s_to_know_and_the_sync_can_be_repeated(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE)
    job = queue.sync_job()
    assert job is not None
    with patch("os.fsync", side_effect=OSError(errno.EIO, "broken")), pytest.raises(OSError, match="broken"):
        job()
    again = queue.sync_job()
    assert again is not None
    assert again.numbers == {0}
    again()
    queue.synced(again)
    assert names(tmp_path) == ["q.diskqueue.000000.dat", "q.diskqueue.meta.dat"]
    queue.close()


def test_a_full_disk_first_loses_what_nobody_wants_any_more(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(FIVE * 3)
    drain(queue, 12)
    written: list[list[str]] = []

    def no_room(target: Path, content: bytes) -> Path:
        written.append(names(tmp_path))
        raise OSError(errno.ENOSPC, "full")

    patched = patch("nsq.daemons.nsqd.disk.syncing.write_temporary", no_room)
    with patched, pytest.raises(OSError, match="full"):
        queue.sync_job()
    assert written[0] == ["q.diskqueue.000000.dat", "q.diskqueue.000001.dat", "q.diskqueue.000002.dat"]
    assert written[1] == ["q.diskqueue.000002.dat"]
    queue.sync()
    assert records(queue) == FIVE[2:]
    queue.close()


def test_content_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file"
    replace_content(target, b"old")
    with patch("os.fsync", side_effect=OSError(errno.EIO, "broken")), pytest.raises(OSError, match="broken"):
        replace_content(target, b"new")
    assert target.read_bytes() == b"old"
    replace_content(target, b"new")
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]
