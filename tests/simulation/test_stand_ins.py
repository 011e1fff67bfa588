"""The simulated sockets and the simulated disk behave as Linux's where the package depends on it."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation import disk, network, threads
from tests.simulation.scheduler import Process, begin, scheduler

Story = Callable[[Any, Any], list[Callable[[], object]]]


def in_virtual_time(work: Callable[[], object]) -> None:
    begin("stand-ins")
    network.begin()
    disk.begin()
    process = Process("test", 1, network.network.host("host"))
    scheduler.start(work, "test", process)
    scheduler.run()
    assert not process.crashed, process.crashed[0]


def send(sock: Any, data: bytes) -> Callable[[], object]:
    return lambda: sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def recv(sock: Any) -> Callable[[], object]:
    return lambda: sock.recv(100)


def shut(sock: Any, how: int = socket.SHUT_RDWR) -> Callable[[], object]:
    return lambda: sock.shutdown(how)


# Each story is told what two connected sockets are, and returns calls; after each of them a moment passes.
STORIES: dict[str, Story] = {
    "a close is an end": lambda a, b: [a.close, recv(b), recv(b), send(b, b"1"), send(b, b"2"), recv(b)],
    "a close with unread data is a reset, behind what was sent": lambda a, b: [
        send(b, b"unread"), send(a, b"sent"), a.close, recv(b), recv(b), recv(b), send(b, b"1"),
        b.getpeername, shut(b),
    ],
    "a send learns of a reset": lambda a, b: [
        send(b, b"unread"), a.close, send(b, b"1"), send(b, b"2"), recv(b), recv(b),
    ],
    "what was sent arrives after SHUT_RD": lambda a, b: [
        send(a, b"early"), shut(b, socket.SHUT_RD), recv(b), recv(b), send(a, b"late"),
        recv(b), recv(b),
    ],
    "a half-close ends one direction": lambda a, b: [
        shut(a, socket.SHUT_WR), recv(b), send(b, b"more"), recv(a), send(a, b"1"),
    ],
    "data for a socket that is shut resets it": lambda a, b: [
        shut(a), recv(b), send(b, b"1"), recv(a), send(b, b"2"), recv(b), send(a, b"3"),
    ],
    "closed": lambda a, b: [a.close, recv(a), send(a, b"1"), a.getsockname, shut(a, socket.SHUT_RD)],
}  # fmt: skip


def answers(calls: list[Callable[[], object]], sleep: Callable[[float], object]) -> list[object]:
    found: list[object] = []
    for number, call in enumerate(calls):
        try:
            result = call()
            found.append((number, result if isinstance(result, (bytes, int)) else "works"))
        except OSError as error:
            found.append((number, errno.errorcode[error.errno or 0]))
        sleep(0.01)
    return found


def in_the_kernel(story: Story) -> list[object]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        return answers(story(one, other), time.sleep)


@pytest.mark.skipif(sys.platform != "linux", reason="the simulated sockets are Linux's")
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_simulated_sockets_are_as_the_kernels(story: Story) -> None:
    def tell() -> None:
        listener, one = network.Socket(), network.Socket()
        listener.bind(("", 4150))
        listener.listen()
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.connect(listener.getsockname())
        threads.sleep(0.01)
        other, _ = listener.accept()
        other.setblocking(False)
        assert answers(story(one, other), threads.sleep) == in_the_kernel(story)

    in_virtual_time(tell)


def create(name: str) -> disk.Open:
    disk.disks.setdefault("host", disk.Disk("host"))
    return disk._opened(disk.os_open(f"/disk/host/{name}", os.O_CREAT | os.O_RDWR))


def test_an_inode_number_is_used_again_once_nothing_has_the_file() -> None:
    def use() -> None:
        one = create("one")
        number = one.fstat().st_ino
        disk.Path("/disk/host/one").unlink()
        assert create("two").fstat().st_ino != number, "it is still open"
        one.close()
        del one
        disk.disks["host"].sync_names()
        assert create("three").fstat().st_ino == number

    in_virtual_time(use)


def test_what_an_fsync_could_not_write_counts_as_clean() -> None:
    def use() -> None:
        file, host = create("old name"), disk.disks["host"]
        file.pwrite(b"lost", 0)
        disk.rename("/disk/host/old name", "/disk/host/new name")
        host.sync_names()
        host.hooks.append(lambda operation, _name: errno.EIO if operation == "fsync" else 0)
        with pytest.raises(OSError, match="Input/output"):
            file.fsync()
        host.heal()
        assert file.pread(10, 0) == b"lost"
        file.pwrite(b"kept", 4)
        file.fsync()
        host.cut_power(None)
        assert bytes(host.names["new name"].content) == bytes(4) + b"kept"

    in_virtual_time(use)


def test_a_full_disk_takes_what_fits() -> None:
    def use() -> None:
        file = create("file")
        disk.disks["host"].capacity = 3
        assert file.pwrite(b"12345", 0) == 3
        with pytest.raises(OSError, match="No space left"):
            file.pwrite(b"4", 3)
        assert file.pwrite(b"abc", 0) == 3, "what is written over needs no space"
        assert file.pwrite(b"", 0) == 0
        assert file.fstat().st_size == 3, "a write of nothing changes nothing"

    in_virtual_time(use)
