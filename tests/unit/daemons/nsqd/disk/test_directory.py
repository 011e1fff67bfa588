from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsq.daemons.nsqd.disk.directory import DataDirectory
from nsq.daemons.nsqd.disk.roster import ChannelEntry, TopicEntry
from nsq.errors import ConfigError
from tests.unit.daemons.nsqd.disk.files import GOLDEN, Lines, names

LOCKED_BY_ANOTHER_PROGRAM = """
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("locked")
"""


def test_a_second_nsqd_is_refused_by_name_until_the_first_is_gone(tmp_path: Path) -> None:
    first, second = DataDirectory(tmp_path, Lines()), DataDirectory(tmp_path, Lines())
    first.lock()
    with pytest.raises(ConfigError, match=f"{tmp_path}.*another nsqd"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()
    second.unlock()


def test_the_lock_is_the_one_other_programs_ask_for(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, Lines())
    directory.lock()
    command = [sys.executable, "-c", LOCKED_BY_ANOTHER_PROGRAM, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"
    directory.unlock()


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.*No such file"):
        DataDirectory(tmp_path / "missing", Lines()).lock()


def test_a_path_that_takes_no_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touch(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", touch)
    directory = DataDirectory(tmp_path, Lines())
    with pytest.raises(ConfigError, match=rf"{tmp_path}.*takes no writes \(Read-only file system\)"):
        directory.lock()
    monkeypatch.undo()
    directory.lock()
    directory.unlock()


def test_locking_removes_what_was_never_finished(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat.123.tmp").write_bytes(b"{")
    directory = DataDirectory(tmp_path, Lines())
    directory.lock()
    directory.unlock()
    assert names(tmp_path) == []


def test_a_new_directory_has_no_topics(tmp_path: Path) -> None:
    assert DataDirectory(tmp_path, Lines()).read_roster() == []


def test_topics_are_written_and_read(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, Lines())
    topics = [TopicEntry("t", True, (ChannelEntry("c"),))]
    directory.write_roster([TopicEntry("old")], "1.3.0")
    directory.write_roster(topics, "1.3.0")
    assert directory.read_roster() == topics
    assert names(tmp_path) == ["nsqd.dat"]


def test_the_recorded_directory_is_read(tmp_path: Path) -> None:
    directory = DataDirectory(GOLDEN, Lines())
    assert directory.read_roster() == [TopicEntry("dq", False, (ChannelEntry("ch"),))]
    assert directory.queues() == [("dq", None), ("dq", "ch")]


def test_a_file_of_before_1_0_is_read(tmp_path: Path) -> None:
    (tmp_path / "nsqd.516.dat").write_bytes(b'{"topics":[{"name":"t"}]}')
    directory = DataDirectory(tmp_path, Lines())
    assert directory.read_roster() == [TopicEntry("t")]
    directory.write_roster([TopicEntry("new")], "1.3.0")
    assert directory.read_roster() == [TopicEntry("new")]


def test_a_broken_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"nsqd\.dat'.*repair it, or move it away"):
        DataDirectory(tmp_path, Lines()).read_roster()


def test_deleting_removes_a_queue_s_files_and_no_others(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    (tmp_path / "dq:ch.diskqueue.meta.dat.5.tmp").touch()
    others = ["dq:ch2.diskqueue.000000.dat", "dqx.diskqueue.meta.dat", "nsqd.dat"]
    for name in others:
        (tmp_path / name).touch()
    directory = DataDirectory(tmp_path, Lines())
    directory.delete_channel("dq", "ch")
    assert directory.queues() == [("dq", None), ("dq", "ch2"), ("dqx", None)]
    directory.delete_topic("dq")
    assert names(tmp_path) == ["dq.diskqueue.000000.dat.bad", "dqx.diskqueue.meta.dat", "nsqd.dat"]
