from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.errors import InvalidMessage
from tests.unit.daemons.nsqd.disk.files import Lines, data, drain, names, open_queue, records, room_for

TEN = [bytes([65 + number]) * 16 for number in range(10)]  # 20 bytes each in a file


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        (100, [100, 100]),
        (99, [80, 80, 40]),
        (101, [100, 100]),
        (19, [20] * 10),
        (1, [20] * 10),
        (10_000, [200]),
    ],
)
def test_a_file_is_full_when_the_next_record_would_carry_it_beyond_the_limit(
    tmp_path: Path, limit: int, sizes: list[int]
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=limit)
    queue.append(TEN)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == sizes
    assert records(queue) == TEN
    queue.delete()


@pytest.mark.parametrize("step", [1, 3, 10])
def test_batches_of_any_length_make_the_same_files(tmp_path: Path, step: int) -> None:
    queue = open_queue(tmp_path)
    positions = [p for start in range(0, 10, step) for p in queue.append(TEN[start : start + step])]
    assert [position.place for position in positions] == [
        (file, end) for file in (0, 1) for end in range(20, 101, 20)
    ]
    assert [position.ordinal for position in positions] == list(range(1, 11))
    queue.delete()


def test_a_batch_is_written_in_one_call_per_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    with patch("os.pwrite", side_effect=os.pwrite) as pwrite:
        queue.append(TEN)
    assert pwrite.call_count == 2
    queue.delete()


def test_an_empty_batch_writes_nothing(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    assert queue.append([]) == []
    assert names(tmp_path) == []
    queue.close()


@pytest.mark.parametrize("size", [0, 61])
def test_a_record_outside_the_limits_refuses_its_batch(tmp_path: Path, size: int) -> None:
    queue = open_queue(tmp_path)
    with pytest.raises(InvalidMessage, match=f"{size} bytes: q takes 1 to 60"):
        queue.append([b"fine", bytes(size)])
    assert names(tmp_path) == []
    assert queue.depth == 0
    queue.close()


@pytest.mark.parametrize("room", range(0, 200, 7))
def test_a_batch_that_does_not_fit_leaves_nothing(tmp_path: Path, room: int) -> None:
    queue = open_queue(tmp_path)
    queue.append([b"before"])
    with room_for(room), pytest.raises(OSError, match="No space left"):
        queue.append(TEN)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [10]
    assert (queue.depth, queue.size) == (1, 10)
    queue.append(TEN)
    assert drain(queue) == [b"before", *TEN]
    queue.close()
    again = open_queue(tmp_path)
    assert (again.depth, records(again)) == (0, [])
    again.close()


@pytest.mark.parametrize("room", [0, 1, 19, 20, 30])
def test_what_cannot_be_taken_back_is_never_read(tmp_path: Path, room: int) -> None:
    log = Lines()
    queue = open_queue(tmp_path, log=log)
    queue.append([b"before"])
    with room_for(room, truncates=False), pytest.raises(OSError, match="No space left"):
        queue.append(TEN[:3])
    queue.append([b"after"])
    assert "cannot take a failed write to q.diskqueue.000000.dat back" in log.complaints[0]
    assert data(tmp_path, 1).stat().st_size == 9
    assert records(queue) == [b"before", b"after"]
    assert queue.depth == 2
    queue.delete()


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(TEN[:4])
    real = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, mode)

    with patch("os.open", refuse), pytest.raises(OSError, match="Too many open files"):
        queue.append(TEN[4:])
    assert data(tmp_path, 0).stat().st_size == 80
    queue.append(TEN[4:])
    assert records(queue) == TEN
    queue.delete()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel's own way of refusing to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("limit", [20, 33, 60, 99])
def test_a_refusing_kernel_leaves_nothing(tmp_path: Path, limit: int) -> None:
    queue = open_queue(tmp_path)
    queue.append(TEN[:1])
    with largest_file(limit), pytest.raises(OSError, match="File too large"):
        queue.append(TEN[1:])
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [20]
    queue.append(TEN[1:])
    assert records(queue) == TEN
    queue.delete()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append([b"secret"])
    queue.close()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_files_that_are_full_and_synced_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    queue = open_queue(tmp_path)
    queue.append(TEN * 5)
    queue.sync()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    queue.append(TEN)
    drain(queue)
    queue.sync()
    assert len(os.listdir("/proc/self/fd")) == before + 2  # one to write, one to read
    queue.close()
    assert len(os.listdir("/proc/self/fd")) == before
