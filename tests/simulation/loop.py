"""asyncio's event loop on a thread of the simulation: the real loop over a selector of simulated sockets."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.selector_events
import math
import selectors
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tests.simulation.scheduler import Thread, scheduler


class _Selector(selectors.BaseSelector):
    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._sockets: dict[int, Any] = {}
        self.thread: Thread | None = None
        self.woken = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = self._number(fileobj)
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[number] = key
        self._sockets[number] = scheduler.me().process.descriptors[number]
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        number = self._number(fileobj)
        self._sockets.pop(number, None)
        return self._keys.pop(number)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = self._number(fileobj)
        self._keys[number] = key = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def _number(self, fileobj: Any) -> int:
        return fileobj if isinstance(fileobj, int) else fileobj.fileno()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[self._number(fileobj)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        deadline = math.inf if timeout is None else scheduler.now + timeout
        looked = False
        while True:
            ready = [(key, events) for key in self._keys.values() if (events := self._ready(key))]
            if ready or self.woken or (scheduler.now >= deadline and looked):
                self.woken = False
                return ready
            looked = True
            self.thread = scheduler.me()
            for sock in self._sockets.values():
                sock.watch(self.thread)
            scheduler.wait(deadline - scheduler.now)

    def _ready(self, key: selectors.SelectorKey) -> int:
        sock = self._sockets[key.fd]
        readable = selectors.EVENT_READ if sock.readable else 0
        writable = selectors.EVENT_WRITE if sock.writable else 0
        return key.events & (readable | writable)

    def wake(self) -> None:
        self.woken = True
        if self.thread is not None:
            scheduler.wake(self.thread)

    def close(self) -> None:
        self._keys.clear()
        self._sockets.clear()


class Loop(asyncio.selector_events.BaseSelectorEventLoop):
    """The event loop of one daemon; ``errors`` are those that asyncio reports."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        self.errors: list[str] = []
        super().__init__(self._virtual)
        self.set_exception_handler(self._note)

    def _note(self, _loop: object, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def time(self) -> float:
        return scheduler.now

    def run_until_complete(self, future: Any) -> Any:
        scheduler.me().loop = self
        scheduler._running_loop = self
        try:
            return super().run_until_complete(future)
        finally:
            scheduler.me().loop = scheduler._running_loop = None

    # No pipe wakes it.

    def _make_self_pipe(self) -> None:
        self._internal_fds = 1

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._virtual.wake()

    # Only real descriptors would need it.

    def _ensure_fd_no_transport(self, fd: Any) -> None:
        pass


def install(sockets: ModuleType) -> None:
    """Have asyncio make simulated sockets."""
    asyncio.base_events.socket = sockets  # type: ignore[attr-defined]
    asyncio.selector_events.socket = sockets  # type: ignore[attr-defined]
