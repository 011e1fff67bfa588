"""Runs work that would block the event loop in a thread of its own.

The loop's thread pool is not used: work that hangs would occupy a thread that others need, and the
interpreter waits for the pool's threads at exit.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run ``work`` in a thread; the future gets its result. Cancelling the future does not end the work."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def complete(give: Callable[[], None]) -> None:
        if not answer.done():
            give()

    def run() -> None:
        give: Callable[[], None]
        try:
            give = functools.partial(answer.set_result, work())
        except Exception as error:
            give = functools.partial(answer.set_exception, error)
        # If the loop has ended meanwhile, the result is no longer needed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(complete, give)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer
