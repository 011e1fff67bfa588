"""Fakes that lose packets and dials."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nsq.errors import DialFailed
from nsq.transport import MemoryStream, MemoryTransport
from tests.fakes.threads import PATIENCE


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
