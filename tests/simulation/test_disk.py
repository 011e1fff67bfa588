"""The simulated disk behaves as Linux's where the storage depends on it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from tests.simulation import disk, network
from tests.simulation.scheduler import Process, begin, scheduler


def on_disk(use: Callable[[disk.Disk], object]) -> None:
    begin("disk")
    network.begin()
    disk.begin()
    disk.disks["host"] = disk.Disk("host")
    process = Process("test", 1, network.network.host("host"))
    scheduler.start(lambda: use(disk.disks["host"]), "test", process)
    scheduler.run()
    assert not process.crashed, process.crashed[0]


def create(name: str) -> disk.Open:
    return disk._opened(disk.os_open(f"/disk/host/{name}", os.O_CREAT | os.O_RDWR))


def test_an_inode_number_is_used_again_once_nothing_has_the_file() -> None:
    def use(_disk: disk.Disk) -> None:
        one = create("one")
        number = one.fstat().st_ino
        disk.Path("/disk/host/one").unlink()
        assert create("two").fstat().st_ino != number, "it is still open"
        one.close()
        del one
        disk.disks["host"].sync_names()
        assert create("three").fstat().st_ino == number

    on_disk(use)


def test_what_an_fsync_could_not_write_counts_as_clean() -> None:
    def use(host: disk.Disk) -> None:
        file = create("old name")
        file.pwrite(b"lost", 0)
        disk.rename("/disk/host/old name", "/disk/host/new name")
        host.sync_names()
        host.fail = lambda operation, _name: errno.EIO if operation == "fsync" else 0
        with pytest.raises(OSError, match="Input/output"):
            file.fsync()
        host.heal()
        assert file.pread(10, 0) == b"lost"
        file.pwrite(b"kept", 4)
        file.fsync()
        host.cut_power(None)
        assert bytes(host.names["new name"].content) == bytes(4) + b"kept"

    on_disk(use)


def test_a_full_disk_takes_what_fits() -> None:
    def use(host: disk.Disk) -> None:
        file = create("file")
        host.capacity = 3
        assert file.pwrite(b"12345", 0) == 3
        with pytest.raises(OSError, match="No space left"):
            file.pwrite(b"4", 3)
        assert file.pwrite(b"abc", 0) == 3, "what is written over needs no space"
        assert file.pwrite(b"", 0) == 0
        assert file.fstat().st_size == 3, "a write of nothing changes nothing"

    on_disk(use)
