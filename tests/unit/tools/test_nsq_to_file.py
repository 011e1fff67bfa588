"""Files of one topic: their names, rotation, and recovery after a kill or a full disk."""

from __future__ import annotations

import errno
import gzip
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import ConfigError
from nsq.tools.archive import Archive, Names
from nsq.tools.nsq_to_file import ToFileOptions
from tests.fakes.clock import Clock

NOON = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))
HOST = os.uname().nodename
SHORT = HOST.partition(".")[0]


def options(tmp_path: Path, **given: Any) -> ToFileOptions:
    directories = {"output_dir": str(tmp_path / "out")}
    if given.pop("hand_over", False):
        directories["work_dir"] = str(tmp_path / "work")
    names = {
        "topic": ("t",),
        "nsqd_tcp_address": ("127.0.0.1:1",),
        "filename_format": "<TOPIC><REV>.<DATETIME>",
    }
    return ToFileOptions(**{**names, **directories, **given})


def written(archive: Archive, *bodies: bytes) -> Archive:
    """Write lines as the writer does."""
    for body in bodies:
        if archive.due:
            archive.rotate()
        archive.append(body)
    archive.sync()
    return archive


def killed(archive: Archive) -> None:
    """End a writer as a kill does: its descriptor and lock are gone."""
    os.close(archive._descriptor)


def files(tmp_path: Path, folder: str = "out") -> dict[str, bytes]:
    """The files by name, decompressed."""
    found = {}
    for path in sorted((tmp_path / folder).rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            name = path.relative_to(tmp_path / folder).as_posix()
            found[name] = gzip.decompress(data) if name.endswith(".gz") else data
    return found


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"filename_format": "<TOPIC>.<HOST><REV>.<DATETIME>.log"}, f"t.{SHORT}.2026-11-23_12.log"),
        ({"filename_format": "<TOPIC>.<HOST><GZIPREV>.log", "gzip": True}, f"t.{SHORT}<REV>.log.gz"),
        ({"filename_format": "<TOPIC><REV>.gz", "gzip": True}, "t<REV>.gz"),
        ({"rotate_size": 1}, "t<REV>.2026-11-23_12"),
        ({"filename_format": "<TOPIC>.<PID>.log"}, "t.PID.log"),
        ({"datetime_format": "%Y/%m/%d/%H%M%S%%"}, "t.2026/11/23/120000%"),
        ({"datetime_format": "%F_%H%%Q%é%-d%"}, "t.%F_12%Q%é%-d%"),  # as Go's, without unknown directives
        ({"filename_format": "<HOST>", "host_identifier": "<HOSTNAME>-<SHORT_HOST>-x"}, f"{HOST}-{SHORT}-x"),
    ],
)
def test_a_file_name_is_made_of_its_format(tmp_path: Path, given: dict[str, Any], name: str) -> None:
    assert Names(options(tmp_path, **given), "t").at(NOON) == name.replace("PID", str(os.getpid()))


def test_a_topics_file_stays_in_the_output_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"outside of --output-dir"):
        Names(options(tmp_path, filename_format="<TOPIC>/<DATETIME>"), "..")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"datetime_format": "%H%M"}, ["t.1200", "t.1201"]),
        ({"rotate_interval": 59.0}, ["t-000000.2026-11-23_12", "t-000001.2026-11-23_12"]),
        ({"rotate_size": 3}, ["t-000000.2026-11-23_12", "t-000001.2026-11-23_12"]),
        ({"rotate_size": 4}, ["t-000000.2026-11-23_12"]),
        ({"gzip": True, "datetime_format": "%H%M"}, ["t-000000.1200.gz", "t-000000.1201.gz"]),
    ],
)
def test_a_file_is_rotated_by_size_and_interval(
    tmp_path: Path, given: dict[str, Any], names: list[str]
) -> None:
    clock = Clock(NOON)
    archive = written(Archive(options(tmp_path, **given), "t", clock), b"one")
    clock.now += 60.0
    written(archive, b"two").close()
    found = files(tmp_path)
    assert list(found) == names
    assert b"".join(found.values()) == b"one\ntwo\n"


@pytest.mark.parametrize(("step", "rotated"), [(0.0, False), (-1.0, True), (-86400.0, True)])
def test_a_clock_that_is_set_back_does_not_delay_the_rotation(
    tmp_path: Path, step: float, rotated: bool
) -> None:
    clock = Clock(NOON)
    given = options(tmp_path, rotate_interval=60.0, datetime_format="always")
    archive = written(Archive(given, "t", clock), b"one")
    clock.now += step
    assert archive.due is rotated
    archive.close()


@pytest.mark.parametrize("given", [{"gzip": True}, {"rotate_interval": 60.0}, {"hand_over": True}])
def test_no_file_is_overwritten(tmp_path: Path, given: dict[str, Any]) -> None:
    first, second = (Archive(options(tmp_path, **given), "t", Clock(NOON)) for _ in range(2))
    written(first, b"one")
    written(second, b"two")  # while the other one has its file open
    first.close()
    second.close()
    written(Archive(options(tmp_path, **given), "t", Clock(NOON)), b"three").close()
    assert sorted(files(tmp_path).values()) == [b"one\n", b"three\n", b"two\n"]


def test_a_file_that_appears_in_the_output_directory_meanwhile_stays(tmp_path: Path) -> None:
    archive = written(Archive(options(tmp_path, hand_over=True), "t", Clock(NOON)), b"one")
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out/t-000000.2026-11-23_12").write_bytes(b"theirs")
    archive.close()
    assert files(tmp_path) == {"t-000000.2026-11-23_12": b"theirs", "t-000001.2026-11-23_12": b"one\n"}
    assert files(tmp_path, "work") == {}


def test_each_sync_ends_a_gzip_member_and_gzip_reads_them_all(tmp_path: Path) -> None:
    archive = written(Archive(options(tmp_path, gzip=True), "t", Clock(NOON)), b"one")
    path = tmp_path / "out/t-000000.2026-11-23_12.gz"
    assert gzip.decompress(path.read_bytes()) == b"one\n"
    written(archive, b"two").close()
    assert subprocess.run(["gzip", "-dc", path], capture_output=True, check=True).stdout == b"one\ntwo\n"


def test_an_empty_gzip_file_can_be_read(tmp_path: Path) -> None:
    archive = Archive(options(tmp_path, gzip=True), "t", Clock(NOON))
    archive.rotate()
    archive.close()
    assert list(files(tmp_path).values()) == [b""]


def test_nothing_is_synced_into_a_file_that_was_removed(tmp_path: Path) -> None:
    archive = written(Archive(options(tmp_path), "t", Clock(NOON)), b"one")
    (tmp_path / "out/t.2026-11-23_12").unlink()
    written(archive, b"two")
    assert files(tmp_path) == {"t.2026-11-23_12": b"two\n"}
    archive.append(b"three")
    archive.write()
    (tmp_path / "out/t.2026-11-23_12").unlink()
    with pytest.raises(FileNotFoundError, match="removed while it was being written"):
        archive.sync()
    archive.give_up()


# After a kill


def test_a_torn_record_gets_a_line_of_its_own(tmp_path: Path) -> None:
    archive = written(Archive(options(tmp_path), "t", Clock(NOON)), b"one")
    os.write(archive._descriptor, b"tw")
    killed(archive)
    written(Archive(options(tmp_path), "t", Clock(NOON)), b"two").close()
    assert list(files(tmp_path).values()) == [b"one\ntw\ntwo\n"]


@pytest.mark.parametrize("hand_over", [False, True])
def test_half_a_gzip_member_is_cut_off(tmp_path: Path, hand_over: bool) -> None:
    given = options(tmp_path, gzip=True, hand_over=hand_over)
    archive = written(Archive(given, "t", Clock(NOON)), b"one")
    written(archive, b"two")
    os.write(archive._descriptor, gzip.compress(os.urandom(100_000))[:50_000])
    killed(archive)
    after = Archive(given, "t", Clock(NOON))
    after.adopt()
    written(after, b"three").close()
    assert sorted(files(tmp_path).values()) == [b"one\ntwo\n", b"three\n"]


def test_files_left_in_the_work_directory_are_moved_to_the_output(tmp_path: Path) -> None:
    given = options(tmp_path, hand_over=True, datetime_format="%Y/%H")
    dead, alive, empty, linked = (Archive(given, "t", Clock(NOON)) for _ in range(4))
    written(dead, b"one")
    written(alive, b"two")
    empty.rotate()
    written(linked, b"three")
    (tmp_path / "out/t-000003.2026").mkdir(parents=True)
    os.link(tmp_path / "work/t-000003.2026/12", tmp_path / "out/t-000003.2026/12")  # between two steps
    for archive in (dead, empty, linked):
        killed(archive)
    (tmp_path / "work/other.log").write_bytes(b"not ours")
    Archive(given, "t", Clock(NOON)).adopt()
    assert files(tmp_path) == {"t-000000.2026/12": b"one\n", "t-000003.2026/12": b"three\n"}
    assert set(files(tmp_path, "work")) == {"t-000001.2026/12", "other.log"}
    alive.close()


@pytest.mark.parametrize("given", [{"gzip": True}, {"rotate_size": 1000}, {"hand_over": True}])
def test_a_full_disk_leaves_what_was_synced(
    tmp_path: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = written(Archive(options(tmp_path, **given), "t", Clock(NOON)), b"one")
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space"):
        written(archive, b"two")
    archive.give_up()
    nothing = Archive(options(tmp_path, **given), "u", Clock(NOON))
    with pytest.raises(OSError, match="No space"):
        written(nothing, b"one")
    nothing.give_up()
    assert [*files(tmp_path).values(), *files(tmp_path, "work").values()] == [b"one\n"]
