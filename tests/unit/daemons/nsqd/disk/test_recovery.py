"""Starting up on what a power cut, a kill, a full disk, a person or the Go nsqd left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nsq.daemons.nsqd.disk.layout import decode_record
from tests.unit.daemons.nsqd.disk.files import GOLDEN, Lines, data, drain, meta, names, open_queue, records

TEN = [bytes([65 + number]) * 16 for number in range(10)]  # 20 bytes each in a file, 100 bytes a file


def leave(directory: Path, *, read: int = 0, synced: bool = True) -> None:
    """Ten records in two files, some of them read; not synced is as after kill -9: no meta file."""
    queue = open_queue(directory)
    queue.append(TEN)
    if read:
        queue.commit(queue.read(read)[-1][0])
    if synced:
        queue.close()
    else:
        queue.release()


def started(directory: Path) -> tuple[list[bytes], list[str]]:
    """All that can be read, and the complaints. The depth is right from the start, and writing goes on."""
    log = Lines()
    queue = open_queue(directory, log=log)
    depth = queue.depth
    found = drain(queue)
    assert depth == len(found)
    assert (queue.depth, queue.size, queue.unread) == (0, 0, 0)
    queue.append([b"new"])
    assert drain(queue) == [b"new"]
    queue.append([b"last"])
    queue.close()
    again = open_queue(directory)
    assert (again.depth, records(again)) == (1, [b"last"])
    again.close()
    return found, log.complaints


def test_the_recorded_directory_yields_its_messages(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    log = Lines()
    queue = open_queue(tmp_path, "dq:ch", max_bytes_per_file=200, min_record=26, max_record=1000, log=log)
    assert queue.depth == 8
    messages = [decode_record(found) for found in drain(queue)]
    assert [message.body for message in messages] == [b"message number %d" % number for number in range(1, 9)]
    assert [message.attempts for message in messages] == [0] * 8
    assert messages[0].id == b"18a19ef539669000"
    assert messages == sorted(messages)
    queue.close()
    assert meta(tmp_path, "dq:ch").read_text() == "0\n2,0\n2,0\n"
    assert log.complaints == []


def test_the_recorded_queue_that_was_read_to_its_end_is_empty(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    queue = open_queue(tmp_path, "dq", max_bytes_per_file=200, min_record=26, max_record=1000)
    assert (queue.depth, records(queue)) == (0, [])
    queue.append([bytes(42)])
    queue.close()
    assert names(tmp_path)[:3] == [
        "dq.diskqueue.000000.dat.bad",
        "dq.diskqueue.000002.dat",
        "dq.diskqueue.meta.dat",
    ]
    assert meta(tmp_path, "dq").read_text() == "1\n2,0\n2,46\n"


def test_a_new_queue_leaves_no_files_until_it_is_used(tmp_path: Path) -> None:
    assert open_queue(tmp_path).depth == 0
    assert names(tmp_path) == []


@pytest.mark.parametrize(("read", "place"), [(7, (2, 8)), (10, (1, 108))])
def test_a_clean_end_is_gone_on_from_in_the_same_file_if_it_has_been_read(
    tmp_path: Path, read: int, place: tuple[int, int]
) -> None:
    leave(tmp_path, read=read)
    assert names(tmp_path) == ["q.diskqueue.000001.dat", "q.diskqueue.meta.dat"]
    assert meta(tmp_path).read_text() == f"{10 - read}\n1,{20 * read - 100}\n1,100\n"
    log = Lines()
    queue = open_queue(tmp_path, max_bytes_per_file=1000, log=log)
    queue.append([b"more"])
    assert records(queue) == [*TEN[read:], b"more"]
    assert queue.written.place == place
    assert log.complaints == []
    queue.close()


@pytest.mark.parametrize("text", [None, "", "garbage", "1\n9,0\n1,0\n", "\0\0\0\0\0\0\0"])
def test_without_a_meta_file_that_makes_sense_everything_is_read(tmp_path: Path, text: str | None) -> None:
    leave(tmp_path)
    meta(tmp_path).unlink()
    if text is not None:
        meta(tmp_path).write_text(text)
    found, complaints = started(tmp_path)
    assert found == TEN
    assert "using the data instead" in complaints[0]


@pytest.mark.parametrize(
    "text",
    [
        "-2\n0,0\n1,100\n",
        "0\n0,0\n1,100\n",
        "99\n0,0\n1,100\n",
        "10\n0,0\n1,140\n",
        "10\n0,0\n5,0\n",
        "10\n0,0\n7,60\n",
        f"10\n0,0\n{10**17},60\n",
    ],
)
def test_a_meta_file_the_data_does_not_bear_out_is_not_believed(tmp_path: Path, text: str) -> None:
    leave(tmp_path)
    meta(tmp_path).write_text(text)
    found, complaints = started(tmp_path)
    assert found == TEN
    assert complaints


@pytest.mark.parametrize(
    "text", ["0\n0,0\n0,0\n", "2\n0,0\n0,40\n", "5\n0,0\n0,100\n", "5\n0,0\n1,0\n", "9\n0,0\n1,80\n"]
)
def test_records_written_after_the_meta_file_are_kept_and_counted(tmp_path: Path, text: str) -> None:
    leave(tmp_path)
    meta(tmp_path).write_text(text)
    found, complaints = started(tmp_path)
    assert found == TEN
    assert any("records from byte" in line for line in complaints)


def test_only_records_that_the_meta_file_does_not_cover_are_counted(tmp_path: Path) -> None:
    leave(tmp_path)
    meta(tmp_path).write_text("9\n0,0\n1,80\n")
    assert started(tmp_path)[1] == ["DISKQUEUE(q): q.diskqueue.000001.dat has 1 records from byte 80 on"]


def test_writing_goes_on_in_a_new_file_behind_data_the_meta_file_does_not_cover(tmp_path: Path) -> None:
    leave(tmp_path)
    meta(tmp_path).write_text("9\n0,0\n1,80\n")
    queue = open_queue(tmp_path, max_bytes_per_file=1000)
    assert queue.append([b"new"])[0] == (2, 7, 11)
    assert queue.depth == 11
    queue.close()


def test_a_read_position_behind_the_data_goes_to_what_follows(tmp_path: Path) -> None:
    leave(tmp_path)
    meta(tmp_path).write_text("2\n0,500\n1,100\n")
    found, complaints = started(tmp_path)
    assert found == TEN[5:]
    assert "points past the end of the data" in complaints[0]


def test_after_all_files_vanished_writing_goes_on(tmp_path: Path) -> None:
    leave(tmp_path)
    data(tmp_path, 0).unlink()
    data(tmp_path, 1).unlink()
    found, complaints = started(tmp_path)
    assert found == []
    assert complaints


def test_a_missing_file_in_the_middle_is_stepped_over(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.append([*TEN, *TEN])
    queue.close()
    data(tmp_path, 1).unlink()
    found, complaints = started(tmp_path)
    assert found == [*TEN[:5], *TEN]
    assert "1 files from 0 to 2 are missing" in complaints[0]


@pytest.mark.parametrize("missing", range(1, 20))
def test_a_torn_last_record_is_dropped_and_said(tmp_path: Path, missing: int) -> None:
    leave(tmp_path, synced=False)
    with data(tmp_path, 1).open("r+b") as file:
        file.truncate(100 - missing)
    found, complaints = started(tmp_path)
    assert found == TEN[:9]
    said = f"skipping {20 - missing} bytes"
    assert any(said in line for line in complaints)


@pytest.mark.parametrize("max_bytes_per_file", [100, 1000])
def test_a_depth_that_was_wrong_is_right_at_the_end(tmp_path: Path, max_bytes_per_file: int) -> None:
    """A Go nsqd that was killed and salvaged records does not count them."""
    leave(tmp_path)
    meta(tmp_path).write_text("7\n0,0\n1,100\n")
    log = Lines()
    queue = open_queue(tmp_path, max_bytes_per_file=max_bytes_per_file, log=log)
    queue.append([b"new"])
    assert queue.depth == 8
    found = [drain(queue, 4) for _ in range(4)]
    assert found == [TEN[:4], TEN[4:8], [*TEN[8:], b"new"], []]
    assert queue.depth == 0
    queue.append([b"one", b"two"])
    assert queue.depth == 2
    assert log.complaints == ["DISKQUEUE(q): the depth was wrong by -3, corrected"]
    queue.close()


def test_leftovers_are_removed_and_bad_files_left_alone(tmp_path: Path) -> None:
    leave(tmp_path, read=7)
    (tmp_path / "q.diskqueue.meta.dat.123.tmp").write_text("1")
    (tmp_path / "q.diskqueue.000003.dat.bad").write_text("evidence")
    data(tmp_path, 0).write_bytes(b"read before, but not removed any more")
    data(tmp_path, 77).mkdir()
    found, complaints = started(tmp_path)
    assert found == TEN[7:]
    assert complaints == []
    assert "q.diskqueue.000003.dat.bad" in names(tmp_path)
    assert not data(tmp_path, 0).exists()
    assert not any(name.endswith(".tmp") for name in names(tmp_path))


def test_a_restart_does_not_change_what_it_finds(tmp_path: Path) -> None:
    """Whatever the start-up skipped it skips again, as long as the records before are not committed."""
    leave(tmp_path, synced=False)
    with data(tmp_path, 0).open("r+b") as file:
        file.truncate(50)
    for _ in range(3):
        queue = open_queue(tmp_path)
        assert (queue.depth, records(queue)) == (7, [*TEN[:2], *TEN[5:]])
        queue.close()


def test_damage_that_shows_late_swallows_nothing_that_is_written_after_the_start(tmp_path: Path) -> None:
    leave(tmp_path, read=6)
    content = bytearray(data(tmp_path, 1).read_bytes())
    content[-17] ^= 0x20  # the last record claims to go on behind the end
    data(tmp_path, 1).write_bytes(content)
    queue = open_queue(tmp_path)
    queue.append([b"new"] * 10)
    assert records(queue)[-10:] == [b"new"] * 10
    queue.close()
