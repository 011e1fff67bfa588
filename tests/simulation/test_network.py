"""The simulated sockets and the kernel's answer the same calls in the same way."""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation import network, threads
from tests.simulation.scheduler import Process, begin, scheduler

Story = Callable[[Any, Any], list[Callable[[], object]]]


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


def simulated(story: Story) -> list[object]:
    begin("sockets")
    network.begin()
    found: list[object] = []

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
        found.extend(answers(story(one, other), threads.sleep))

    process = Process("test", 1, network.network.host("test"))
    scheduler.start(tell, "test", process)
    scheduler.run()
    assert not process.crashed
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the simulated sockets are Linux's")
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_simulated_sockets_are_as_the_kernels(story: Story) -> None:
    assert simulated(story) == in_the_kernel(story)
