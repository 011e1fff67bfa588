"""A daemon in a background thread of this process, on an event loop of its own.

asyncio and aiohttp are imported when the thread starts: ``import nsq.testing`` must load neither.
"""

from __future__ import annotations

import contextlib
import errno
import io
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Protocol, TextIO

from .addresses import Addresses
from .errors import AddressTaken, DaemonFailed

if TYPE_CHECKING:
    import asyncio

    from nsq.daemons.serve.process import Orders

_ABANDON_TIMEOUT = 2.0


class Runnable(Protocol):
    """The part of a daemon that this module uses; some also have ``https_address``."""

    orders: Orders

    async def start(self) -> None: ...

    async def drain(self) -> None: ...

    async def stop(self) -> object: ...

    @property
    def tcp_address(self) -> str | None: ...

    @property
    def http_address(self) -> str | None: ...


class ThreadRun:
    """One run of a daemon: a thread from ``start`` to ``stop``."""

    def __init__(self, make: Callable[[TextIO], Runnable], name: str) -> None:
        self.addresses = Addresses(None, None)
        self._make = make
        self._name = name
        self._log = io.StringIO()
        self._ready: Future[Addresses] = Future()
        self._ended: Future[None] = Future()
        self._ask_to_stop: Callable[[], None] = lambda: None
        self._cancel: Callable[[], None] = lambda: None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-starting", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def log(self) -> str:
        return self._log.getvalue()

    def start(self, timeout: float) -> None:
        """Start the thread; return once the daemon listens."""
        self._thread.start()
        try:
            self.addresses = self._ready.result(timeout)
        except FutureTimeout:
            raise DaemonFailed(f"{self._name} did not start within {timeout:g} s", self.log) from None
        except Exception as error:
            kind = AddressTaken if _is_address_taken(error) else DaemonFailed
            raise kind(f"{self._name} did not start: {error!r}", self.log) from error

    def failure(self) -> DaemonFailed:
        """Return the error that says why the daemon ended by itself."""
        error = self._ended.exception(0) if self._ended.done() else None
        return DaemonFailed(f"{self._name} ended by itself: {error!r}", self.log)

    def stop(self, timeout: float) -> None:
        self._ask_to_stop()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise DaemonFailed(f"{self._name} did not stop within {timeout:g} s", self.log)
        if self._ended.exception(0) is not None:
            raise self.failure() from self._ended.exception(0)

    def abandon(self) -> None:
        """Cancel a daemon that did not become ready."""
        self._abandoned = True
        self._cancel()
        if self._thread.is_alive():
            self._thread.join(_ABANDON_TIMEOUT)

    def _run(self) -> None:
        import asyncio

        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        import asyncio

        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = _from_any_thread(loop, task.cancel)
        if self._abandoned:  # after the line above: either ``abandon`` cancels the task, or we see this
            return
        daemon = self._make(self._log)
        self._ask_to_stop = _from_any_thread(loop, daemon.orders.stop.set)
        await daemon.start()  # a daemon that fails to start leaves nothing open
        try:
            https = getattr(daemon, "https_address", None)
            addresses = Addresses(daemon.tcp_address, daemon.http_address, https)
            threading.current_thread().name = f"{self._name}-{addresses.tcp or addresses.http}"
            self._ready.set_result(addresses)
            await _until_told_to_stop(daemon)
        finally:
            await daemon.stop()


async def _until_told_to_stop(daemon: Runnable) -> None:
    """Drain if the daemon is told to; return at the end of that, or when it is told to stop."""
    import asyncio

    async def drain_when_told() -> None:
        await daemon.orders.drain.wait()
        await daemon.drain()

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(daemon.orders.stop.wait()), loop.create_task(drain_when_told())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _from_any_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> Callable[[], None]:
    def hand_over() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, because the daemon has ended
            loop.call_soon_threadsafe(call)

    return hand_over


def _is_address_taken(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the port is in use."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return True
        error = error.__cause__ or error.__context__
    return False
