from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.disk.layout import Position
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.errors import Closed, InvalidMessage, UsageError
from tests.unit.daemons.nsqd.disk.files import (
    GOLDEN,
    Lines,
    data,
    drain,
    meta_positions,
    names,
    open_queue,
    records,
    room_for,
)

TEN = [bytes([65 + number]) * 16 for number in range(10)]  # 20 bytes each in a file, 100 bytes a file


def golden_records(tmp_path: Path) -> list[bytes]:
    source = tmp_path / "source"
    shutil.copytree(GOLDEN, source)
    queue = golden_queue(source, "dq:ch")
    found = records(queue)
    queue.close()
    return found


def golden_queue(directory: Path, name: str) -> DiskQueue:
    return open_queue(directory, name, max_bytes_per_file=200, min_record=26, max_record=1024 * 1024 + 26)


def test_the_recorded_files_are_written_byte_for_byte(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    batch = golden_records(tmp_path)
    channel, topic = golden_queue(ours, "dq:ch"), golden_queue(ours, "dq")
    channel.append(batch)
    for record in batch:  # Go's nsqd had passed each message on before the next one came
        topic.append([record])
        assert drain(topic) == [record]
    channel.close()
    topic.close()
    # Go takes the end of a file it reads while it is written for damage, and keeps it as bad.
    recorded = [name for name in names(GOLDEN) if not name.endswith(".bad") and name != "nsqd.dat"]
    assert names(ours) == recorded
    for name in recorded:
        assert (ours / name).read_bytes() == (GOLDEN / name).read_bytes(), name


@pytest.mark.parametrize("place", [(1, 101, 11), (2, 0, 10)])
def test_a_position_of_another_queue_is_refused(tmp_path: Path, place: tuple[int, int, int]) -> None:
    queue = open_queue(tmp_path)
    queue.append(TEN)
    with pytest.raises(UsageError, match="from another queue"):
        queue.commit(Position(*place))
    queue.close()


def test_a_file_goes_with_the_sync_after_nothing_in_it_is_wanted(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    positions = queue.append(TEN)
    queue.read(10)
    queue.commit(positions[3])
    queue.sync()
    assert names(tmp_path) == ["q.diskqueue.000000.dat", "q.diskqueue.000001.dat", "q.diskqueue.meta.dat"]
    queue.commit(positions[4])
    assert queue.committed == (1, 0, 5)
    queue.sync()
    assert names(tmp_path) == ["q.diskqueue.000001.dat", "q.diskqueue.meta.dat"]
    queue.commit(positions[9])
    queue.sync()
    assert meta_positions(tmp_path) == "0\n1,100\n1,100\n"
    queue.append([b"next"])
    queue.sync()
    assert names(tmp_path) == ["q.diskqueue.000002.dat", "q.diskqueue.meta.dat"]
    queue.close()


def test_a_file_that_cannot_be_removed_is_removed_by_the_next_start(tmp_path: Path) -> None:
    log = Lines()
    queue = open_queue(tmp_path, log=log)
    queue.append(TEN)
    drain(queue, 6)
    with patch.object(Path, "unlink", side_effect=OSError(errno.EBUSY, "busy")):
        queue.sync()
    assert "cannot remove q.diskqueue.000000.dat" in log.complaints[0]
    queue.close()
    again = open_queue(tmp_path)
    assert records(again) == TEN[6:]
    assert not data(tmp_path, 0).exists()
    again.close()


def test_emptying_removes_everything_and_numbers_on(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    positions = queue.append(TEN)
    queue.read(3)
    queue.sync()
    queue.empty()
    assert names(tmp_path) == []
    assert (queue.depth, queue.unread, queue.size) == (0, 0, 0)
    queue.commit(positions[-1])  # handed out before; means nothing any more
    queue.append([b"new"])
    assert records(queue) == [b"new"]
    queue.close()
    assert meta_positions(tmp_path) == "1\n2,0\n2,7\n"


def test_deleting_leaves_only_what_was_kept_as_bad(tmp_path: Path) -> None:
    (tmp_path / "q.diskqueue.000000.dat.bad").touch()
    queue = open_queue(tmp_path)
    queue.append(TEN)
    queue.sync()
    queue.delete()
    assert names(tmp_path) == ["q.diskqueue.000000.dat.bad"]


def test_a_closed_queue_says_so(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    position = queue.append(TEN)[0]
    queue.close()
    queue.close()
    for call in (
        lambda: queue.append(TEN),
        lambda: queue.read(1),
        lambda: queue.commit(position),
        lambda: queue.skip(position),
        queue.sync,
        queue.empty,
    ):
        with pytest.raises(Closed, match="disk queue q is closed"):
            call()
    queue.delete()
    assert len(names(tmp_path)) == 3


def test_a_queue_closes_even_if_it_cannot_be_synced(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(TEN)
    with patch("os.fsync", side_effect=OSError(errno.EIO, "broken")), pytest.raises(OSError, match="broken"):
        queue.close()
    with pytest.raises(Closed):
        queue.append(TEN)
    again = open_queue(tmp_path)
    assert (again.depth, records(again)) == (10, TEN)
    again.close()


def spoil(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize("number", range(15))
def test_a_bad_record_costs_the_rest_of_its_file_and_the_file_is_kept(tmp_path: Path, number: int) -> None:
    log = Lines()
    queue = open_queue(tmp_path, log=log)
    batch = [b"%02d" % index * 8 for index in range(15)]
    queue.append(batch)
    file, index = divmod(number, 5)
    spoil(data(tmp_path, file), index * 20, b"\xff")
    kept = batch[:number] + batch[(file + 1) * 5 :]
    assert drain(queue) == kept
    assert (queue.depth, queue.unread, queue.size) == (0, 0, 0)
    queue.append([b"new"])
    assert (queue.depth, drain(queue)) == (1, [b"new"])
    queue.close()
    bad = f"q.diskqueue.{file:06d}.dat.bad"
    assert [name for name in names(tmp_path) if name.endswith("bad")] == [bad]
    assert (tmp_path / bad).stat().st_size == 100
    assert f"skipping {100 - 20 * index} bytes" in log.complaints[0]
    assert f"as {bad}" in log.complaints[-1]


def test_a_bad_file_stays_until_what_was_read_of_it_is_committed(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    positions = queue.append(TEN)
    spoil(data(tmp_path, 0), 40, b"\xff")
    assert records(queue) == [*TEN[:2], *TEN[5:]]
    queue.commit(positions[0])
    queue.close()
    queue = open_queue(tmp_path)
    found = queue.read(100)
    assert [record for _, record in found] == [TEN[1], *TEN[5:]]
    queue.commit(found[0][0])
    queue.sync()
    assert "q.diskqueue.000000.dat.bad" in names(tmp_path)
    queue.close()


def test_records_behind_a_flaw_can_still_be_committed(tmp_path: Path) -> None:
    """A caller may have them from the time they were written."""
    queue = open_queue(tmp_path)
    positions = queue.append(TEN[:4])
    spoil(data(tmp_path, 0), 20, b"\xff")
    assert records(queue) == TEN[:1]
    queue.commit(positions[3])
    assert (queue.depth, queue.committed.place) == (0, (1, 0))
    queue.append([b"new"])
    assert drain(queue) == [b"new"]
    queue.close()


def test_a_file_that_disappears_is_passed_over(tmp_path: Path) -> None:
    log = Lines()
    queue = open_queue(tmp_path, log=log)
    queue.append(TEN * 2)
    data(tmp_path, 1).unlink()
    assert drain(queue) == [*TEN[:5], *TEN]
    assert queue.depth == 0
    assert log.complaints == ["DISKQUEUE(q): q.diskqueue.000001.dat is gone; skipping 100 bytes"]
    queue.close()


def test_a_fault_that_may_pass_loses_nothing(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append(TEN)
    real = os.open

    def only_the_first_file(path: Path, flags: int, mode: int = 0o777) -> int:
        if path == data(tmp_path, 1):
            raise OSError(errno.EMFILE, "too many")
        return real(path, flags, mode)

    with patch("os.open", only_the_first_file):
        assert records(queue) == TEN[:5]
        with pytest.raises(OSError, match="too many"):
            queue.read(10)
    assert records(queue) == TEN[5:]
    queue.close()


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
    assert [path.stat().st_size for path in sorted(tmp_path.glob("*.0*.dat"))] == sizes
    assert records(queue) == TEN
    queue.delete()


def test_a_batch_is_written_in_one_call_per_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    with patch("os.pwrite", side_effect=os.pwrite) as pwrite:
        queue.append(TEN)
    assert pwrite.call_count == 2 + 1  # the meta file
    queue.delete()


def test_the_last_unread_records_are_described_across_files(tmp_path: Path) -> None:
    """A power cut tears the newest: they must be among those that are compared with other copies."""
    queue = open_queue(tmp_path, max_bytes_per_file=100)
    positions = queue.append([b"%d" % number * 40 for number in range(6)])
    for n in range(1, 8):
        assert [each.place for each in queue.unread_records(n)] == [each.place for each in positions[-n:]]
    queue.delete()


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
    assert [path.stat().st_size for path in tmp_path.glob("*.0*.dat")] == [10]
    assert (queue.depth, queue.size) == (1, 10)
    queue.append(TEN)
    assert drain(queue) == [b"before", *TEN]
    queue.close()
    again = open_queue(tmp_path)
    assert (again.depth, records(again)) == (0, [])
    again.close()


@pytest.mark.parametrize("room", [0, 1, 19, 20, 30])
def test_bytes_of_a_failed_write_that_remain_are_never_read(tmp_path: Path, room: int) -> None:
    log = Lines()
    queue = open_queue(tmp_path, log=log)
    queue.append([b"before"])
    with room_for(room, truncates=False), pytest.raises(OSError, match="No space left"):
        queue.append(TEN[:3])
    queue.append([b"after"])
    assert "cannot undo a failed write to q.diskqueue.000000.dat" in log.complaints[0]
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


def test_a_read_ends_after_a_mib_so_that_others_have_their_turn(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, "q", max_bytes_per_file=10**9, min_record=1, max_record=10**6)
    queue.append([bytes(500_000)] * 10)
    sizes = [len(queue.read(100)) for _ in range(5)]
    assert sizes == [3, 3, 3, 1, 0]
    queue.close()
