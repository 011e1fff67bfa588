"""The simulated sockets and the simulated disk behave as Linux's where the package depends on it."""

from __future__ import annotations

import errno
import functools
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation import disk, network, threads
from tests.simulation.scheduler import Process, begin, scheduler


def in_virtual_time(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        begin("stand-ins")
        network.begin()
        disk.begin()
        process = Process("test", 1, network.network.host("host"))
        scheduler.start(functools.partial(test, **arguments), "test", process)
        scheduler.run()
        assert not process.crashed, process.crashed[0]

    return run


#: What is done with two connected sockets, a and b.
STORIES = {
    "a close is an end": "a.close(); b.recv(9); b.recv(9); b.send(b'1'); b.send(b'2'); b.recv(9)",
    "a close with unread data is a reset, behind what was sent": "b.send(b'unread'); a.send(b'sent'); "
    "a.close(); b.recv(9); b.recv(9); b.recv(9); b.send(b'1'); b.getpeername(); b.shutdown(SHUT_RDWR)",
    "a send learns of a reset": "b.send(b'u'); a.close(); b.send(b'1'); b.send(b'2'); b.recv(9); b.recv(9)",
    "what was sent arrives after SHUT_RD": "a.send(b'early'); b.shutdown(SHUT_RD); b.recv(9); b.recv(9); "
    "a.send(b'late'); b.recv(9); b.recv(9)",
    "a half-close ends one way": "a.shutdown(SHUT_WR); b.recv(9); b.send(b'more'); a.recv(9); a.send(b'1')",
    "data for a socket that is shut resets it": "a.shutdown(SHUT_RDWR); b.recv(9); b.send(b'1'); a.recv(9); "
    "b.send(b'2'); b.recv(9); a.send(b'3')",
    "closed": "a.close(); a.recv(9); a.send(b'1'); a.getsockname(); a.shutdown(SHUT_RD)",
}


def answers(story: str, a: Any, b: Any, sleep: Callable[[float], object]) -> list[tuple[str, object]]:
    """Do what a story says, with a moment after each step; return what came of each."""
    found: list[tuple[str, object]] = []
    a.setblocking(False)
    b.setblocking(False)
    for step in story.split("; "):
        try:
            result = eval(step, vars(socket) | {"a": a, "b": b})
            found.append((step, result if isinstance(result, (bytes, int)) else "works"))
        except OSError as error:
            found.append((step, errno.errorcode[error.errno or 0]))
        sleep(0.01)
    return found


def in_the_kernel(story: str) -> list[tuple[str, object]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        return answers(story, one, other, time.sleep)


@pytest.mark.skipif(sys.platform != "linux", reason="the simulated sockets are Linux's")
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
@in_virtual_time
def test_simulated_sockets_are_as_the_kernels(story: str) -> None:
    one, other = network.socketpair()
    assert answers(story, one, other, threads.sleep) == in_the_kernel(story)


def create(name: str) -> disk.Open:
    disk.disks.setdefault("host", disk.Disk("host"))
    return disk._opened(disk.os_open(f"/disk/host/{name}", os.O_CREAT | os.O_RDWR))


@in_virtual_time
def test_an_inode_number_is_used_again_once_nothing_has_the_file() -> None:
    one = create("one")
    number = one.fstat().st_ino
    disk.Path("/disk/host/one").unlink()
    assert create("two").fstat().st_ino != number, "it is still open"
    one.close()
    del one
    disk.disks["host"].sync_names()
    assert create("three").fstat().st_ino == number


@in_virtual_time
def test_what_an_fsync_could_not_write_counts_as_clean() -> None:
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


@in_virtual_time
def test_a_full_disk_takes_what_fits() -> None:
    file = create("file")
    disk.disks["host"].capacity = 3
    assert file.pwrite(b"12345", 0) == 3
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"4", 3)
    assert file.pwrite(b"abc", 0) == 3, "what is written over needs no space"
    assert file.pwrite(b"", 0) == 0
    assert file.fstat().st_size == 3, "a write of nothing changes nothing"
