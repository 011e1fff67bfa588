"""Fakes that lose packets, name lookups and dials."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from nsq.errors import DialFailed
from nsq.transport import MemoryStream, MemoryTransport
from tests.fakes.threads import PATIENCE

_AT_MOST = 60.0


@contextmanager
def unreachable() -> Iterator[str]:
    """An address that neither accepts connections nor refuses them: the backlog of its listener is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def silent_resolver() -> Iterator[threading.Event]:
    """Answer no name lookup in the block; set the event at the first lookup."""
    asked, over = threading.Event(), threading.Event()

    def hang(*_: Any, flags: int = 0, **__: Any) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            asked.set()
            over.wait(_AT_MOST)
        raise socket.gaierror("no such name")

    with mock.patch.object(socket, "getaddrinfo", hang):
        yield asked
        over.set()


class HeldTransport(MemoryTransport):
    """Dials of ``held`` addresses hang until ``release``. ``hanging`` lists those that have begun."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self.hanging: list[str] = []
        self._held = held
        self._released = threading.Event()
        self.release = self._released.set

    def connect(self, address: str, *, timeout: float) -> MemoryStream:
        if address in self._held:
            self.hanging.append(address)
            if not self._released.wait(PATIENCE):
                raise DialFailed(f"cannot connect to {address}: no answer")
        return super().connect(address, timeout=timeout)
