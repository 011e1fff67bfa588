"""After a kill Go's nsqd finds every record in the files that the meta file names, and overwrites none."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import OpenFiles
from tests.integration.go_reader import GoQueue
from tests.unit.daemons.nsqd.disk.files import Lines, data, open_queue, records

_copies = itertools.count()


def opened(directory: Path, log: Lines | None = None) -> DiskQueue:
    """Return a queue with three of the records below in each file."""
    return open_queue(directory, max_bytes_per_file=100, min_record=26, max_record=60, log=log)


def record(number: int) -> bytes:
    return bytes(26) + b"%02d" % number


def numbered(start: int, stop: int) -> list[bytes]:
    return [record(number) for number in range(start, stop)]


def survives_a_kill(directory: Path, expected: list[bytes]) -> None:
    """Expect that Go's nsqd finds exactly these, and that ours finds them after Go's has published more."""
    copy = directory.parent / f"killed-{next(_copies)}"
    shutil.copytree(directory, copy)
    go = GoQueue(copy, "q")
    assert [bytes(26) + body for body in go.bodies()] == expected
    go.publish(b"of Go")
    go.stop()
    log = Lines()
    ours = opened(copy, log)
    assert records(ours) == [*expected, bytes(26) + b"of Go"]
    assert log.complaints == []
    ours.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


def begin_the_first_file(queue: DiskQueue, directory: Path) -> int:
    queue.append(numbered(0, 2))
    return 2


def fill_files_in_one_append(queue: DiskQueue, directory: Path) -> int:
    queue.append(numbered(0, 10))
    return 10


def fill_files_one_by_one(queue: DiskQueue, directory: Path) -> int:
    for number in range(10):
        queue.append([record(number)])
        survives_a_kill(directory, numbered(0, number + 1))
    return 10


def fill_files_after_a_sync(queue: DiskQueue, directory: Path) -> int:
    queue.append(numbered(0, 2))
    queue.sync()
    queue.append(numbered(2, 9))
    return 9


def begin_one_after_a_failed_fsync(queue: DiskQueue, directory: Path) -> int:
    queue.append(numbered(0, 2))
    queue.begin_new_file()
    queue.append(numbered(2, 3))
    return 3


def join_a_file(queue: DiskQueue, directory: Path) -> int:
    other = open_queue(directory, "other", max_bytes_per_file=1000, min_record=26)
    other.append(numbered(2, 6))
    other.release()
    queue.append(numbered(0, 2))
    queue.join_file(data(directory, 0, "other"), 4, data(directory, 0, "other").stat().st_size)
    return 6


def join_and_append(queue: DiskQueue, directory: Path) -> int:
    join_a_file(queue, directory)
    queue.append(numbered(6, 7))
    return 7


def fill_files_after_a_restart(queue: DiskQueue, directory: Path) -> int:
    queue.append(numbered(0, 4))
    queue.sync()
    queue.append(numbered(4, 8))
    queue.release()
    again = opened(directory)
    again.append(numbered(8, 9))
    survives_a_kill(directory, numbered(0, 9))
    again.append(numbered(9, 14))
    again.release()
    return 14


@pytest.mark.parametrize(
    "begin",
    [
        begin_the_first_file,
        fill_files_in_one_append,
        fill_files_one_by_one,
        fill_files_after_a_sync,
        begin_one_after_a_failed_fsync,
        join_a_file,
        join_and_append,
        fill_files_after_a_restart,
    ],
)
def test_every_new_file_is_named(directory: Path, begin: Callable[[DiskQueue, Path], int]) -> None:
    queue = opened(directory)
    count = begin(queue, directory)
    survives_a_kill(directory, numbered(0, count))
    queue.release()


def test_an_emptied_queue_names_its_next_file(directory: Path) -> None:
    queue = opened(directory)
    queue.append(numbered(0, 5))
    queue.empty()
    queue.append(numbered(5, 6))
    survives_a_kill(directory, numbered(5, 6))
    queue.release()


@pytest.mark.parametrize("moment", range(16))
def test_a_file_that_begins_during_a_sync_stays_named(directory: Path, moment: int) -> None:
    """The sync neither puts an older meta file in its place, nor loses its own read position by it."""
    queue = opened(directory)
    queue.append(numbered(0, 4))
    queue.sync()
    queue.append(numbered(4, 5))
    queue.commit(queue.read(2)[-1][0])
    job = queue.sync_job()
    assert job is not None
    left = moment

    def reached() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            queue.append(numbered(5, 9))
            assert found() in (numbered(0, 9), numbered(2, 9))

    def found() -> list[bytes]:
        return [bytes(26) + body for body in GoQueue(directory, "q").bodies()]

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            reached()
            try:
                return call(*args, **named)
            finally:
                reached()

        return called

    with ExitStack() as stack:
        for name in ("open", "pwrite", "fsync", "replace"):
            stack.enter_context(patch.object(os, name, watched(getattr(os, name))))
        job()
    assert left < 0
    assert found() == numbered(2, 9)
    queue.synced(job)
    survives_a_kill(directory, numbered(2, 9))
    queue.append(numbered(9, 12))
    survives_a_kill(directory, numbered(2, 12))
    queue.release()


def test_without_room_for_the_meta_file_an_append_fails_and_leaves_nothing(directory: Path) -> None:
    queue = opened(directory)
    full = OSError(errno.ENOSPC, "full")
    for written in (0, 2):
        with patch.object(OpenFiles, "open_briefly", side_effect=full), pytest.raises(OSError, match="full"):
            queue.append(numbered(written, written + 5))
        assert queue.depth == written
        queue.append(numbered(written, written + 2))
        survives_a_kill(directory, numbered(0, written + 2))
    assert records(queue) == numbered(0, 4)
    queue.release()


def test_a_restart_does_not_take_records_for_synced_because_a_file_is_named(directory: Path) -> None:
    queue = opened(directory)
    queue.append(numbered(0, 4))
    queue.sync()
    queue.append(numbered(4, 10))
    queue.release()
    again = opened(directory)
    job = again.flush_job()
    assert job is not None
    assert job.sizes.keys() == {1, 2, 3}
    again.release()
