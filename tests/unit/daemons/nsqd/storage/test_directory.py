from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsq.daemons.nsqd.disk.syncing import open_regular, read_regular, truncate_regular
from nsq.daemons.nsqd.storage.directory import DataDirectory
from nsq.errors import ConfigError
from tests.unit.daemons.nsqd.disk.files import Lines, names

LOCKED_BY_ANOTHER_PROGRAM = """
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("locked")
"""


def test_the_lock_is_the_one_other_programs_ask_for(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, Lines())
    directory.lock()
    command = [sys.executable, "-c", LOCKED_BY_ANOTHER_PROGRAM, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"
    directory.unlock()


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.*No such file"):
        DataDirectory(tmp_path / "missing", Lines()).lock()


def test_a_read_only_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, flags: int) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("nsq.daemons.nsqd.storage.directory.open_regular", refuse)
    directory = DataDirectory(tmp_path, Lines())
    with pytest.raises(ConfigError, match=rf"{tmp_path}.*takes no writes \(Read-only file system\)"):
        directory.lock()
    monkeypatch.undo()
    directory.lock()
    directory.unlock()


def test_locking_removes_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat.123.tmp").write_bytes(b"{")
    directory = DataDirectory(tmp_path, Lines())
    directory.lock()
    directory.unlock()
    assert names(tmp_path) == []


def make(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null" if kind == "device" else "nowhere")


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "dangling link"])
@pytest.mark.parametrize(
    "name", ["nsqd.dat", "t.diskqueue.000000.dat", "t:c.diskqueue.meta.dat", "t:c.dues.dat", "nsqd.dat.1.tmp"]
)
def test_a_special_file_with_the_name_of_a_data_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    make(tmp_path / name, kind)
    make(tmp_path / "another program's", kind)
    directory = DataDirectory(tmp_path, Lines())
    with pytest.raises(ConfigError, match=f"{name}.*remove it"):
        directory.lock()
    (tmp_path / name).rmdir() if kind == "directory" else (tmp_path / name).unlink()
    directory.lock()
    directory.unlock()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT])
def test_opening_a_fifo_fails_at_once(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match=r"no regular file|No such device"):
        open_regular(tmp_path / "fifo", flags)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT | os.O_TRUNC])
def test_no_file_is_written_through_a_link(tmp_path: Path, flags: int) -> None:
    outside, link = tmp_path / "outside", tmp_path / "link"
    outside.write_bytes(b"content")
    link.symlink_to(outside)
    with pytest.raises(OSError, match="is a link"):
        open_regular(link, flags)
    with pytest.raises(OSError, match="is a link"):
        truncate_regular(link, 0)
    assert read_regular(link) == outside.read_bytes() == b"content"


@pytest.mark.parametrize("target", ["outside", "nowhere"])
def test_a_probe_removes_a_link_of_its_name(tmp_path: Path, target: str) -> None:
    data, outside = tmp_path / "data", tmp_path / "outside"
    data.mkdir()
    outside.write_bytes(b"content")
    probe = data / "nsqd.dat.probe.tmp"
    probe.symlink_to(tmp_path / target)
    directory = DataDirectory(data, Lines())
    directory.lock()
    probe.symlink_to(tmp_path / target)
    with pytest.raises(OSError, match="is a link"):
        directory.probe(1)
    directory.probe(1)
    directory.unlock()
    assert (names(data), names(tmp_path), outside.read_bytes()) == ([], ["data", "outside"], b"content")
