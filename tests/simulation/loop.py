"""asyncio's event loop on a thread of the simulation: the real loop over a selector of simulated sockets."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.selector_events
import selectors
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

from tests.simulation.network import End
from tests.simulation.scheduler import Waiters, scheduler


class _Selector(selectors.SelectSelector):
    """Knows sockets by their descriptors: asyncio passes nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters = Waiters()
        self._woken = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0 and not (self._woken or self._ready()):
            scheduler.give_way()  # a loop that is never idle lets other threads run too
        else:
            places = [self._end(number).watchers for number in self.get_map()]
            scheduler.wait_until(lambda: self._woken or self._ready(), timeout, self._waiters, *places)
        self._woken = False
        return self._ready()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = [
            (key, self._end(number).ready(key.events & EVENT_READ, key.events & EVENT_WRITE))
            for number, key in self.get_map().items()
        ]
        return [each for each in found if each[1]]

    def _end(self, number: int) -> End:
        return scheduler.me().process.descriptors[number].end  # type: ignore[no-any-return]

    def wake(self) -> None:
        self._woken = True
        self._waiters.wake()


class Loop(asyncio.selector_events.BaseSelectorEventLoop):
    """The event loop of one daemon; ``errors`` are those that asyncio reports."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        self.errors: list[str] = []
        super().__init__(self._virtual)
        self.set_exception_handler(
            lambda _, context: self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")
        )

    def time(self) -> float:
        return scheduler.now

    def run_until_complete(self, future: Any) -> Any:
        scheduler.me().loop = self
        try:
            return super().run_until_complete(future)
        finally:
            scheduler.me().loop = None

    def _write_to_self(self) -> None:
        self._virtual.wake()

    def _make_self_pipe(self) -> None:
        self._internal_fds = 1  # none, in truth: ``_write_to_self`` needs no pipe

    def _close_self_pipe(self) -> None:
        pass

    def _ensure_fd_no_transport(self, fd: Any) -> None:
        pass  # only real descriptors need it


def install(sockets: Any) -> None:
    """Have asyncio make simulated sockets."""
    asyncio.base_events.socket = sockets  # type: ignore[attr-defined]
    asyncio.selector_events.socket = sockets  # type: ignore[attr-defined]
